// Positions in a type that the launcher chooses, a template parameter `index_t`: int32_t where they
// are few enough (detmode.cuda.index_ctype), int64_t otherwise. The GPU's integers have 32
// bits: it adds and compares longer ones in two instructions or more, and divides them in dozens.
#pragma once

#include "index.cuh"

// Of non-negative numbers; the divisor is positive.
static __device__ __forceinline__ int32_t quotient(int32_t value, int32_t divisor) {
  return static_cast<int32_t>(static_cast<uint32_t>(value) / static_cast<uint32_t>(divisor));
}
static __device__ __forceinline__ int64_t quotient(int64_t value, int64_t divisor) {
  return quick_div(value, divisor);
}

template <typename index_t>
static __device__ __forceinline__ index_t least(index_t a, index_t b) {
  return b < a ? b : a;
}
template <typename index_t>
static __device__ __forceinline__ index_t most(index_t a, index_t b) {
  return a < b ? b : a;
}
