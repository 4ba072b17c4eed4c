// Launches of exponential.cuh, for its tests.
#include "exponential.cuh"

template <typename scalar_t>
__global__ void exponentials(const scalar_t* __restrict__ input, scalar_t* __restrict__ output,
                             int64_t n) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) output[i] = fixed_exp(input[i]);
}

// exp(a + b) exp(c + d), and exp(a) + exp(b) + exp(c) times exp(d).
template <typename scalar_t>
__global__ void scaled_numbers(const scalar_t* __restrict__ input, scalar_t* __restrict__ products,
                               scalar_t* __restrict__ sums, int64_t n) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    const scalar_t* own = input + 4 * i;
    products[i] = rounded(scaled_product(scaled_exp(own[0], own[1]), scaled_exp(own[2], own[3])));
    scaled<scalar_t> sum =
        scaled_sum(scaled_exp(own[0], scalar_t(0)), scaled_exp(own[1], scalar_t(0)),
                   scaled_exp(own[2], scalar_t(0)));
    sums[i] = rounded(scaled_product(sum, scaled_exp(own[3], scalar_t(0))));
  }
}

template <typename scalar_t>
__global__ void exponentials_nonpositive(const scalar_t* __restrict__ input,
                                         scalar_t* __restrict__ output, int64_t n) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    output[i] = exp_nonpositive(input[i]);
  }
}

template <typename scalar_t>
__global__ void logarithms(const scalar_t* __restrict__ input, scalar_t* __restrict__ output,
                           int64_t n) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) output[i] = log_normal(input[i]);
}
