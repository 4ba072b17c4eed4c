// Backward of adaptive average pooling: one thread owns grad_input elements and gathers from the
// windows that cover them. No two threads write one element, so there are no atomics.
#include "compensated_sum.cuh"
#include "dtype.cuh"
#include "index_type.cuh"
#include "planes.cuh"

// The positions of an axis of length `to` that overlap position `i` of an axis of length `from`:
// floor(i * to / from) up to ceil((i + 1) * to / from). From output to input this is the window of
// output `i`; from input to output, the outputs whose windows cover input `i`.
template <typename index_t>
static __device__ __forceinline__ index_range<index_t> overlap(index_t i,
                                                               const divisor<index_t>& from,
                                                               const divisor<index_t>& to) {
  if (from.value == to.value) return {i, i + 1};
  return {from.quotient(i * to.value), from.quotient((i + 1) * to.value - 1) + 1};
}

template <typename index_t>
static __device__ __forceinline__ index_t window_size(index_t o, const divisor<index_t>& out,
                                                      const divisor<index_t>& in) {
  index_range<index_t> window = overlap(o, out, in);
  return window.end - window.begin;
}

// One axis, as the launcher describes it: inputs and outputs, each with its magic number.
struct axis_sizes {
  int64_t size, magic;
  int64_t out, out_magic;
};

template <typename index_t>
struct Shape {
  divisor<index_t> t;
  divisor<index_t> h;
  divisor<index_t> w;
  __device__ __forceinline__ index_t numel() const { return t.value * h.value * w.value; }
};

// Writes the elements at `position` (row-major in `in`) of `count` planes. Planes are `in_hop` and
// `out_hop` elements apart, neighbours of one plane `unit` elements. What depends on the position
// alone (ranges, divisors) is computed once for all planes.
template <typename scalar_t, int per_thread, typename index_t>
static __device__ __forceinline__ void gather(const scalar_t* __restrict__ grad_output,
                                              scalar_t* __restrict__ grad_input, index_t count,
                                              index_t out_hop, index_t in_hop, index_t unit,
                                              index_t position, const Shape<index_t>& in,
                                              const Shape<index_t>& out) {
  index_t row = in.w.quotient(position);
  index_t frame = in.h.quotient(row);
  index_range<index_t> ts = overlap(frame, in.t, out.t);
  index_range<index_t> hs = overlap(row - frame * in.h.value, in.h, out.h);
  index_range<index_t> ws = overlap(position - row * in.w.value, in.w, out.w);
  using acc_t = opmath_t<scalar_t>;
  compensated_sum<acc_t> sums[per_thread] = {};
  // Windows in row-major order: t, then h, then w.
  for (index_t ot = ts.begin; ot < ts.end; ++ot) {
    index_t size_t_axis = window_size(ot, out.t, in.t);
    for (index_t oh = hs.begin; oh < hs.end; ++oh) {
      index_t size_th = size_t_axis * window_size(oh, out.h, in.h);
      for (index_t ow = ws.begin; ow < ws.end; ++ow) {
        index_t size = size_th * window_size(ow, out.w, in.w);
        acc_t divisor = static_cast<acc_t>(size);
        acc_t reciprocal = div_rn(static_cast<acc_t>(1), divisor);
        const scalar_t* share = grad_output + ((ot * out.h.value + oh) * out.w.value + ow) * unit;
        acc_t values[per_thread];
        load_planes(share, out_hop, count, acc_t(0), values);
#pragma unroll
        for (int j = 0; j < per_thread; ++j) sums[j].add_share(values[j], divisor, reciprocal);
      }
    }
  }
  acc_t results[per_thread];
#pragma unroll
  for (int j = 0; j < per_thread; ++j) results[j] = sums[j].rounded();
  store_planes(grad_input, in_hop, count, results);
}

// Contiguous: neighbouring threads own neighbouring positions, a thread `per_thread` planes. `n` is
// how many threads have work.
template <typename scalar_t, int per_thread, typename index_t>
__global__ void adaptive_avg_pool_backward(const scalar_t* __restrict__ grad_output,
                                           scalar_t* __restrict__ grad_input, int64_t n,
                                           int64_t planes, axis_sizes t, axis_sizes h, axis_sizes w,
                                           int64_t positions_magic) {
  Shape<index_t> in{{t.size, t.magic}, {h.size, h.magic}, {w.size, w.magic}};
  Shape<index_t> out{{t.out, t.out_magic}, {h.out, h.out_magic}, {w.out, w.out_magic}};
  divisor<index_t> positions(in.numel(), positions_magic);
  index_t windows = out.numel();
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    index_t group = positions.quotient(static_cast<index_t>(i));
    index_t position = static_cast<index_t>(i) - group * positions.value;
    index_t plane = group * per_thread;
    gather<scalar_t, per_thread>(grad_output + plane * windows,
                                 grad_input + plane * positions.value + position,
                                 static_cast<index_t>(planes) - plane, windows, positions.value,
                                 index_t(1), position, in, out);
  }
}

// Channels last, 4-D: neighbouring threads own neighbouring channels, a thread every `lanes`-th
// one.
template <typename scalar_t, int per_thread, typename index_t>
__global__ void adaptive_avg_pool_backward_channels_last(const scalar_t* __restrict__ grad_output,
                                                         scalar_t* __restrict__ grad_input,
                                                         int64_t n, int64_t channels, axis_sizes h,
                                                         axis_sizes w, int64_t one_magic,
                                                         int64_t positions_magic,
                                                         int64_t lane_count, int64_t lanes_magic) {
  Shape<index_t> in{{1, one_magic}, {h.size, h.magic}, {w.size, w.magic}};
  Shape<index_t> out{{1, one_magic}, {h.out, h.out_magic}, {w.out, w.out_magic}};
  divisor<index_t> positions(in.numel(), positions_magic);
  divisor<index_t> lanes(lane_count, lanes_magic);
  index_t unit = static_cast<index_t>(channels);
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    index_t pixel = lanes.quotient(static_cast<index_t>(i));
    index_t lane = static_cast<index_t>(i) - pixel * lanes.value;
    index_t image = positions.quotient(pixel);
    index_t count = 0;
#pragma unroll
    for (int j = 0; j < per_thread; ++j) count += lane + j * lanes.value < unit ? 1 : 0;
    gather<scalar_t, per_thread>(grad_output + image * out.numel() * unit + lane,
                                 grad_input + pixel * unit + lane, count, lanes.value, lanes.value,
                                 unit, pixel - image * positions.value, in, out);
  }
}
