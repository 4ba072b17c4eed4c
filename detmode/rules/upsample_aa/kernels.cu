// Antialiased interpolation backward: the tables of the two filters. The gathers from tables in
// global memory are those of the family `upsample`.
#include "interpolation_small.cuh"
#include "interpolation_table.cuh"

// The triangle 1 - |x|.
struct Bilinear {
  static constexpr int reach = 1;
  template <typename opmath_t>
  static __device__ __forceinline__ opmath_t filter(opmath_t x) {
    if (x < opmath_t(0)) x = -x;
    return x < opmath_t(1) ? sub_rn(opmath_t(1), x) : opmath_t(0);
  }
};

// Cubic convolution with a = -0.5 (ATen's without antialiasing has -0.75):
// ((a + 2) x - (a + 3)) x x + 1 up to 1, (((x - 5) x + 8) x - 4) a up to 2.
struct Bicubic {
  static constexpr int reach = 2;
  template <typename opmath_t>
  static __device__ __forceinline__ opmath_t filter(opmath_t x) {
    if (x < opmath_t(0)) x = -x;
    if (x < opmath_t(1)) {
      opmath_t slope = fma_rn(opmath_t(1.5), x, opmath_t(-2.5));
      return fma_rn(mul_rn(slope, x), x, opmath_t(1));
    }
    if (x < opmath_t(2)) {
      opmath_t slope = fma_rn(sub_rn(x, opmath_t(5)), x, opmath_t(8));
      return mul_rn(fma_rn(slope, x, opmath_t(-4)), opmath_t(-0.5));
    }
    return opmath_t(0);
  }
};

// The integer part of a position, within the input; NaN is 0.
template <typename opmath_t>
static __device__ __forceinline__ int64_t position_in(opmath_t value, int64_t in) {
  if (!(value > opmath_t(0))) return 0;
  return value < static_cast<opmath_t>(in) ? static_cast<int64_t>(value) : in;
}

// An output position reads the input positions within the filter's reach, stretched by the scale
// where that is above 1; its weights are divided by their sum.
template <typename filter_t>
struct Antialiased {
  template <typename opmath_t>
  static __device__ void span(const Resize<opmath_t>& resize, int64_t o, int64_t& begin,
                              int64_t& end) {
    opmath_t support = opmath_t(filter_t::reach);
    if (resize.scale >= opmath_t(1)) support = mul_rn(support, resize.scale);
    opmath_t o_center = center_of<opmath_t>(o), rounding = opmath_t(0.5);
    begin = position_in(add_rn(fma_rn(resize.scale, o_center, -support), rounding), resize.in);
    end = position_in(add_rn(fma_rn(resize.scale, o_center, support), rounding), resize.in) - 1;
  }
  // Order of the sum: input positions ascending.
  template <typename opmath_t>
  static __device__ int64_t weigh(const Resize<opmath_t>& resize, int64_t o, opmath_t* weights) {
    int64_t begin, end;
    span(resize, o, begin, end);
    opmath_t from = fma_rn(-resize.scale, center_of<opmath_t>(o), static_cast<opmath_t>(begin));
    opmath_t shrink = resize.scale >= opmath_t(1) ? div_rn(opmath_t(1), resize.scale) : opmath_t(1);
    int64_t count = min_index(end - begin + 1, resize.taps);
    opmath_t total = opmath_t(0);
    for (int64_t k = 0; k < count; ++k) {
      opmath_t x = add_rn(add_rn(static_cast<opmath_t>(k), from), opmath_t(0.5));
      weights[k] = filter_t::filter(mul_rn(x, shrink));
      total = add_rn(total, weights[k]);
    }
    for (int64_t k = 0; k < resize.taps; ++k) {
      if (k >= count) weights[k] = opmath_t(0);
      if (k < count && total != opmath_t(0)) weights[k] = div_rn(weights[k], total);
    }
    return begin;
  }
};
