// Backward of fractional max pooling: a gather over the regions that may hold an element.
#include "chosen_windows.cuh"

// One axis of the pooling. The forward lets region `o` begin at
// trunc((o + u) * a) - trunc(u * a), a = (in - kernel) / (out - 1), with a random u that the
// backward does not get: less than one position from o * a, but for the rounding of floats.
struct Axis {
  int64_t in;
  int64_t out;
  int64_t kernel;
};

// The regions that may hold position `i`: those with o * a - margin <= i and
// i < o * a + margin + kernel. The margin is 3/2, and 2^-20 of the axis more: the forward rounds
// three times in float.
static __device__ __forceinline__ window_range covering(int64_t i, const Axis& axis) {
  int64_t slack = axis.in - axis.kernel;
  if (axis.out == 1 || slack <= 0) return {0, axis.out, 1};
  // In halves of a position.
  int64_t margin = 3 + (axis.in >> 19);
  int64_t gaps = axis.out - 1;
  int64_t low = (2 * (i - axis.kernel + 1) - margin) * gaps, high = (2 * i + margin) * gaps;
  int64_t begin = low <= 0 ? 0 : quick_div(low - 1, 2 * slack) + 1;
  return {begin, min_index(quick_div(high, 2 * slack) + 1, axis.out), 1};
}
static __device__ __forceinline__ bool holds(const window_range& range, int64_t o) {
  return range.begin <= o && o < range.end;
}

// strays[0] = 1 where a region chose an element that the gather would not look for it at: the index
// is not from the forward. indices are [planes, t_out, h_out, w_out].
__global__ void fractional_max_pool_strays(const int64_t* __restrict__ indices,
                                           int64_t* __restrict__ strays, int64_t n, int64_t t_in,
                                           int64_t h_in, int64_t w_in, int64_t t_out, int64_t h_out,
                                           int64_t w_out, int64_t t_kernel, int64_t h_kernel,
                                           int64_t w_kernel) {
  const int64_t out[4] = {0, t_out, h_out, w_out}, in[3] = {t_in, h_in, w_in};
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t index = indices[i], region[4], position[3];
    DETMODE_ASSERT(index >= 0 && index < t_in * h_in * w_in);
    unravel<4>(i, out, region);
    unravel<3>(index, in, position);
    bool found = holds(covering(position[0], {t_in, t_out, t_kernel}), region[1]) &&
                 holds(covering(position[1], {h_in, h_out, h_kernel}), region[2]) &&
                 holds(covering(position[2], {w_in, w_out, w_kernel}), region[3]);
    if (!found) atomic_max(strays, int64_t(1));
  }
}

// With strays every element looks at all regions of its plane.
template <typename scalar_t, int per_thread>
__global__ void fractional_max_pool_backward(const scalar_t* __restrict__ grad_output,
                                             const int64_t* __restrict__ indices,
                                             scalar_t* __restrict__ grad_input, int64_t outer,
                                             int64_t inner, int64_t t_in, int64_t h_in,
                                             int64_t w_in, int64_t t_out, int64_t h_out,
                                             int64_t w_out, int64_t t_kernel, int64_t h_kernel,
                                             int64_t w_kernel, const int64_t* __restrict__ strays) {
  bool everywhere = strays[0] != 0;
  const Axis axes[3] = {{t_in, t_out, t_kernel}, {h_in, h_out, h_kernel}, {w_in, w_out, w_kernel}};
  gather_chosen<per_thread>(grad_output, indices, grad_input,
                            {outer, inner, t_in, h_in, w_in, t_out, h_out, w_out},
                            [&](int axis, int64_t i) -> window_range {
                              if (everywhere) return {0, axes[axis].out, 1};
                              return covering(i, axes[axis]);
                            });
}
