// Backward of fractional max pooling: a gather over the regions that may hold an element.
#include "chosen_windows.cuh"

// A number for each axis.
struct triple {
  int64_t t, h, w;
};

// The regions of an axis that may hold position `i`; those of another size than the forward's are
// strays.
//
// The forward lets region `o` begin at trunc((o + u) * a) - trunc(u * a),
// a = (size - kernel) / (out - 1), with a random u that the backward does not get: less than one
// position from o * a, but for the rounding of floats. So they are those with o * a - margin <= i
// and i < o * a + margin + kernel. The margin is 3/2, and 2^-20 of the axis more: the forward
// rounds three times in float.
template <typename index_t>
static __device__ __forceinline__ window_range<index_t> covering(index_t i, index_t size,
                                                                 index_t out, index_t kernel) {
  index_t slack = size - kernel;
  if (out == 1 || slack <= 0) return {0, out, 1};
  // In halves of a position.
  index_t margin = 3 + (size >> 19);
  index_t gaps = out - 1;
  index_t low = (2 * (i - kernel + 1) - margin) * gaps, high = (2 * i + margin) * gaps;
  index_t begin = low <= 0 ? 0 : quotient(low - 1, 2 * slack) + 1;
  return {begin, least(quotient(high, 2 * slack) + 1, out), 1};
}
template <typename index_t>
static __device__ __forceinline__ bool holds(const window_range<index_t>& range, index_t o) {
  return range.begin <= o && o < range.end;
}

// strays[0] = 1 where a region chose an element that the gather would not look for it at: the index
// is not from the forward. indices are [planes, t_out, h_out, w_out].
template <typename index_t>
__global__ void fractional_max_pool_strays(const int64_t* __restrict__ indices,
                                           int64_t* __restrict__ strays, int64_t n, triple sizes,
                                           triple out_sizes, triple regions) {
  const int64_t size_of[3] = {sizes.t, sizes.h, sizes.w};
  const int64_t out_of[3] = {out_sizes.t, out_sizes.h, out_sizes.w};
  const int64_t region_of[3] = {regions.t, regions.h, regions.w};
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    DETMODE_ASSERT(indices[i] >= 0 && indices[i] < sizes.t * sizes.h * sizes.w);
    // The last axis first, as positions count.
    index_t region = static_cast<index_t>(i), position = static_cast<index_t>(indices[i]);
    bool found = true;
#pragma unroll
    for (int a = 2; a >= 0; --a) {
      index_t size = static_cast<index_t>(size_of[a]), out = static_cast<index_t>(out_of[a]);
      index_t next_region = quotient(region, out), next_position = quotient(position, size);
      index_t kernel = static_cast<index_t>(region_of[a]);
      found = found && holds(covering(position - next_position * size, size, out, kernel),
                             region - next_region * out);
      region = next_region;
      position = next_position;
    }
    if (!found) atomic_max(strays, int64_t(1));
  }
}

// With strays every element looks at all regions of its plane.
template <typename scalar_t, int per_thread, typename index_t>
__global__ void fractional_max_pool_backward(const scalar_t* __restrict__ grad_output,
                                             const int64_t* __restrict__ indices,
                                             scalar_t* __restrict__ grad_input, pooled_shape shape,
                                             triple regions, const int64_t* __restrict__ strays) {
  bool everywhere = strays[0] != 0;
  const int64_t size_of[3] = {shape.t_in, shape.h_in, shape.w_in};
  const int64_t out_of[3] = {shape.t_out, shape.h_out, shape.w_out};
  const int64_t region_of[3] = {regions.t, regions.h, regions.w};
  gather_chosen<per_thread, index_t>(
      grad_output, indices, grad_input, shape, [&](int a, index_t i) -> window_range<index_t> {
        index_t size = static_cast<index_t>(size_of[a]), out = static_cast<index_t>(out_of[a]);
        if (everywhere) return {0, out, 1};
        return covering(i, size, out, static_cast<index_t>(region_of[a]));
      });
}
