// Backward of 3-D max pooling: a gather over the windows that hold an element and chose it.
#include "chosen_windows.cuh"

// One axis of the pooling. Window `o` has the inputs o * stride - padding + k * dilation, k from 0
// up to `kernel`. Windows that hold one input are multiples of `step` apart.
template <typename index_t>
struct Axis {
  index_t out;
  index_t stride;
  index_t padding;
  index_t dilation;
  index_t step;
  index_t reach;
  __device__ __forceinline__ Axis(int64_t out, int64_t kernel, int64_t stride, int64_t padding,
                                  int64_t dilation, int64_t step)
      : out(static_cast<index_t>(out)),
        stride(static_cast<index_t>(stride)),
        padding(static_cast<index_t>(padding)),
        dilation(static_cast<index_t>(dilation)),
        step(static_cast<index_t>(step)),
        reach(static_cast<index_t>((kernel - 1) * dilation)) {}
};

// The outputs whose windows hold input `i`: i + padding - o * stride is a multiple of the dilation
// between 0 and the reach, (kernel - 1) * dilation. Empty where the stride is wider than the
// window.
template <typename index_t>
static __device__ __forceinline__ window_range<index_t> covering(index_t i,
                                                                 const Axis<index_t>& axis) {
  index_t shifted = i + axis.padding;
  index_t begin = shifted <= axis.reach ? 0 : quotient(shifted - axis.reach - 1, axis.stride) + 1;
  index_t end = least(quotient(shifted, axis.stride) + 1, axis.out);
  if (axis.dilation > 1) {
    while (begin < end && (shifted - begin * axis.stride) % axis.dilation != 0) ++begin;
  }
  return {begin, end, axis.step};
}

template <typename scalar_t, int per_thread, typename index_t>
__global__ void max_pool3d_backward(
    const scalar_t* __restrict__ grad_output, const int64_t* __restrict__ indices,
    scalar_t* __restrict__ grad_input, int64_t outer, int64_t inner, int64_t t_in, int64_t h_in,
    int64_t w_in, int64_t t_out, int64_t h_out, int64_t w_out, int64_t t_kernel, int64_t h_kernel,
    int64_t w_kernel, int64_t t_stride, int64_t h_stride, int64_t w_stride, int64_t t_padding,
    int64_t h_padding, int64_t w_padding, int64_t t_dilation, int64_t h_dilation,
    int64_t w_dilation, int64_t t_step, int64_t h_step, int64_t w_step) {
  const Axis<index_t> axes[3] = {{t_out, t_kernel, t_stride, t_padding, t_dilation, t_step},
                                 {h_out, h_kernel, h_stride, h_padding, h_dilation, h_step},
                                 {w_out, w_kernel, w_stride, w_padding, w_dilation, w_step}};
  gather_chosen<per_thread, index_t>(grad_output, indices, grad_input,
                                     {outer, inner, t_in, h_in, w_in, t_out, h_out, w_out},
                                     [&](int axis, index_t i) { return covering(i, axes[axis]); });
}
