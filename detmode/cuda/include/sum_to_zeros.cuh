// Sums of addends in any order, begun at zero: what detmode.cuda.sum_to_zeros launches.
#pragma once

#include "accumulator.cuh"

// For a kernel that is launched twice: without sums it observes its addends, with sums it adds
// them. Integer maxima and additions: any order gives the same.
template <typename scalar_t>
static __device__ __forceinline__ void observe_or_add(int32_t* keys, int64_t* sums,
                                                      int64_t destination,
                                                      opmath_t<scalar_t> addend, int64_t headroom) {
  if (sums == nullptr) {
    accumulator<scalar_t>::observe(keys, destination, addend);
  } else {
    accumulator<scalar_t>::add(keys, sums, destination, addend, headroom);
  }
}

// ATen adds to zeros: an element without an addend is 0.0, and so is one whose addends are -0.0.
template <typename scalar_t>
__global__ void finish_sums(const int32_t* __restrict__ keys, const int64_t* __restrict__ sums,
                            scalar_t* __restrict__ result, int64_t n, int64_t headroom) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    scalar_t sum = accumulator<scalar_t>::finish(keys, sums, i, headroom);
    result[i] = to_opmath(sum) == 0 ? from_opmath<scalar_t>(0) : sum;
  }
}
