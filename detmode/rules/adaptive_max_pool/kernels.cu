// Backward of adaptive max pooling: a gather over the windows that hold an element and chose it.
#include "chosen_windows.cuh"

// The outputs whose windows cover input `i`, where window `o` is floor(o * in / out) up to
// ceil((o + 1) * in / out): floor(i * out / in) up to ceil((i + 1) * out / in).
static __device__ __forceinline__ window_range covering(int64_t i, int64_t in, int64_t out) {
  if (in == out) return {i, i + 1, 1};
  return {quick_div(i * out, in), quick_div((i + 1) * out - 1, in) + 1, 1};
}

template <typename scalar_t, int per_thread>
__global__ void adaptive_max_pool_backward(const scalar_t* __restrict__ grad_output,
                                           const int64_t* __restrict__ indices,
                                           scalar_t* __restrict__ grad_input, int64_t outer,
                                           int64_t inner, int64_t t_in, int64_t h_in, int64_t w_in,
                                           int64_t t_out, int64_t h_out, int64_t w_out) {
  const int64_t in[3] = {t_in, h_in, w_in}, out[3] = {t_out, h_out, w_out};
  gather_chosen<per_thread>(grad_output, indices, grad_input,
                            {outer, inner, t_in, h_in, w_in, t_out, h_out, w_out},
                            [&](int axis, int64_t i) { return covering(i, in[axis], out[axis]); });
}
