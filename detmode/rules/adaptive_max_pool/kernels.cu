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

template <typename scalar_t, int per_thread, typename index_t>
__global__ void adaptive_max_pool_backward(
    const scalar_t* __restrict__ grad_output, const int64_t* __restrict__ indices,
    scalar_t* __restrict__ grad_input, int64_t threads, int64_t outer, int64_t inner, int64_t t_in,
    int64_t h_in, int64_t w_in, int64_t t_out, int64_t h_out, int64_t w_out, int64_t t_magic,
    int64_t h_magic, int64_t w_magic, int64_t positions_magic, int64_t lanes, int64_t lanes_magic) {
  auto narrow = [](int64_t value) { return static_cast<index_t>(value); };
  const divisor<index_t> in[3] = {{t_in, t_magic}, {h_in, h_magic}, {w_in, w_magic}};
  const index_t out[3] = {narrow(t_out), narrow(h_out), narrow(w_out)};
  gather_chosen<per_thread, index_t>(
      grad_output, indices, grad_input,
      {threads, outer, inner, t_in, h_in, w_in, t_out, h_out, w_out, t_magic, h_magic, w_magic,
       positions_magic, lanes, lanes_magic},
      [&](int axis, index_t i) { return covering(i, in[axis], out[axis]); });
}
