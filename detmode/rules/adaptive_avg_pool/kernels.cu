// Backward of adaptive average pooling: one thread owns grad_input elements and gathers from the
// windows that cover them. No two threads write one element, so there are no atomics.
#include "compensated_sum.cuh"
#include "dtype.cuh"
#include "index_type.cuh"

// Positions [begin, end) of one axis.
template <typename index_t>
struct Range {
  index_t begin;
  index_t end;
};

// The positions of an axis of length `to` that overlap position `i` of an axis of length `from`:
// floor(i * to / from) up to ceil((i + 1) * to / from). From output to input this is the window of
// output `i`; from input to output, the outputs whose windows cover input `i`.
template <typename index_t>
static __device__ __forceinline__ Range<index_t> overlap(index_t i, index_t from, index_t to) {
  if (from == to) return {i, i + 1};
  return {quotient(i * to, from), quotient((i + 1) * to - 1, from) + 1};
}

template <typename index_t>
static __device__ __forceinline__ index_t window_size(index_t o, index_t out, index_t in) {
  Range<index_t> window = overlap(o, out, in);
  return window.end - window.begin;
}

template <typename index_t>
struct Shape {
  index_t t;
  index_t h;
  index_t w;
  __device__ __forceinline__ Shape(int64_t t, int64_t h, int64_t w)
      : t(static_cast<index_t>(t)), h(static_cast<index_t>(h)), w(static_cast<index_t>(w)) {}
  __device__ __forceinline__ index_t numel() const { return t * h * w; }
};

// Writes the elements at `position` (row-major in `in`) of `count` planes. Planes are `in_hop` and
// `out_hop` elements apart, neighbours of one plane `unit` elements. What depends on the position
// alone (ranges, divisors) is computed once for all planes.
template <typename scalar_t, int per_thread, typename index_t>
static __device__ __forceinline__ void gather(const scalar_t* __restrict__ grad_output,
                                              scalar_t* __restrict__ grad_input, int count,
                                              index_t out_hop, index_t in_hop, index_t unit,
                                              index_t position, const Shape<index_t>& in,
                                              const Shape<index_t>& out) {
  index_t row = quotient(position, in.w);
  index_t frame = in.t == 1 ? 0 : quotient(row, in.h);
  Range<index_t> ts = overlap(frame, in.t, out.t);
  Range<index_t> hs = overlap(row - frame * in.h, in.h, out.h);
  Range<index_t> ws = overlap(position - row * in.w, in.w, out.w);
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
        const scalar_t* share = grad_output + ((ot * out.h + oh) * out.w + ow) * unit;
        // All loads before the first addition, which waits for its own.
        acc_t values[per_thread];
#pragma unroll
        for (int j = 0; j < per_thread; ++j) {
          values[j] = j < count ? to_opmath(share[j * out_hop]) : acc_t(0);
        }
#pragma unroll
        for (int j = 0; j < per_thread; ++j) sums[j].add_share(values[j], divisor, reciprocal);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < per_thread; ++j) {
    if (j < count) grad_input[j * in_hop] = from_opmath<scalar_t>(sums[j].rounded());
  }
}

// Contiguous: neighbouring threads own neighbouring positions, a thread `per_thread` planes.
template <typename scalar_t, int per_thread, typename index_t>
__global__ void adaptive_avg_pool_backward(const scalar_t* __restrict__ grad_output,
                                           scalar_t* __restrict__ grad_input, int64_t planes,
                                           int64_t t_in, int64_t h_in, int64_t w_in, int64_t t_out,
                                           int64_t h_out, int64_t w_out) {
  Shape<index_t> in(t_in, h_in, w_in), out(t_out, h_out, w_out);
  index_t positions = in.numel(), windows = out.numel();
  int64_t n = ceil_div(planes, per_thread) * positions;
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    index_t group = quotient(static_cast<index_t>(i), positions);
    index_t position = static_cast<index_t>(i) - group * positions;
    int64_t plane = static_cast<int64_t>(group) * per_thread;
    gather<scalar_t, per_thread>(grad_output + plane * windows,
                                 grad_input + plane * positions + position,
                                 static_cast<int>(min_index(planes - plane, per_thread)), windows,
                                 positions, index_t(1), position, in, out);
  }
}

// Channels last, 4-D: neighbouring threads own neighbouring channels, a thread every `lanes`-th
// one.
template <typename scalar_t, int per_thread, typename index_t>
__global__ void adaptive_avg_pool_backward_channels_last(const scalar_t* __restrict__ grad_output,
                                                         scalar_t* __restrict__ grad_input,
                                                         int64_t batch, int64_t channels,
                                                         int64_t h_in, int64_t w_in, int64_t h_out,
                                                         int64_t w_out) {
  Shape<index_t> in(1, h_in, w_in), out(1, h_out, w_out);
  index_t positions = in.numel(), unit = static_cast<index_t>(channels);
  index_t lanes = static_cast<index_t>(ceil_div(channels, per_thread));
  int64_t n = batch * positions * lanes;
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    index_t pixel = quotient(static_cast<index_t>(i), lanes);
    index_t lane = static_cast<index_t>(i) - pixel * lanes;
    int64_t image = quotient(pixel, positions);
    int count = 0;
#pragma unroll
    for (int j = 0; j < per_thread; ++j) count += lane + j * lanes < unit ? 1 : 0;
    gather<scalar_t, per_thread>(grad_output + image * out.numel() * channels + lane,
                                 grad_input + pixel * channels + lane, count, lanes, lanes, unit,
                                 pixel - static_cast<index_t>(image) * positions, in, out);
  }
}
