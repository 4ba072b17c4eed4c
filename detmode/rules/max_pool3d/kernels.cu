// Backward of 3-D max pooling: a gather over the windows that hold an element and chose it.
#include "chosen_windows.cuh"
#include "pooled_axis.cuh"

// One axis of the pooling. Window `o` has the inputs o * stride - padding + k * dilation, k from 0
// up to `kernel`. Windows that hold one input are multiples of `step` apart.
template <typename index_t>
struct Axis {
  pooled_axis<index_t> windows;
  index_t dilation;
  index_t step;
  __device__ __forceinline__ Axis(int64_t out, int64_t stride, int64_t padding, int64_t dilation,
                                  int64_t step, int64_t stride_magic, int64_t whole, int64_t part)
      : windows(out, padding, stride, stride_magic, whole, part),
        dilation(static_cast<index_t>(dilation)),
        step(static_cast<index_t>(step)) {}
};

// The outputs whose windows hold input `i`: those that reach over it, of which i + padding -
// o * stride is a multiple of the dilation.
template <typename index_t>
static __device__ __forceinline__ window_range<index_t> covering(index_t i,
                                                                 const Axis<index_t>& axis) {
  index_range<index_t> range = axis.windows.covering(i);
  index_t begin = range.begin;
  if (axis.dilation > 1) {
    index_t shifted = i + axis.windows.padding, stride = axis.windows.stride.value;
    while (begin < range.end && (shifted - begin * stride) % axis.dilation != 0) ++begin;
  }
  return {begin, range.end, axis.step};
}

template <typename scalar_t, int per_thread, typename index_t>
__global__ void max_pool3d_backward(
    const scalar_t* __restrict__ grad_output, const int64_t* __restrict__ indices,
    scalar_t* __restrict__ grad_input, int64_t threads, int64_t outer, int64_t inner, int64_t t_in,
    int64_t h_in, int64_t w_in, int64_t t_out, int64_t h_out, int64_t w_out, int64_t t_magic,
    int64_t h_magic, int64_t w_magic, int64_t positions_magic, int64_t lanes, int64_t lanes_magic,
    int64_t t_stride, int64_t h_stride, int64_t w_stride, int64_t t_padding, int64_t h_padding,
    int64_t w_padding, int64_t t_dilation, int64_t h_dilation, int64_t w_dilation, int64_t t_step,
    int64_t h_step, int64_t w_step, int64_t t_stride_magic, int64_t h_stride_magic,
    int64_t w_stride_magic, int64_t t_whole, int64_t h_whole, int64_t w_whole, int64_t t_part,
    int64_t h_part, int64_t w_part) {
  const Axis<index_t> axes[3] = {
      {t_out, t_stride, t_padding, t_dilation, t_step, t_stride_magic, t_whole, t_part},
      {h_out, h_stride, h_padding, h_dilation, h_step, h_stride_magic, h_whole, h_part},
      {w_out, w_stride, w_padding, w_dilation, w_step, w_stride_magic, w_whole, w_part}};
  gather_chosen<per_thread, index_t>(
      grad_output, indices, grad_input,
      {threads, outer, inner, t_in, h_in, w_in, t_out, h_out, w_out, t_magic, h_magic, w_magic,
       positions_magic, lanes, lanes_magic},
      [&](int axis, index_t i) { return covering(i, axes[axis]); });
}
