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
  __device__ __forceinline__ Axis(const pooling_window& window, int64_t out)
      : windows(window, out),
        dilation(static_cast<index_t>(window.dilation)),
        step(static_cast<index_t>(window.step)) {}
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

// The windows of every axis.
template <typename index_t>
struct Pooling {
  Axis<index_t> axes[3];
  __device__ __forceinline__ Pooling(const pooled_shape& shape, const pooling_window& t,
                                     const pooling_window& h, const pooling_window& w)
      : axes{{t, shape.t_out}, {h, shape.h_out}, {w, shape.w_out}} {}
  __device__ __forceinline__ window_range<index_t> operator()(int axis, index_t i) const {
    return covering(i, axes[axis]);
  }
};

template <typename scalar_t, int per_thread, typename index_t>
__global__ void max_pool3d_backward(const scalar_t* __restrict__ grad_output,
                                    const int64_t* __restrict__ indices,
                                    scalar_t* __restrict__ grad_input, pooled_shape shape,
                                    pooling_window t, pooling_window h, pooling_window w) {
  gather_chosen<per_thread, index_t>(grad_output, indices, grad_input, shape,
                                     Pooling<index_t>(shape, t, h, w));
}

// Of windows that choose few elements.
template <typename scalar_t, typename index_t>
__global__ void max_pool3d_few(const scalar_t* __restrict__ grad_output,
                               const int64_t* __restrict__ indices,
                               scalar_t* __restrict__ grad_input, pooled_shape shape,
                               int64_t windows_magic, pooling_window t, pooling_window h,
                               pooling_window w) {
  write_chosen<index_t>(grad_output, indices, grad_input, shape, windows_magic,
                        Pooling<index_t>(shape, t, h, w));
}
