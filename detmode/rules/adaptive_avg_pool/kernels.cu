// Backward of adaptive average pooling: one thread owns grad_input elements and gathers from the
// windows that cover them. No two threads write one element, so there are no atomics.
#include "compensated_sum.cuh"
#include "dtype.cuh"
#include "index.cuh"

// Positions [begin, end) of one axis.
struct Range {
  int64_t begin;
  int64_t end;
};

// The positions of an axis of length `to` that overlap position `i` of an axis of length `from`:
// floor(i * to / from) up to ceil((i + 1) * to / from). From output to input this is the window of
// output `i`; from input to output, the outputs whose windows cover input `i`.
static __device__ __forceinline__ Range overlap(int64_t i, int64_t from, int64_t to) {
  if (from == to) return {i, i + 1};
  return {quick_div(i * to, from), quick_div((i + 1) * to - 1, from) + 1};
}

static __device__ __forceinline__ int64_t window_size(int64_t o, int64_t out, int64_t in) {
  Range window = overlap(o, out, in);
  return window.end - window.begin;
}

struct Shape {
  int64_t t;
  int64_t h;
  int64_t w;
  __device__ __forceinline__ int64_t numel() const { return t * h * w; }
};

// Writes the elements at `position` (row-major in `in`) of `count` planes. Planes are `in_hop` and
// `out_hop` elements apart, neighbours of one plane `unit` elements. What depends on the position
// alone (ranges, divisors) is computed once for all planes.
template <typename scalar_t, int per_thread>
static __device__ __forceinline__ void gather(const scalar_t* __restrict__ grad_output,
                                              scalar_t* __restrict__ grad_input, int64_t count,
                                              int64_t out_hop, int64_t in_hop, int64_t unit,
                                              int64_t position, Shape in, Shape out) {
  int64_t row = quick_div(position, in.w);
  int64_t frame = in.t == 1 ? 0 : quick_div(row, in.h);
  Range ts = overlap(frame, in.t, out.t);
  Range hs = overlap(row - frame * in.h, in.h, out.h);
  Range ws = overlap(position - row * in.w, in.w, out.w);
  using acc_t = opmath_t<scalar_t>;
  compensated_sum<acc_t> sums[per_thread] = {};
  // Windows in row-major order: t, then h, then w.
  for (int64_t ot = ts.begin; ot < ts.end; ++ot) {
    int64_t size_t_axis = window_size(ot, out.t, in.t);
    for (int64_t oh = hs.begin; oh < hs.end; ++oh) {
      int64_t size_th = size_t_axis * window_size(oh, out.h, in.h);
      for (int64_t ow = ws.begin; ow < ws.end; ++ow) {
        int64_t size = size_th * window_size(ow, out.w, in.w);
        acc_t divisor = static_cast<acc_t>(size);
        acc_t reciprocal = div_rn(static_cast<acc_t>(1), divisor);
        const scalar_t* share = grad_output + ((ot * out.h + oh) * out.w + ow) * unit;
#pragma unroll
        for (int j = 0; j < per_thread; ++j) {
          if (j < count) sums[j].add_share(to_opmath(share[j * out_hop]), divisor, reciprocal);
        }
      }
    }
  }
#pragma unroll
  for (int j = 0; j < per_thread; ++j) {
    if (j < count) grad_input[j * in_hop] = from_opmath<scalar_t>(sums[j].rounded());
  }
}

// Contiguous: neighbouring threads own neighbouring positions, a thread `per_thread` planes.
template <typename scalar_t, int per_thread>
__global__ void adaptive_avg_pool_backward(const scalar_t* __restrict__ grad_output,
                                           scalar_t* __restrict__ grad_input, int64_t planes,
                                           int64_t t_in, int64_t h_in, int64_t w_in, int64_t t_out,
                                           int64_t h_out, int64_t w_out) {
  Shape in = {t_in, h_in, w_in};
  Shape out = {t_out, h_out, w_out};
  int64_t positions = in.numel();
  int64_t windows = out.numel();
  int64_t n = ceil_div(planes, per_thread) * positions;
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t group = quick_div(i, positions);
    int64_t position = i - group * positions;
    int64_t plane = group * per_thread;
    gather<scalar_t, per_thread>(
        grad_output + plane * windows, grad_input + plane * positions + position,
        min_index(planes - plane, per_thread), windows, positions, 1, position, in, out);
  }
}

// Channels last, 4-D: neighbouring threads own neighbouring channels, a thread every `lanes`-th
// one.
template <typename scalar_t, int per_thread>
__global__ void adaptive_avg_pool_backward_channels_last(const scalar_t* __restrict__ grad_output,
                                                         scalar_t* __restrict__ grad_input,
                                                         int64_t batch, int64_t channels,
                                                         int64_t h_in, int64_t w_in, int64_t h_out,
                                                         int64_t w_out) {
  Shape in = {1, h_in, w_in};
  Shape out = {1, h_out, w_out};
  int64_t positions = in.numel();
  int64_t lanes = ceil_div(channels, per_thread);
  int64_t n = batch * positions * lanes;
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t pixel = quick_div(i, lanes);
    int64_t lane = i - pixel * lanes;
    int64_t image = quick_div(pixel, positions);
    int64_t count = per_thread == 1 ? 1 : quick_div(channels - lane - 1, lanes) + 1;
    gather<scalar_t, per_thread>(grad_output + image * out.numel() * channels + lane,
                                 grad_input + pixel * channels + lane, count, lanes, lanes,
                                 channels, pixel - image * positions, in, out);
  }
}
