// Launches of significand.cuh, for its tests.
#include "significand.cuh"

// input[i] * 2^(i - zero).
template <typename scalar_t>
__global__ void powers(const scalar_t* __restrict__ input, scalar_t* __restrict__ output, int64_t n,
                       int64_t zero) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    output[i] = times_power_of_two(input[i], i - zero);
  }
}

template <typename scalar_t>
__global__ void parts(const scalar_t* __restrict__ input, scalar_t* __restrict__ significands,
                      int64_t* __restrict__ exponents, int64_t n) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    number_parts<scalar_t> parts = parts_of(input[i]);
    significands[i] = parts.significand;
    exponents[i] = parts.exponent;
  }
}
