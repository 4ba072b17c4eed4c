// The gradient of a maximum over windows: one thread owns elements of grad_input and gathers from
// the windows that hold them and chose them. No two threads write one element, so there are no
// atomics, and the order of threads does not matter.
//
//   gather_chosen<per_thread, index_t>(grad_output, indices, grad_input, shape, covering);
//
//   gather_few_chosen<columns, index_t>(grad_output, indices, grad_input, shape, covering);
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

// Whether an index points at one of `n` positions from `first` on; `offset` is by how many.
template <int n>
static __device__ __forceinline__ bool within(int64_t index, int32_t first, int32_t& offset) {
  uint64_t bits = static_cast<uint64_t>(index);
  offset = static_cast<int32_t>(static_cast<uint32_t>(bits) - static_cast<uint32_t>(first));
  return (static_cast<uint32_t>(offset) / n | static_cast<uint32_t>(bits >> 32)) == 0;
}
template <int n>
static __device__ __forceinline__ bool within(int64_t index, int64_t first, int64_t& offset) {
  offset = index - first;
  return offset >= 0 && offset < n;
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

// gather_chosen where windows are large, so that they choose few elements: a thread owns `columns`
// neighbours along w, which it writes at once, in every `apart`-th plane, and reads an index once
// for all of them. The tensors are contiguous; a row has `lanes` times `columns` elements. Of a
// later position, `covering` gives no earlier windows, and it leaves none out between them.
template <int columns, typename index_t, typename scalar_t, typename Covering>
static __device__ __forceinline__ void gather_few_chosen(const scalar_t* __restrict__ grad_output,
                                                         const int64_t* __restrict__ indices,
                                                         scalar_t* __restrict__ grad_input,
                                                         const pooled_shape& shape, int64_t apart,
                                                         Covering covering) {
  using acc_t = opmath_t<scalar_t>;
  using pack_t = pack_of<scalar_t, columns>;
  divisor<index_t> depth(shape.t_in, shape.t_magic), height(shape.h_in, shape.h_magic);
  divisor<index_t> lanes(shape.lanes, shape.lanes_magic);
  index_t t_out = static_cast<index_t>(shape.t_out);
  index_t h_out = static_cast<index_t>(shape.h_out), w_out = static_cast<index_t>(shape.w_out);
  index_t outer = static_cast<index_t>(shape.outer), hop = static_cast<index_t>(apart);
  for (int64_t i = thread_index(); i < shape.threads; i += thread_count()) {
    index_t row = lanes.quotient(static_cast<index_t>(i));
    index_t frame = height.quotient(row);
    index_t plane = depth.quotient(frame);
    index_t w = (static_cast<index_t>(i) - row * lanes.value) * columns;
    index_t rows = depth.value * height.value;
    index_t position = (row - plane * rows) * lanes.value * columns + w;
    window_range<index_t> ts = covering(0, frame - plane * depth.value);
    window_range<index_t> hs = covering(1, row - frame * height.value);
    index_t begin = covering(2, w).begin, end = covering(2, w + columns - 1).end;
    for (; plane < outer; plane += hop) {
      compensated_sum<acc_t> sums[columns] = {};
      pack_t results = {};
      bool chosen = false;
      for (index_t ot = ts.begin; ot < ts.end; ++ot) {
        for (index_t oh = hs.begin; oh < hs.end; ++oh) {
          index_t line = ((plane * t_out + ot) * h_out + oh) * w_out;
#pragma unroll 1
          for (index_t ow = begin; ow < end; ++ow) {
            index_t column;
            if (!within<columns>(indices[line + ow], position, column)) continue;
            window_range<index_t> holding = covering(2, w + column);
            if (ow < holding.begin || ow >= holding.end) continue;
            acc_t value = to_opmath(grad_output[line + ow]);
            chosen = true;
#pragma unroll
            for (int j = 0; j < columns; ++j) sums[j].add(j == column ? value : acc_t(0));
          }
        }
      }
      if (chosen) {
#pragma unroll
        for (int j = 0; j < columns; ++j) {
          results.lane[j] = from_opmath<scalar_t>(sums[j].rounded());
        }
      }
      index_t element = plane * rows * lanes.value * columns + position;
      *reinterpret_cast<pack_t*>(grad_input + element) = results;
    }
  }
}
