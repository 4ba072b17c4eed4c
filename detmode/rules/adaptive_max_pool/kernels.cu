// Backward of adaptive max pooling: one thread owns grad_input elements and gathers from the
// windows that cover them and chose them. No two threads write one element, so there are no
// atomics.
#include "compensated_sum.cuh"
#include "dtype.cuh"
#include "index.cuh"

// Outputs [begin, end) of one axis.
struct Range {
  int64_t begin;
  int64_t end;
};

// The outputs whose windows cover input `i`, where window `o` is floor(o * in / out) up to
// ceil((o + 1) * in / out): floor(i * out / in) up to ceil((i + 1) * out / in).
static __device__ __forceinline__ Range covering(int64_t i, int64_t in, int64_t out) {
  if (in == out) return {i, i + 1};
  return {quick_div(i * out, in), quick_div((i + 1) * out - 1, in) + 1};
}

// grad_input is (outer, t_in, h_in, w_in, inner); grad_output and indices are (outer, t_out, h_out,
// w_out, inner). Contiguous tensors have planes as `outer` and 1 as `inner`; a thread serves
// `per_thread` neighbouring planes. Channels last they are batch and channels; a thread serves
// every `lanes`-th channel. Neighbouring threads write neighbouring elements.
template <typename scalar_t, int per_thread>
__global__ void adaptive_max_pool_backward(const scalar_t* __restrict__ grad_output,
                                           const int64_t* __restrict__ indices,
                                           scalar_t* __restrict__ grad_input, int64_t outer,
                                           int64_t inner, int64_t t_in, int64_t h_in, int64_t w_in,
                                           int64_t t_out, int64_t h_out, int64_t w_out) {
  int64_t positions = t_in * h_in * w_in;
  int64_t windows = t_out * h_out * w_out;
  bool last = inner > 1;
  int64_t lanes = last ? ceil_div(inner, per_thread) : 1;
  int64_t groups = last ? outer : ceil_div(outer, per_thread);
  int64_t n = groups * positions * lanes;
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t pixel = last ? quick_div(i, lanes) : i;
    int64_t lane = i - pixel * lanes;
    int64_t group = quick_div(pixel, positions);
    int64_t position = pixel - group * positions;
    int64_t first = last ? group : group * per_thread;
    int64_t count =
        last ? quick_div(inner - lane - 1, lanes) + 1 : min_index(outer - first, per_thread);
    int64_t in_hop = last ? lanes : positions;
    int64_t out_hop = last ? lanes : windows;
    int64_t row = quick_div(position, w_in);
    int64_t frame = t_in == 1 ? 0 : quick_div(row, h_in);
    Range ts = covering(frame, t_in, t_out);
    Range hs = covering(row - frame * h_in, h_in, h_out);
    Range ws = covering(position - row * w_in, w_in, w_out);
    compensated_sum<opmath_t<scalar_t>> sums[per_thread] = {};
    // Windows in row-major order: t, then h, then w. Only those that chose this element count.
    for (int64_t ot = ts.begin; ot < ts.end; ++ot) {
      for (int64_t oh = hs.begin; oh < hs.end; ++oh) {
        for (int64_t ow = ws.begin; ow < ws.end; ++ow) {
          int64_t window = (ot * h_out + oh) * w_out + ow;
          int64_t at = (first * windows + window) * inner + lane;
#pragma unroll
          for (int j = 0; j < per_thread; ++j) {
            if (j < count && indices[at + j * out_hop] == position) {
              sums[j].add(to_opmath(grad_output[at + j * out_hop]));
            }
          }
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
