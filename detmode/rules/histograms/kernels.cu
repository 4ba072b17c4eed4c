// Histograms, counted in whole numbers: additions of those do not depend on their order.
#include "dtype.cuh"
#include "index.cuh"

// The bin of a value between low and high, as ATen's CUDA kernel rounds it. A quotient of
// infinities, from a range that overflows, is no number and goes to the first bin.
template <typename scalar_t>
static __device__ __forceinline__ int64_t bin_of(scalar_t value, scalar_t low, scalar_t high,
                                                 int64_t bins) {
  scalar_t scaled = mul_rn(sub_rn(value, low), static_cast<scalar_t>(bins));
  scalar_t place = div_rn(scaled, sub_rn(high, low));
  if (!(place > scalar_t(0))) return 0;
  // `high` itself belongs to the last bin.
  return place < static_cast<scalar_t>(bins) ? min_index(static_cast<int64_t>(place), bins - 1)
                                             : bins - 1;
}

// Blocks share the elements in stripes. Where `in_shared`, a block counts in its own memory first;
// it sees fewer than 2^32 elements.
template <typename scalar_t>
__global__ void histc_count(const scalar_t* __restrict__ input, int64_t* __restrict__ counts,
                            int64_t n, int64_t bins, double min, double max, bool in_shared) {
  uint32_t* block_counts = dynamic_shared<uint32_t>();
  scalar_t low = static_cast<scalar_t>(min), high = static_cast<scalar_t>(max);
  if (in_shared) {
    for (int64_t b = threadIdx.x; b < bins; b += blockDim.x) block_counts[b] = 0;
    __syncthreads();
  }
  constexpr int BATCH = 4;
  int64_t step = thread_count();
  for (int64_t i = thread_index(); i < n; i += BATCH * step) {
    // Loads of one batch do not wait for one another.
    scalar_t values[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      values[b] = i + b * step < n ? input[i + b * step] : limits<scalar_t>::nan();
    }
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      // False for NaN.
      if (!(values[b] >= low && values[b] <= high)) continue;
      int64_t bin = bin_of(values[b], low, high, bins);
      if (in_shared) {
        atomicAdd(block_counts + bin, 1u);
      } else {
        atomic_add(counts + bin, 1);
      }
    }
  }
  if (in_shared) {
    __syncthreads();
    for (int64_t b = threadIdx.x; b < bins; b += blockDim.x) {
      if (block_counts[b] > 0) atomic_add(counts + b, static_cast<int64_t>(block_counts[b]));
    }
  }
}
