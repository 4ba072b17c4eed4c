// What reaches one input position of an interpolation, by the tables of interpolation_table.cuh:
// sums over one dimension after the other.
#pragma once

#include "dtype.cuh"
#include "index_type.cuh"
#include "interpolation_table.cuh"

// One dimension as the gathers see it, with the input position that this thread owns. Positions in
// a dimension have 32 bits, as in its table; only what spans several dimensions has 64.
template <typename opmath_t>
struct Axis {
  int32_t in;
  int32_t out;
  int32_t taps;
  int32_t at;
  const int32_t* first;
  const int32_t* low;
  const int32_t* high;
  const opmath_t* weights;
  __device__ __forceinline__ const opmath_t* weights_of(int32_t o) const {
    return weights + static_cast<int64_t>(o) * taps;
  }
};

// The last dimension is the first.
template <typename opmath_t>
static __device__ __forceinline__ void read_tables(const opmath_t* tables,
                                                   const resized_axes& resized,
                                                   Axis<opmath_t> (&axes)[3]) {
  auto axis_of = [&](int64_t in, int64_t out, int64_t taps, int64_t table) {
    const opmath_t* weights = tables + table;
    const int32_t* first = reinterpret_cast<const int32_t*>(weights + out * taps);
    return Axis<opmath_t>{static_cast<int32_t>(in),
                          static_cast<int32_t>(out),
                          static_cast<int32_t>(taps),
                          0,
                          first,
                          first + out,
                          first + out + in,
                          weights};
  };
  axes[0] = axis_of(resized.w_size, resized.w_out, resized.w_taps, resized.w_table);
  axes[1] = axis_of(resized.h_size, resized.h_out, resized.h_taps, resized.h_table);
  axes[2] = axis_of(resized.d_size, resized.d_out, resized.d_taps, resized.d_table);
}

// The weights with which an axis' output positions, from `o` on, read its owned position: one each,
// so not for the ends of an input that clamps (add_taps). Counting up from one to the next takes
// the multiplications out of the loops.
template <typename opmath_t>
struct Weights {
  const int32_t* first;
  const opmath_t* weights;
  int32_t at;
  int32_t taps;
  __device__ __forceinline__ Weights(const Axis<opmath_t>& axis, int32_t o)
      : first(axis.first + o), weights(axis.weights_of(o)), at(axis.at), taps(axis.taps) {}
  // Where the next output position's weight is; the weights of the positions after the owned one
  // follow it.
  __device__ __forceinline__ const opmath_t* next() {
    const opmath_t* weight = weights + (at - *first++);
    weights += taps;
    return weight;
  }
};

// sums[u] += values[u] times each weight with which output position o reads `axis.at`. It is one
// weight, except at the ends of an input that `clamps`: there every tap outside counts as well, one
// by one from the first, so that an infinity meets the same weights as in ATen.
template <int width, typename opmath_t>
static __device__ __forceinline__ void add_taps(const Axis<opmath_t>& axis, int32_t o, bool clamps,
                                                const opmath_t (&values)[width],
                                                opmath_t (&sums)[width]) {
  int32_t tap = axis.at - axis.first[o];
  int32_t from = clamps && axis.at == 0 ? 0 : most(tap, 0);
  int32_t to = clamps && axis.at == axis.in - 1 ? axis.taps - 1 : least(tap, axis.taps - 1);
  const opmath_t* weights = axis.weights_of(o);
#pragma unroll 1
  for (int32_t k = from; k <= to; ++k) {
    opmath_t weight = weights[k];
#pragma unroll
    for (int u = 0; u < width; ++u) sums[u] = fma_rn(weight, values[u], sums[u]);
  }
}

template <int width, typename in_t, typename opmath_t>
static __device__ __forceinline__ void load(const in_t* source, int32_t step, int active,
                                            opmath_t (&values)[width]) {
#pragma unroll
  for (int u = 0; u < width; ++u) {
    values[u] = u < active ? to_opmath(source[u * step]) : opmath_t(0);
  }
}

// The same of neighbours, which are read at once.
template <int width, typename in_t, typename opmath_t>
static __device__ __forceinline__ void load(const pack_of<in_t, width>* source, int32_t, int,
                                            opmath_t (&values)[width]) {
  pack_of<in_t, width> pack = *source;
#pragma unroll
  for (int u = 0; u < width; ++u) values[u] = to_opmath(pack.lane[u]);
}

// Adds to sums[u], for u < active, what reaches the owned position in `dims` dimensions from the
// output positions [low, high] of the last one, axes[0]. Order: positions ascending, the last
// dimension outermost, each dimension summed on its own; it depends on the sizes alone. `source` is
// at position `low`, `stride` the distance of the next one, `step` that of the next sum's.
template <int dims, int width, typename in_t, typename opmath_t>
static __device__ __forceinline__ void gather(const in_t* source, int32_t low, int32_t high,
                                              int64_t stride, int32_t step, int active, bool clamps,
                                              const Axis<opmath_t>* axes, opmath_t (&sums)[width]) {
  const Axis<opmath_t>& axis = axes[0];
  opmath_t values[width];
  bool ends = clamps && (axis.at == 0 || axis.at == axis.in - 1);
  auto add = [&](opmath_t weight) {
#pragma unroll
    for (int u = 0; u < width; ++u) sums[u] = fma_rn(weight, values[u], sums[u]);
  };
  if constexpr (dims > 1) {
    const Axis<opmath_t>& next = axes[1];
    for (int32_t o = low; o <= high; ++o, source += stride) {
#pragma unroll
      for (int u = 0; u < width; ++u) values[u] = opmath_t(0);
      int32_t first = next.low[next.at];
      int64_t plane = stride * axis.out;
      gather<dims - 1, width>(source + first * plane, first, next.high[next.at], plane, step,
                              active, clamps, axes + 1, values);
      if (ends) {
        add_taps<width>(axis, o, clamps, values, sums);
      } else {
        add(*Weights<opmath_t>(axis, o).next());
      }
    }
  } else if (ends) {
    for (int32_t o = low; o <= high; ++o, source += stride) {
      load<width>(source, step, active, values);
      add_taps<width>(axis, o, clamps, values, sums);
    }
  } else {
    // One weight a position: no branch stands between the loads of neighbouring positions.
    Weights<opmath_t> weights(axis, low);
#pragma unroll 4
    for (int32_t o = low; o <= high; ++o, source += stride) {
      load<width>(source, step, active, values);
      add(*weights.next());
    }
  }
}

// The sums of `dims` whole dimensions; with no dimension the element itself.
template <int dims, int width, typename in_t, typename opmath_t>
static __device__ __forceinline__ void gather_all(const in_t* source, int64_t stride, int32_t step,
                                                  int active, bool clamps,
                                                  const Axis<opmath_t>* axes,
                                                  opmath_t (&sums)[width]) {
  if constexpr (dims == 0) {
    load<width>(source, step, active, sums);
  } else {
#pragma unroll
    for (int u = 0; u < width; ++u) sums[u] = opmath_t(0);
    int32_t low = axes[0].low[axes[0].at], high = axes[0].high[axes[0].at];
    gather<dims, width>(source + low * stride, low, high, stride, step, active, clamps, axes, sums);
  }
}

// As `gather_all`, for `rows` neighbouring positions of axes[0], from its `at` on, none of them an
// end of an input that clamps: what is read at an output position serves all that read it.
template <int dims, int rows, int width, typename in_t, typename opmath_t>
static __device__ __forceinline__ void gather_rows(const in_t* source, int64_t stride, int32_t step,
                                                   bool clamps, const Axis<opmath_t>* axes,
                                                   opmath_t (&sums)[rows][width]) {
  const Axis<opmath_t>& axis = axes[0];
  const int32_t *lows = axis.low + axis.at, *highs = axis.high + axis.at;
  int32_t low[rows], high[rows];
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    low[r] = lows[r];
    high[r] = highs[r];
#pragma unroll
    for (int u = 0; u < width; ++u) sums[r][u] = opmath_t(0);
  }
  source += low[0] * stride;
  Weights<opmath_t> weights(axis, low[0]);
  // With a loop inside, unrolling this one takes more registers than there are.
  constexpr int at_once = dims == 1 ? 2 : 1;
#pragma unroll at_once
  for (int32_t o = low[0]; o <= high[rows - 1]; ++o, source += stride) {
    opmath_t values[width];
    gather_all<dims - 1, width>(source, stride * axis.out, step, width, clamps, axes + 1, values);
    const opmath_t* at_o = weights.next();
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if (low[r] <= o && o <= high[r]) {
        opmath_t weight = at_o[r];
#pragma unroll
        for (int u = 0; u < width; ++u) sums[r][u] = fma_rn(weight, values[u], sums[r][u]);
      }
    }
  }
}

// Takes the position in `axis` off the row-major position `rest`, in which it is the last one.
template <typename opmath_t>
static __device__ __forceinline__ void take(Axis<opmath_t>& axis, int64_t& rest) {
  int64_t quotient = quick_div(rest, axis.in);
  axis.at = static_cast<int32_t>(rest - quotient * axis.in);
  rest = quotient;
}

// All of a thread's elements: grad_output is [outer, (d_out, h_out,) w_out, inner], grad_input
// [outer, (d_size, h_size,) w_size, inner]. One thread owns `width` elements of grad_input:
// neighbours in `inner`, read at once, where they are `packed` (aligned, and `inner` a multiple of
// `width`); otherwise as far apart in `inner` as they can be, so that neighbouring threads read
// neighbours.
template <int dims, int width, bool packed, typename in_t, typename out_t>
static __device__ __forceinline__ void gather_elements(const in_t* __restrict__ grad_output,
                                                       out_t* __restrict__ grad_input,
                                                       int64_t outer, int64_t inner, bool clamps,
                                                       Axis<opmath_t<in_t>> (&axes)[3]) {
  using source_t = typename conditional<packed, pack_of<in_t, width>, in_t>::type;
  const source_t* source = reinterpret_cast<const source_t*>(grad_output);
  int64_t hop = ceil_div(inner, width), n = outer * hop;
  int64_t stride = packed ? hop : inner;
  int64_t plane = stride;
#pragma unroll
  for (int a = 0; a < dims; ++a) {
    n *= axes[a].in;
    plane *= axes[a].out;
  }
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t rest = quick_div(i, hop);
    int64_t x = i - rest * hop;
    out_t* target = grad_input + rest * inner + x;
#pragma unroll
    for (int a = 0; a < dims; ++a) take(axes[a], rest);
    int active = 0;
#pragma unroll
    for (int u = 0; u < width; ++u) active += packed || x + u * hop < inner ? 1 : 0;
    opmath_t<in_t> sums[width];
    gather_all<dims, width>(source + rest * plane + x, stride, static_cast<int32_t>(hop), active,
                            clamps, axes, sums);
    // A sum that underflowed to -0 is +0, as where ATen adds it to its zeroed grad_input.
    pack_of<out_t, width> results;
#pragma unroll
    for (int u = 0; u < width; ++u) {
      results.lane[u] = static_cast<out_t>(add_rn(sums[u], opmath_t<in_t>(0)));
      if (!packed && u < active) target[u * hop] = results.lane[u];
    }
    if constexpr (packed) reinterpret_cast<pack_of<out_t, width>*>(grad_input)[i] = results;
  }
}
