// Backward of adaptive average pooling: one thread owns grad_input elements and gathers from the
// windows that cover them. No two threads write one element, so there are no atomics.
#include "chosen_windows.cuh"

// The positions of an axis of length `to` that overlap position `i` of an axis of length `from`:
// floor(i * to / from) up to ceil((i + 1) * to / from). From output to input this is the window of
// output `i`; from input to output, the outputs whose windows cover input `i`.
template <typename index_t>
static __device__ __forceinline__ index_range<index_t> overlap(index_t i,
                                                               const divisor<index_t>& from,
                                                               const divisor<index_t>& to) {
  if (from.value == to.value) return {i, i + 1};
  return {from.quotient(i * to.value), from.quotient((i + 1) * to.value - 1) + 1};
}

template <typename index_t>
static __device__ __forceinline__ index_t window_size(index_t o, const divisor<index_t>& out,
                                                      const divisor<index_t>& in) {
  index_range<index_t> window = overlap(o, out, in);
  return window.end - window.begin;
}

// The magic numbers of the sizes out.
struct out_magics {
  int64_t t, h, w;
};

template <typename scalar_t, int per_thread, typename index_t>
__global__ void adaptive_avg_pool_backward(const scalar_t* __restrict__ grad_output,
                                           scalar_t* __restrict__ grad_input, pooled_shape shape,
                                           out_magics magics) {
  using acc_t = opmath_t<scalar_t>;
  divisor<index_t> t_in(shape.t_in, shape.t_magic), t_out(shape.t_out, magics.t);
  divisor<index_t> h_in(shape.h_in, shape.h_magic), h_out(shape.h_out, magics.h);
  divisor<index_t> w_in(shape.w_in, shape.w_magic), w_out(shape.w_out, magics.w);
  for_each_owned<per_thread, index_t>(shape, [&](const owned_position<index_t>& owned) {
    index_range<index_t> ts = overlap(owned.t, t_in, t_out);
    index_range<index_t> hs = overlap(owned.h, h_in, h_out);
    index_range<index_t> ws = overlap(owned.w, w_in, w_out);
    compensated_sum<acc_t> sums[per_thread] = {};
    // Windows in row-major order: t, then h, then w. Their sizes serve all planes.
    for (index_t ot = ts.begin; ot < ts.end; ++ot) {
      index_t size_t_axis = window_size(ot, t_out, t_in);
      for (index_t oh = hs.begin; oh < hs.end; ++oh) {
        index_t size_th = size_t_axis * window_size(oh, h_out, h_in);
        for (index_t ow = ws.begin; ow < ws.end; ++ow) {
          acc_t divisor = static_cast<acc_t>(size_th * window_size(ow, w_out, w_in));
          acc_t reciprocal = div_rn(static_cast<acc_t>(1), divisor);
          index_t window = (ot * h_out.value + oh) * w_out.value + ow;
          acc_t values[per_thread];
          load_planes(grad_output + owned.windows + window * owned.inner, owned.out_hop,
                      owned.count, acc_t(0), values);
#pragma unroll
          for (int j = 0; j < per_thread; ++j) sums[j].add_share(values[j], divisor, reciprocal);
        }
      }
    }
    acc_t results[per_thread];
#pragma unroll
    for (int j = 0; j < per_thread; ++j) results[j] = sums[j].rounded();
    store_planes(grad_input + owned.element, owned.in_hop, owned.count, results);
  });
}
