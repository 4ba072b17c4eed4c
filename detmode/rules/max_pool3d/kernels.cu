// Backward of 3-D max pooling: one thread owns grad_input elements and gathers from the windows
// that cover them and chose them. No two threads write one element, so there are no atomics.
#include "compensated_sum.cuh"
#include "dtype.cuh"
#include "index.cuh"

// One axis of the pooling. Window `o` has the inputs o * stride - padding + k * dilation, k from 0
// up to `kernel`. Windows that hold one input are multiples of `step` apart.
struct Axis {
  int64_t out;
  int64_t kernel;
  int64_t stride;
  int64_t padding;
  int64_t dilation;
  int64_t step;
};

// Every `step`-th output in [begin, end) of one axis.
struct Range {
  int64_t begin;
  int64_t end;
};

// The outputs whose windows hold input `i`: i + padding - o * stride is a multiple of the dilation
// between 0 and (kernel - 1) * dilation. Empty where the stride is wider than the window.
static __device__ __forceinline__ Range covering(int64_t i, const Axis& axis) {
  int64_t shifted = i + axis.padding;
  int64_t reach = (axis.kernel - 1) * axis.dilation;
  int64_t begin = shifted <= reach ? 0 : quick_div(shifted - reach - 1, axis.stride) + 1;
  int64_t end = min_index(quick_div(shifted, axis.stride) + 1, axis.out);
  if (axis.dilation > 1) {
    while (begin < end && (shifted - begin * axis.stride) % axis.dilation != 0) ++begin;
  }
  return {begin, end};
}

// grad_input is (outer, t_in, h_in, w_in, inner); grad_output and indices are (outer, t_out, h_out,
// w_out, inner). Contiguous tensors have planes as `outer` and 1 as `inner`; a thread serves
// `per_thread` neighbouring planes. Channels last they are batch and channels; a thread serves
// every `lanes`-th channel. Neighbouring threads write neighbouring elements.
template <typename scalar_t, int per_thread>
__global__ void max_pool3d_backward(
    const scalar_t* __restrict__ grad_output, const int64_t* __restrict__ indices,
    scalar_t* __restrict__ grad_input, int64_t outer, int64_t inner, int64_t t_in, int64_t h_in,
    int64_t w_in, int64_t t_out, int64_t h_out, int64_t w_out, int64_t t_kernel, int64_t h_kernel,
    int64_t w_kernel, int64_t t_stride, int64_t h_stride, int64_t w_stride, int64_t t_padding,
    int64_t h_padding, int64_t w_padding, int64_t t_dilation, int64_t h_dilation,
    int64_t w_dilation, int64_t t_step, int64_t h_step, int64_t w_step) {
  Axis t_axis = {t_out, t_kernel, t_stride, t_padding, t_dilation, t_step};
  Axis h_axis = {h_out, h_kernel, h_stride, h_padding, h_dilation, h_step};
  Axis w_axis = {w_out, w_kernel, w_stride, w_padding, w_dilation, w_step};
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
    int64_t frame = quick_div(row, h_in);
    Range ts = covering(frame, t_axis);
    Range hs = covering(row - frame * h_in, h_axis);
    Range ws = covering(position - row * w_in, w_axis);
    compensated_sum<opmath_t<scalar_t>> sums[per_thread] = {};
    // Windows in row-major order: t, then h, then w. Only those that chose this element count.
    for (int64_t ot = ts.begin; ot < ts.end; ot += t_step) {
      for (int64_t oh = hs.begin; oh < hs.end; oh += h_step) {
        for (int64_t ow = ws.begin; ow < ws.end; ow += w_step) {
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
