// A number as significand * 2^exponent, 1 <= |significand| < 2, and numbers of any size put
// together again. Everything is exact but for one rounding, where the result is denormal or the
// dtype ends.
#pragma once

#include "dtype.cuh"
#include "index.cuh"

// The largest exponent. The smallest one of a normal number is 1 - exponent_limit.
template <typename T>
constexpr int exponent_limit = format<T>::bias;

// Zeros, infinities and NaN: each is its own significand.
template <typename T>
static __device__ __forceinline__ bool has_no_exponent(T x) {
  return x == 0 || !is_finite(x);
}

// The exponent of a normal number.
template <typename T>
static __device__ __forceinline__ int exponent_of(T x) {
  using F = format<T>;
  constexpr int mask = 2 * F::bias + 1;
  return (static_cast<int>(F::to_bits(x) >> (F::precision - 1)) & mask) - F::bias;
}

// The significand of a normal number, with its sign.
template <typename T>
static __device__ __forceinline__ T significand_of(T x) {
  using F = format<T>;
  using word = typename F::word;
  constexpr word exponents = static_cast<word>(2 * F::bias + 1) << (F::precision - 1);
  constexpr word one = static_cast<word>(F::bias) << (F::precision - 1);
  return F::from_bits((F::to_bits(x) & ~exponents) | one);
}

// 2^exponent, for the exponents of normal numbers; 0 for -exponent_limit.
template <typename T>
static __device__ __forceinline__ T power_of_two(int64_t exponent) {
  using F = format<T>;
  return F::from_bits(static_cast<typename F::word>(exponent + F::bias) << (F::precision - 1));
}

// x * 2^exponent for any exponent and 1/4 <= |x| <= 4, or an x that has none: in two steps, of
// which only the second can round.
template <typename T>
static __device__ __forceinline__ T times_power_of_two(T x, int64_t exponent) {
  constexpr int most = 2 * exponent_limit<T>;
  int64_t within = clamp_index(exponent, 4 - most, most);
  int64_t half_of_it = within / 2;
  return mul_rn(mul_rn(x, power_of_two<T>(half_of_it)), power_of_two<T>(within - half_of_it));
}

template <typename T>
struct number_parts {
  T significand;
  int64_t exponent;
};

// Any number, denormals too; the exponent of one that has none is 0.
template <typename T>
static __device__ __forceinline__ number_parts<T> parts_of(T x) {
  if (has_no_exponent(x)) return {x, 0};
  constexpr int raised = 64;
  T least = power_of_two<T>(1 - exponent_limit<T>);
  bool denormal = x < least && -x < least;
  if (denormal) x = mul_rn(x, power_of_two<T>(raised));
  return {significand_of(x), exponent_of(x) - (denormal ? raised : 0)};
}
