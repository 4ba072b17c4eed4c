// The gradient of a maximum over windows: one thread owns elements of grad_input and gathers from
// the windows that hold them and chose them. No two threads write one element, so there are no
// atomics, and the order of threads does not matter.
//
//   gather_chosen<per_thread, index_t>(grad_output, indices, grad_input, shape, covering);
//
// covering(axis, i) gives the windows of an axis (0 for t, 1 for h, 2 for w) that hold the position
// i: window_range, or more of them. Of those, the ones whose index points at the element count.
#pragma once

#include "compensated_sum.cuh"
#include "dtype.cuh"
#include "index_type.cuh"

// Every `step`-th window in [begin, end) of one axis.
template <typename index_t>
struct window_range {
  index_t begin;
  index_t end;
  index_t step;
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

// index_t holds every position in the three tensors, and what `covering` computes.
template <int per_thread, typename index_t, typename scalar_t, typename Covering>
static __device__ __forceinline__ void gather_chosen(const scalar_t* __restrict__ grad_output,
                                                     const int64_t* __restrict__ indices,
                                                     scalar_t* __restrict__ grad_input,
                                                     const pooled_shape& shape, Covering covering) {
  using acc_t = opmath_t<scalar_t>;
  index_t positions = static_cast<index_t>(shape.t_in * shape.h_in * shape.w_in);
  index_t windows = static_cast<index_t>(shape.t_out * shape.h_out * shape.w_out);
  index_t h_in = static_cast<index_t>(shape.h_in), w_in = static_cast<index_t>(shape.w_in);
  index_t h_out = static_cast<index_t>(shape.h_out), w_out = static_cast<index_t>(shape.w_out);
  index_t inner = static_cast<index_t>(shape.inner);
  bool last = inner > 1;
  index_t lanes = last ? static_cast<index_t>(ceil_div(shape.inner, per_thread)) : 1;
  int64_t groups = last ? shape.outer : ceil_div(shape.outer, per_thread);
  index_t in_hop = last ? lanes : positions, out_hop = last ? lanes : windows;
  int64_t n = groups * positions * lanes;
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    index_t pixel = static_cast<index_t>(i), lane = 0;
    if (last) {
      pixel = quotient(pixel, lanes);
      lane = static_cast<index_t>(i) - pixel * lanes;
    }
    index_t group = quotient(pixel, positions);
    index_t position = pixel - group * positions;
    int64_t first = last ? group : static_cast<int64_t>(group) * per_thread;
    int count = 0;
#pragma unroll
    for (int j = 0; j < per_thread; ++j) {
      count += last ? lane + j * lanes < inner : first + j < shape.outer;
    }
    index_t row = quotient(position, w_in);
    index_t frame = shape.t_in == 1 ? 0 : quotient(row, h_in);
    window_range<index_t> ts = covering(0, frame);
    window_range<index_t> hs = covering(1, row - frame * h_in);
    window_range<index_t> ws = covering(2, position - row * w_in);
    int64_t before = first * windows * inner + lane;
    const scalar_t* gradients = grad_output + before;
    const int64_t* chosen = indices + before;
    compensated_sum<acc_t> sums[per_thread] = {};
    // Windows in row-major order: t, then h, then w. Only those that chose this element count.
    for (index_t ot = ts.begin; ot < ts.end; ot += ts.step) {
      for (index_t oh = hs.begin; oh < hs.end; oh += hs.step) {
        index_t line = (ot * h_out + oh) * w_out;
        for (index_t ow = ws.begin; ow < ws.end; ow += ws.step) {
          index_t at = (line + ow) * inner;
          // The loads of one thread do not wait for one another. Zeros change no sum.
          int64_t found[per_thread];
          acc_t values[per_thread];
#pragma unroll
          for (int j = 0; j < per_thread; ++j) {
            found[j] = j < count ? chosen[at + j * out_hop] : -1;
          }
#pragma unroll
          for (int j = 0; j < per_thread; ++j) {
            bool counts = found[j] == position;
            values[j] = counts ? to_opmath(gradients[at + j * out_hop]) : acc_t(0);
          }
#pragma unroll
          for (int j = 0; j < per_thread; ++j) sums[j].add(values[j]);
        }
      }
    }
    scalar_t* target = grad_input + (first * positions + position) * inner + lane;
#pragma unroll
    for (int j = 0; j < per_thread; ++j) {
      if (j < count) target[j * in_hop] = from_opmath<scalar_t>(sums[j].rounded());
    }
  }
}
