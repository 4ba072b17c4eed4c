// Where a sample reads its input: along each axis the taps, with their weights. Every operation is
// rounded explicitly, so that a sample has the same taps on every GPU. Positions are in pixels.
#pragma once

#include "dtype.cuh"
#include "index.cuh"

// PyTorch's numbers of the padding modes; 0 is zeros.
constexpr int64_t BORDER = 1;
constexpr int64_t REFLECTION = 2;

// One axis of the input.
struct Axis {
  int64_t size;
  int64_t padding;
  bool align_corners;
};

// What one axis adds to a sample. An index of -1 lies outside the input.
template <typename T, int taps>
struct Taps {
  int32_t index[taps];
  T weight[taps];
  T slope[taps];  // of the weight, by the position
  T scale;        // of the position, by the grid's coordinate
};

// The position of the coordinate x: -1 and 1 are the centres of the outermost pixels, or their
// edges. A product and a sum become one operation, as in ATen compiled by nvcc.
template <typename T>
static __device__ __forceinline__ T unnormalized(T x, const Axis& axis) {
  T moved = add_rn(x, T(1)), half = T(0.5);
  if (axis.align_corners) return mul_rn(mul_rn(moved, half), T(axis.size - 1));
  return mul_rn(fma_rn(moved, T(axis.size), T(-1)), half);
}

template <typename T>
static __device__ __forceinline__ T unnormalized_scale(const Axis& axis) {
  return mul_rn(T(axis.align_corners ? axis.size - 1 : axis.size), T(0.5));
}

// Folds a position at the outermost centres, or edges, as often as it takes; `sign` is the
// derivative. ATen counts the folds in an int, where CUDA's conversion saturates: at an odd number.
template <typename T>
static __device__ __forceinline__ T reflected(T position, const Axis& axis, T& sign) {
  T low = axis.align_corners ? T(0) : T(-0.5);
  T span = T(axis.align_corners ? axis.size - 1 : axis.size);
  sign = T(0);
  if (span == T(0)) return T(0);
  T away = sub_rn(position, low);
  sign = away < T(0) ? T(-1) : T(1);
  if (away < T(0)) away = -away;
  T rest = fmod(away, span);
  T folds = floor(div_rn(away, span));
  bool odd = folds < T(2147483648.0) ? (static_cast<int64_t>(folds) & 1) != 0 : !is_nan(folds);
  if (!odd) return add_rn(rest, low);
  sign = -sign;
  return add_rn(sub_rn(span, rest), low);
}

// A position that no int holds, NaN among them, is taken for one outside of every input: so indices
// have 32 bits.
template <typename T>
static __device__ __forceinline__ T in_int_range(T position) {
  // As float, the first bound is 2^31.
  bool holds =
      position <= T(2147483646) && position < T(2147483648.0) && position >= T(-2147483648.0);
  return holds ? position : T(-100);
}

static __device__ __forceinline__ int32_t inside_or_none(int32_t index, const Axis& axis) {
  return index >= 0 && index < axis.size ? index : -1;
}

// The position after padding, for all but bicubic. The borders themselves have no derivative; a NaN
// passes the comparisons, and has one, but no tap.
template <typename T>
static __device__ __forceinline__ T padded(T x, const Axis& axis, T& scale) {
  T position = unnormalized(x, axis);
  scale = unnormalized_scale<T>(axis);
  if (axis.padding == REFLECTION) {
    T sign;
    position = reflected(position, axis, sign);
    scale = mul_rn(scale, sign);
  }
  if (axis.padding == BORDER || axis.padding == REFLECTION) {
    T last = T(axis.size - 1);
    bool before = position <= T(0), behind = !before && position >= last;
    position = before ? T(0) : behind ? last : position;
    scale = mul_rn(scale, before || behind ? T(0) : T(1));
  }
  return in_int_range(position);
}

// The index of a bicubic tap, each of which is padded for itself. Here NaN is clipped to 0.
template <typename T>
static __device__ __forceinline__ int32_t cubic_index(T position, const Axis& axis) {
  T unused;
  if (axis.padding == REFLECTION) position = reflected(position, axis, unused);
  if (axis.padding == BORDER || axis.padding == REFLECTION) {
    T last = T(axis.size - 1);
    position = !(position > T(0)) ? T(0) : position < last ? position : last;
  }
  return inside_or_none(static_cast<int32_t>(in_int_range(position)), axis);
}

// Keys' cubic convolution with a = -0.75, at a distance below 1 and from 1 to 2, with derivatives.
template <typename T>
static __device__ __forceinline__ T cubic_near(T x) {
  return fma_rn(mul_rn(fma_rn(T(1.25), x, T(-2.25)), x), x, T(1));
}
template <typename T>
static __device__ __forceinline__ T cubic_far(T x) {
  return fma_rn(fma_rn(fma_rn(T(-0.75), x, T(3.75)), x, T(-6)), x, T(3));
}
template <typename T>
static __device__ __forceinline__ T cubic_near_slope(T x) {
  return mul_rn(fma_rn(T(3.75), x, T(-4.5)), x);
}
template <typename T>
static __device__ __forceinline__ T cubic_far_slope(T x) {
  return fma_rn(fma_rn(T(-2.25), x, T(7.5)), x, T(-6));
}

// Nearest: a half goes to the even pixel.
template <typename T>
static __device__ __forceinline__ void find_taps(T x, const Axis& axis, Taps<T, 1>& taps) {
  taps.index[0] = inside_or_none(static_cast<int32_t>(rint(padded(x, axis, taps.scale))), axis);
  taps.weight[0] = T(1);
  taps.slope[0] = T(0);
}

// Linear: the pixels on both sides.
template <typename T>
static __device__ __forceinline__ void find_taps(T x, const Axis& axis, Taps<T, 2>& taps) {
  T position = padded(x, axis, taps.scale);
  int32_t first = static_cast<int32_t>(floor(position));
  taps.index[0] = inside_or_none(first, axis);
  taps.index[1] = inside_or_none(first + 1, axis);
  taps.weight[0] = sub_rn(T(first + 1), position);
  taps.weight[1] = sub_rn(position, T(first));
  taps.slope[0] = T(-1);
  taps.slope[1] = T(1);
}

// Cubic: two pixels on either side.
template <typename T>
static __device__ __forceinline__ void find_taps(T x, const Axis& axis, Taps<T, 4>& taps) {
  T position = unnormalized(x, axis), first = floor(position);
  taps.scale = unnormalized_scale<T>(axis);
  T t = sub_rn(position, first), u = sub_rn(T(1), t);
  // One copy of the code of a reflection for all taps.
#pragma unroll 1
  for (int k = 0; k < 4; ++k) {
    taps.index[k] = cubic_index(add_rn(sub_rn(first, T(1)), T(k)), axis);
  }
  taps.weight[0] = cubic_far(add_rn(t, T(1)));
  taps.weight[1] = cubic_near(t);
  taps.weight[2] = cubic_near(u);
  taps.weight[3] = cubic_far(add_rn(u, T(1)));
  taps.slope[0] = cubic_far_slope(add_rn(t, T(1)));
  taps.slope[1] = cubic_near_slope(t);
  taps.slope[2] = -cubic_near_slope(u);
  taps.slope[3] = -cubic_far_slope(add_rn(u, T(1)));
}
