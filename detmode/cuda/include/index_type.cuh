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

// A positive divisor that all threads share, from two arguments: its value and its magic number,
// detmode.cuda.magic_number(value). In 32 bits a quotient is a product and a shift.
template <typename index_t>
struct divisor {
  index_t value;
  uint32_t multiplier;
  int shift;
  __device__ __forceinline__ divisor(int64_t value, int64_t magic)
      : value(static_cast<index_t>(value)),
        multiplier(static_cast<uint32_t>(magic)),
        shift(static_cast<int>(magic >> 32)) {}
  // Of a number from 0 to 2^31 - 1. The multiplier is 2^(32 + shift) / value or up to 1 less; n + 1
  // makes good for that.
  __device__ __forceinline__ index_t quotient(index_t n) const {
    if constexpr (is_same<index_t, int32_t>::value) {
      return static_cast<index_t>(__umulhi(static_cast<uint32_t>(n) + 1, multiplier) >> shift);
    } else {
      return quick_div(n, value);
    }
  }
};

// Positions [begin, end).
template <typename index_t>
struct index_range {
  index_t begin;
  index_t end;
};

template <typename index_t>
static __device__ __forceinline__ index_t least(index_t a, index_t b) {
  return b < a ? b : a;
}
template <typename index_t>
static __device__ __forceinline__ index_t most(index_t a, index_t b) {
  return a < b ? b : a;
}
