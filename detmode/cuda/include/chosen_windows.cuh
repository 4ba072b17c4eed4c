// The gradient of a maximum over windows: one thread owns elements of grad_input and gathers from
// the windows that hold them and chose them. No two threads write one element, so there are no
// atomics, and the order of threads does not matter.
//
//   gather_chosen<per_thread>(grad_output, indices, grad_input, shape, covering);
//
// covering(axis, i) gives the windows of an axis (0 for t, 1 for h, 2 for w) that hold the position
// i: window_range, or more of them. Of those, the ones whose index points at the element count.
#pragma once

#include "compensated_sum.cuh"
#include "dtype.cuh"
#include "index.cuh"

// Every `step`-th window in [begin, end) of one axis.
struct window_range {
  int64_t begin;
  int64_t end;
  int64_t step;
};

// grad_input is (outer, t_in, h_in, w_in, inner); grad_output and indices are (outer, t_out, h_out,
// w_out, inner). Contiguous tensors have planes as `outer` and 1 as `inner`; a thread serves
// `per_thread` neighbouring planes. Channels last they are batch and channels; a thread serves
// every `lanes`-th channel. Neighbouring threads write neighbouring elements.
struct pooled_shape {
  int64_t outer, inner;
  int64_t t_in, h_in, w_in;
  int64_t t_out, h_out, w_out;
};

template <int per_thread, typename scalar_t, typename Covering>
static __device__ __forceinline__ void gather_chosen(const scalar_t* __restrict__ grad_output,
                                                     const int64_t* __restrict__ indices,
                                                     scalar_t* __restrict__ grad_input,
                                                     const pooled_shape& shape, Covering covering) {
  int64_t positions = shape.t_in * shape.h_in * shape.w_in;
  int64_t windows = shape.t_out * shape.h_out * shape.w_out;
  bool last = shape.inner > 1;
  int64_t lanes = last ? ceil_div(shape.inner, per_thread) : 1;
  int64_t groups = last ? shape.outer : ceil_div(shape.outer, per_thread);
  int64_t n = groups * positions * lanes;
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t pixel = last ? quick_div(i, lanes) : i;
    int64_t lane = i - pixel * lanes;
    int64_t group = quick_div(pixel, positions);
    int64_t position = pixel - group * positions;
    int64_t first = last ? group : group * per_thread;
    int64_t count = last ? quick_div(shape.inner - lane - 1, lanes) + 1
                         : min_index(shape.outer - first, per_thread);
    int64_t in_hop = last ? lanes : positions;
    int64_t out_hop = last ? lanes : windows;
    int64_t row = quick_div(position, shape.w_in);
    int64_t frame = shape.t_in == 1 ? 0 : quick_div(row, shape.h_in);
    window_range ts = covering(0, frame);
    window_range hs = covering(1, row - frame * shape.h_in);
    window_range ws = covering(2, position - row * shape.w_in);
    compensated_sum<opmath_t<scalar_t>> sums[per_thread] = {};
    // Windows in row-major order: t, then h, then w. Only those that chose this element count.
    for (int64_t ot = ts.begin; ot < ts.end; ot += ts.step) {
      for (int64_t oh = hs.begin; oh < hs.end; oh += hs.step) {
        for (int64_t ow = ws.begin; ow < ws.end; ow += ws.step) {
          int64_t window = (ot * shape.h_out + oh) * shape.w_out + ow;
          int64_t at = (first * windows + window) * shape.inner + lane;
#pragma unroll
          for (int j = 0; j < per_thread; ++j) {
            if (j < count && indices[at + j * out_hop] == position) {
              sums[j].add(to_opmath(grad_output[at + j * out_hop]));
            }
          }
        }
      }
    }
    scalar_t* target = grad_input + (first * positions + position) * shape.inner + lane;
#pragma unroll
    for (int j = 0; j < per_thread; ++j) {
      if (j < count) target[j * in_hop] = from_opmath<scalar_t>(sums[j].rounded());
    }
  }
}
