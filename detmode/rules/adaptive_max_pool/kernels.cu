// Backward of adaptive max pooling: a gather over the windows that hold an element and chose it.
#include "chosen_windows.cuh"

// The outputs whose windows cover input `i`, where window `o` is floor(o * in / out) up to
// ceil((o + 1) * in / out): floor(i * out / in) up to ceil((i + 1) * out / in).
template <typename index_t>
static __device__ __forceinline__ window_range<index_t> covering(index_t i,
                                                                 const divisor<index_t>& in,
                                                                 index_t out) {
  if (in.value == out) return {i, i + 1, 1};
  return {in.quotient(i * out), in.quotient((i + 1) * out - 1) + 1, 1};
}

// The windows of every axis.
template <typename index_t>
struct Pooling {
  divisor<index_t> in[3];
  index_t out[3];
  __device__ __forceinline__ explicit Pooling(const pooled_shape& shape)
      : in{{shape.t_in, shape.t_magic}, {shape.h_in, shape.h_magic}, {shape.w_in, shape.w_magic}},
        out{static_cast<index_t>(shape.t_out), static_cast<index_t>(shape.h_out),
            static_cast<index_t>(shape.w_out)} {}
  __device__ __forceinline__ window_range<index_t> operator()(int axis, index_t i) const {
    return covering(i, in[axis], out[axis]);
  }
};

template <typename scalar_t, int per_thread, typename index_t>
__global__ void adaptive_max_pool_backward(const scalar_t* __restrict__ grad_output,
                                           const int64_t* __restrict__ indices,
                                           scalar_t* __restrict__ grad_input, pooled_shape shape) {
  gather_chosen<per_thread, index_t>(grad_output, indices, grad_input, shape,
                                     Pooling<index_t>(shape));
}

// Of windows that choose few elements.
template <typename scalar_t, typename index_t>
__global__ void adaptive_max_pool_few(const scalar_t* __restrict__ grad_output,
                                      const int64_t* __restrict__ indices,
                                      scalar_t* __restrict__ grad_input, pooled_shape shape,
                                      int64_t windows_magic) {
  write_chosen<index_t>(grad_output, indices, grad_input, shape, windows_magic,
                        Pooling<index_t>(shape));
}
