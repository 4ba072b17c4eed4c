// The gradient of a maximum over windows: one thread owns elements of grad_input and gathers from
// the windows that hold them and chose them. No two threads write one element, so there are no
// atomics, and the order of threads does not matter.
//
//   gather_chosen<per_thread, index_t>(grad_output, indices, grad_input, shape, covering);
//
//   write_chosen<index_t>(grad_output, indices, grad_input, shape, windows_magic, covering);
//
// covering(axis, i) gives the windows of an axis (0 for t, 1 for h, 2 for w) that hold the position
// i: window_range, or more of them. Of those, the ones whose index points at the element count.
#pragma once

#include "compensated_sum.cuh"
#include "dtype.cuh"
#include "index_type.cuh"
#include "planes.cuh"

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
//
// `threads` is how many threads have work; `lanes` is 1 where `inner` is. The magic numbers are
// those of the sizes in, of their product and of the lanes.
struct pooled_shape {
  int64_t threads;
  int64_t outer, inner;
  int64_t t_in, h_in, w_in;
  int64_t t_out, h_out, w_out;
  int64_t t_magic, h_magic, w_magic;
  int64_t positions_magic;
  int64_t lanes_magic, lanes;
};

// What one thread owns: a position of the input, in `count` planes or channels. Its first window
// and its first element lie at `windows` and `element`, those of the next plane a hop behind them;
// neighbours in a plane are `inner` elements apart.
template <typename index_t>
struct owned_position {
  index_t t, h, w;
  index_t position;
  index_t windows, element;
  index_t in_hop, out_hop;
  index_t count, inner;
};

// Calls visit(owned_position) for what this thread owns; index_t holds every position.
template <int per_thread, typename index_t, typename Visit>
static __device__ __forceinline__ void for_each_owned(const pooled_shape& shape, Visit visit) {
  bool last = shape.inner > 1;
  divisor<index_t> positions(shape.t_in * shape.h_in * shape.w_in, shape.positions_magic);
  divisor<index_t> height(shape.h_in, shape.h_magic), width(shape.w_in, shape.w_magic);
  divisor<index_t> lanes(shape.lanes, shape.lanes_magic);
  index_t windows = static_cast<index_t>(shape.t_out * shape.h_out * shape.w_out);
  index_t outer = static_cast<index_t>(shape.outer), inner = static_cast<index_t>(shape.inner);
  index_t in_hop = last ? lanes.value : positions.value, out_hop = last ? lanes.value : windows;
  for (int64_t i = thread_index(); i < shape.threads; i += thread_count()) {
    index_t pixel = lanes.quotient(static_cast<index_t>(i));
    index_t lane = static_cast<index_t>(i) - pixel * lanes.value;
    index_t group = positions.quotient(pixel);
    index_t position = pixel - group * positions.value;
    index_t first = last ? group : group * per_thread;
    // Planes, or channels `lanes` apart.
    index_t count = last ? lanes.quotient(inner - lane - 1) + 1 : outer - first;
    index_t row = width.quotient(position);
    index_t frame = height.quotient(row);
    visit(owned_position<index_t>{frame, row - frame * height.value, position - row * width.value,
                                  position, first * windows * inner + lane,
                                  (first * positions.value + position) * inner + lane, in_hop,
                                  out_hop, count, inner});
  }
}

// Whether an index, of any value, is a position that is not negative: in 32 bits without a
// comparison of 64.
static __device__ __forceinline__ bool points_at(int64_t index, int32_t position) {
  uint64_t bits = static_cast<uint64_t>(index);
  return ((static_cast<uint32_t>(bits) ^ static_cast<uint32_t>(position)) |
          static_cast<uint32_t>(bits >> 32)) == 0;
}
static __device__ __forceinline__ bool points_at(int64_t index, int64_t position) {
  return index == position;
}

// index_t also holds what `covering` computes. Returns how many windows this thread added.
template <int per_thread, typename index_t, typename scalar_t, typename Covering>
static __device__ __forceinline__ index_t gather_chosen(const scalar_t* __restrict__ grad_output,
                                                        const int64_t* __restrict__ indices,
                                                        scalar_t* __restrict__ grad_input,
                                                        const pooled_shape& shape,
                                                        Covering covering) {
  using acc_t = opmath_t<scalar_t>;
  index_t h_out = static_cast<index_t>(shape.h_out), w_out = static_cast<index_t>(shape.w_out);
  index_t added = 0;
  for_each_owned<per_thread, index_t>(shape, [&](const owned_position<index_t>& owned) {
    window_range<index_t> ts = covering(0, owned.t);
    window_range<index_t> hs = covering(1, owned.h);
    window_range<index_t> ws = covering(2, owned.w);
    compensated_sum<acc_t> sums[per_thread] = {};
    // Windows in row-major order: t, then h, then w. Only those that chose this element count.
    for (index_t ot = ts.begin; ot < ts.end; ot += ts.step) {
      for (index_t oh = hs.begin; oh < hs.end; oh += hs.step) {
        index_t line = (ot * h_out + oh) * w_out;
        for (index_t ow = ws.begin; ow < ws.end; ow += ws.step) {
          index_t at = owned.windows + (line + ow) * owned.inner;
          const scalar_t* gradient = grad_output + at;
          int64_t chosen[per_thread];
          acc_t values[per_thread];
          load_planes(indices + at, owned.out_hop, owned.count, int64_t(-1), chosen);
          // Zeros change no sum.
#pragma unroll
          for (int j = 0; j < per_thread; ++j, gradient += owned.out_hop) {
            values[j] = acc_t(0);
            if (points_at(chosen[j], owned.position)) {
              values[j] = to_opmath(*gradient);
              ++added;
            }
          }
#pragma unroll
          for (int j = 0; j < per_thread; ++j) sums[j].add(values[j]);
        }
      }
    }
    acc_t results[per_thread];
#pragma unroll
    for (int j = 0; j < per_thread; ++j) results[j] = sums[j].rounded();
    store_planes(grad_input + owned.element, owned.in_hop, owned.count, results);
  });
  return added;
}

// gather_chosen where windows are large, so that they choose few elements: grad_input is zeros, and
// a thread has a window. The first one that chose an element, in row-major order, adds up all that
// did, in that order, and writes. `threads` is how many windows there are, `lanes` is `inner`, and
// `windows_magic` is of a plane's windows.
template <typename index_t, typename scalar_t, typename Covering>
static __device__ __forceinline__ void write_chosen(const scalar_t* __restrict__ grad_output,
                                                    const int64_t* __restrict__ indices,
                                                    scalar_t* __restrict__ grad_input,
                                                    const pooled_shape& shape,
                                                    int64_t windows_magic, Covering covering) {
  using acc_t = opmath_t<scalar_t>;
  divisor<index_t> height(shape.h_in, shape.h_magic), width(shape.w_in, shape.w_magic);
  divisor<index_t> windows(shape.t_out * shape.h_out * shape.w_out, windows_magic);
  divisor<index_t> lanes(shape.lanes, shape.lanes_magic);
  index_t h_out = static_cast<index_t>(shape.h_out), w_out = static_cast<index_t>(shape.w_out);
  uint64_t positions = static_cast<uint64_t>(shape.t_in * shape.h_in * shape.w_in);
  for (int64_t i = thread_index(); i < shape.threads; i += thread_count()) {
    int64_t chosen = indices[i];
    if (static_cast<uint64_t>(chosen) >= positions) continue;
    index_t window = static_cast<index_t>(i), pixel = lanes.quotient(window);
    index_t lane = window - pixel * lanes.value, outer = windows.quotient(pixel);
    index_t position = static_cast<index_t>(chosen), row = width.quotient(position);
    index_t frame = height.quotient(row);
    window_range<index_t> ts = covering(0, frame);
    window_range<index_t> hs = covering(1, row - frame * height.value);
    window_range<index_t> ws = covering(2, position - row * width.value);
    index_t first = -1;
    compensated_sum<acc_t> sum = {};
    for (index_t ot = ts.begin; ot < ts.end; ot += ts.step) {
      for (index_t oh = hs.begin; oh < hs.end; oh += hs.step) {
        index_t line = outer * windows.value + (ot * h_out + oh) * w_out;
        for (index_t ow = ws.begin; ow < ws.end; ow += ws.step) {
          index_t at = (line + ow) * lanes.value + lane;
          if (indices[at] != chosen) continue;
          if (first < 0) first = at;
          if (first == window) sum.add(to_opmath(grad_output[at]));
        }
      }
    }
    if (first != window) continue;
    int64_t element = (outer * static_cast<int64_t>(positions) + position) * shape.lanes + lane;
    grad_input[element] = from_opmath<scalar_t>(sum.rounded());
  }
}
