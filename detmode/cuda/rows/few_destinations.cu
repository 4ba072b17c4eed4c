// Sums of many elements at few destinations, as integers that any order adds to the same sum: the
// launches of integer_sums.cu that read elements, where each block has keys, and then sums, of all
// destinations to itself, and joins them to those in memory in the end. So few threads meet at one
// address there, and the bits are the same.
#include "accumulator.cuh"
#include "row_elements.cuh"

constexpr int AT_ONCE = 4;

template <typename scalar_t>
__global__ void __launch_bounds__(1024)
    few_destinations_observe(const int64_t* __restrict__ index, const scalar_t* __restrict__ source,
                             int32_t* __restrict__ keys, int64_t n, bool by_row, row_shape shape,
                             scaling alpha) {
  using sum_t = accumulator<scalar_t, in_block>;
  int32_t* of_block = dynamic_shared<int32_t>();
  int32_t all = static_cast<int32_t>(destinations_of(shape)) * sum_t::components;
  for (int32_t i = threadIdx.x; i < all; i += blockDim.x) of_block[i] = 0;
  __syncthreads();
  sum_t totals(of_block, nullptr, 0);
  using read_t = elements<scalar_t, AT_ONCE>;
  // The last element changes no maximum when it comes again.
  auto observe = [&](const read_t& read, int64_t, int64_t) {
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) totals.observe(read.destinations[k], read.addends[k]);
  };
  read_t::of_block(index, source, n, by_row, shape, alpha, observe);
  __syncthreads();
  for (int32_t i = threadIdx.x; i < all; i += blockDim.x) {
    if (of_block[i] != 0) raise_to(keys + i, of_block[i]);
  }
}

// `counts` is null but for a mean.
template <typename scalar_t>
__global__ void __launch_bounds__(1024)
    few_destinations_add(const int64_t* __restrict__ index, const scalar_t* __restrict__ source,
                         const int32_t* __restrict__ keys, int64_t* __restrict__ sums,
                         int64_t* __restrict__ counts, int64_t n, bool by_row, row_shape shape,
                         scaling alpha, int64_t headroom) {
  using sum_t = accumulator<scalar_t, in_block>;
  int32_t destinations = static_cast<int32_t>(destinations_of(shape));
  int32_t words = destinations * sum_t::components * sum_t::limbs;
  int64_t* of_block = dynamic_shared<int64_t>();
  int32_t* counts_of_block = reinterpret_cast<int32_t*>(of_block + words);
  int32_t counted = counts == nullptr ? 0 : destinations;
  for (int32_t i = threadIdx.x; i < words; i += blockDim.x) of_block[i] = 0;
  for (int32_t i = threadIdx.x; i < counted; i += blockDim.x) counts_of_block[i] = 0;
  __syncthreads();
  sum_t totals(keys, of_block, headroom);
  using read_t = elements<scalar_t, AT_ONCE>;
  auto add = [&](const read_t& read, int64_t i, int64_t end) {
    typename sum_t::key_t largest[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) largest[k] = totals.key(read.destinations[k]);
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) {
      if (i + k * blockDim.x >= end) break;
      totals.add(largest[k], read.destinations[k], read.addends[k]);
      if (counted > 0) atomicAdd(counts_of_block + read.destinations[k], 1);
    }
  };
  read_t::of_block(index, source, n, by_row, shape, alpha, add);
  __syncthreads();
  for (int32_t i = threadIdx.x; i < destinations; i += blockDim.x) {
    totals.join(i, sums);
    if (counted > 0 && counts_of_block[i] != 0) atomic_add(counts + i, counts_of_block[i]);
  }
}
