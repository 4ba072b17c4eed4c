// Backward of fractional max pooling: a gather over the regions that may hold an element.
#include "block_reduce.cuh"
#include "chosen_windows.cuh"

// The size of a region along each axis, and the magic numbers of what the sizes have beyond it.
struct pooling_regions {
  int64_t t, h, w;
  int64_t t_magic, h_magic, w_magic;
};

// One axis of the pooling.
//
// The forward lets region `o` begin at trunc((o + u) * a) - trunc(u * a),
// a = (size - kernel) / (out - 1), with a random u that the backward does not get: less than one
// position from o * a, but for the rounding of floats. So those that may hold position `i` are the
// ones with o * a - margin <= i and i < o * a + margin + kernel. The margin is 17/16, and 2^-20 of
// the axis more: the forward rounds three times in float.
template <typename index_t>
struct Axis {
  index_t out, gaps, kernel, margin;
  divisor<index_t> slack;
  __device__ __forceinline__ Axis(int64_t size, int64_t out, int64_t kernel, int64_t magic)
      : out(static_cast<index_t>(out)),
        gaps(static_cast<index_t>(out - 1)),
        kernel(static_cast<index_t>(kernel)),
        margin(static_cast<index_t>(17 + (size >> 16))),
        slack(size - kernel, magic) {}
  // In sixteenths of a position, times the gaps.
  __device__ __forceinline__ window_range<index_t> covering(index_t i) const {
    if (out == 1 || slack.value <= 0) return {0, out, 1};
    index_t low = (16 * (i - kernel + 1) - margin) * gaps, high = (16 * i + margin) * gaps;
    index_t begin = low <= 0 ? 0 : slack.quotient((low - 1) >> 4) + 1;
    return {begin, least(slack.quotient(high >> 4) + 1, out), 1};
  }
};

// taken[0] starts at 0 and becomes the number of regions whose element looked for them. If that is
// not all of them, the indices are not from the forward: a second launch, with `everywhere`, lets
// every element look at all regions of its plane. If it is, that launch does nothing.
template <typename scalar_t, int per_thread, typename index_t>
__global__ void fractional_max_pool_backward(const scalar_t* __restrict__ grad_output,
                                             const int64_t* __restrict__ indices,
                                             scalar_t* __restrict__ grad_input,
                                             int64_t* __restrict__ taken, pooled_shape shape,
                                             pooling_regions regions, bool everywhere) {
  if (everywhere) {
    int64_t n = shape.outer * shape.t_out * shape.h_out * shape.w_out;
    if (taken[0] == n) return;
    for (int64_t i = thread_index(); i < n; i += thread_count()) {
      DETMODE_ASSERT(indices[i] >= 0 && indices[i] < shape.t_in * shape.h_in * shape.w_in);
    }
  }
  const Axis<index_t> axes[3] = {{shape.t_in, shape.t_out, regions.t, regions.t_magic},
                                 {shape.h_in, shape.h_out, regions.h, regions.h_magic},
                                 {shape.w_in, shape.w_out, regions.w, regions.w_magic}};
  index_t chosen = gather_chosen<per_thread, index_t>(
      grad_output, indices, grad_input, shape, [&](int a, index_t i) -> window_range<index_t> {
        if (everywhere) return {0, axes[a].out, 1};
        return axes[a].covering(i);
      });
  if (everywhere) return;
  chosen = block_reduce<256>(chosen, [](index_t a, index_t b) { return a + b; }, index_t(0));
  if (threadIdx.x == 0) atomic_add(taken, static_cast<int64_t>(chosen));
}
