// Where each output position of an interpolation reads, and which output positions read an input
// position: computed once for each dimension, so that the gather below it knows no interpolation.
//
// A dimension's table has `weights[out][taps]` and then, as int32, `first[out]`, the input position
// of each output position's first tap (it may lie outside the input), `low[in]` and `high[in]`, the
// first and last output position that read an input position. Tables lie anywhere in one memory.
#pragma once

#include "dtype.cuh"
#include "index.cuh"

// What the launcher says of up to three dimensions, the last one first: the sizes in the input and
// in the output, the most taps that an output position has, where the table begins, in weights, and
// the input positions per output position. An absent dimension has the sizes 0.
struct resized_axes {
  int64_t w_size, w_out, w_taps, w_table;
  double w_scale;
  int64_t h_size, h_out, h_taps, h_table;
  double h_scale;
  int64_t d_size, d_out, d_taps, d_table;
  double d_scale;
};

// One dimension of the forward.
template <typename opmath_t>
struct Resize {
  int64_t in;
  int64_t out;
  int64_t taps;
  int64_t table;
  opmath_t scale;
  bool align_corners;
};

template <typename opmath_t>
static __device__ __forceinline__ opmath_t center_of(int64_t o) {
  return add_rn(static_cast<opmath_t>(o), static_cast<opmath_t>(0.5));
}

// The first and the last output position that read input position i; the last is before the first
// where none does. `interpolation` tells, of an output position, the first and the last input
// position it reads (`span`, both clamped), and its taps (`weigh`, which returns `first`).
template <typename interpolation, typename opmath_t>
static __device__ void find_readers(const Resize<opmath_t>& resize, int64_t i, int32_t& low,
                                    int32_t& high) {
  int64_t begin, end;
  // `begin` and `end` do not decrease with o, whatever the rounding: bisection finds the exact
  // range.
  auto first_from = [&](int64_t low, bool behind) {
    for (int64_t above = resize.out; low < above;) {
      int64_t o = (low + above) / 2;
      interpolation::span(resize, o, begin, end);
      if (behind ? begin > i : end >= i) {
        above = o;
      } else {
        low = o + 1;
      }
    }
    return low;
  };
  int64_t first = first_from(0, false);
  low = static_cast<int32_t>(first);
  high = static_cast<int32_t>(first_from(first, true) - 1);
}

// Does thread `t`'s part of a dimension: the taps of output position t, or the range of input
// position t - out.
template <typename interpolation, typename opmath_t>
static __device__ void write_position(const Resize<opmath_t>& resize, int64_t t, opmath_t* table) {
  int32_t* positions = reinterpret_cast<int32_t*>(table + resize.out * resize.taps);
  if (t < resize.out) {
    positions[t] = static_cast<int32_t>(interpolation::weigh(resize, t, table + t * resize.taps));
  } else {
    find_readers<interpolation>(resize, t - resize.out, positions[t], positions[t + resize.in]);
  }
}

// The dimensions of `resized`, as `write_position` takes them.
template <typename opmath_t>
struct Resizes {
  Resize<opmath_t> of[3];
  __device__ __forceinline__ Resizes(const resized_axes& resized, bool align_corners)
      : of{{resized.w_size, resized.w_out, resized.w_taps, resized.w_table,
            static_cast<opmath_t>(resized.w_scale), align_corners},
           {resized.h_size, resized.h_out, resized.h_taps, resized.h_table,
            static_cast<opmath_t>(resized.h_scale), align_corners},
           {resized.d_size, resized.d_out, resized.d_taps, resized.d_table,
            static_cast<opmath_t>(resized.d_scale), align_corners}} {}
};

// Several dimensions, in any order: thread `first` of `threads` has every `threads`th position.
template <typename interpolation, typename opmath_t>
static __device__ __forceinline__ void write_tables(opmath_t* tables, const resized_axes& resized,
                                                    bool align_corners, int64_t first,
                                                    int64_t threads) {
  const Resizes<opmath_t> resizes(resized, align_corners);
  const Resize<opmath_t>(&dimensions)[3] = resizes.of;
  int64_t n = 0;
  for (const auto& resize : dimensions) n += resize.in + resize.out;
  for (int64_t t = first; t < n; t += threads) {
    int64_t rest = t;
    int i = 0;
    for (; rest >= dimensions[i].in + dimensions[i].out; ++i) {
      rest -= dimensions[i].in + dimensions[i].out;
    }
    write_position<interpolation>(dimensions[i], rest, tables + dimensions[i].table);
  }
}

// A thread for each position, or more.
template <typename interpolation, typename opmath_t>
__global__ void upsample_tables(opmath_t* tables, resized_axes resized, bool align_corners) {
  write_tables<interpolation>(tables, resized, align_corners, thread_index(), thread_count());
}
