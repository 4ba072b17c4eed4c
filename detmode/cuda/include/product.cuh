// Products that lose nothing on the way: no overflow, no underflow, a rounding where it is written.
//
// A product is kept as significand * 2^exponent with 1 <= |significand| < 2 and a 64-bit exponent.
// A zero, an infinity or a NaN is its own significand. So a product is infinite, zero or NaN only
// where the exact product of its factors is, or where the dtype cannot hold it at the very end; the
// order of the factors decides its last bits, and nothing else.
//
//   product_t<scalar_t> run = product_t<scalar_t>::of(first);
//   run = run.times(product_t<scalar_t>::of(next));
//   output = run.result<scalar_t>();
#pragma once

#include "dtype.cuh"
#include "significand.cuh"

// A product of float or 16-bit factors: double has 29 bits to spare. 16 bytes.
struct wide_product {
  double significand;
  int64_t exponent;
  template <typename scalar_t>
  static __device__ __forceinline__ wide_product of(scalar_t x) {
    number_parts<double> parts = parts_of(static_cast<double>(to_opmath(x)));
    return wide_product{parts.significand, parts.exponent};
  }
  __device__ __forceinline__ wide_product times(wide_product x) const {
    double product = mul_rn(significand, x.significand);
    if (has_no_exponent(product)) return wide_product{product, 0};
    return wide_product{significand_of(product), exponent + x.exponent + exponent_of(product)};
  }
  template <typename scalar_t>
  __device__ __forceinline__ scalar_t result() const {
    return narrowed<scalar_t>(times_power_of_two(significand, exponent));
  }
};

// A product of factors of T, float or double: `low`, on the scale of the significand, collects what
// the multiplications round away. 16 or 24 bytes.
//
// The significand may be any number whose product with another such one is far from underflow and
// overflow: most factors are their own significands, and only a product that leaves the range is
// scaled. That is exact, so the bits do not depend on it.
template <typename T>
struct paired_product {
  T significand, low;
  int64_t exponent;
  static __device__ __forceinline__ bool is_significand(T x) {
    T least = power_of_two<T>(-(exponent_limit<T> / 6));
    return fabs(x) >= least && fabs(x) < power_of_two<T>(exponent_limit<T> / 3);
  }
  static __device__ __forceinline__ paired_product of(T x) {
    if (is_significand(x)) return paired_product{x, T(0), 0};
    number_parts<T> parts = parts_of(x);
    return paired_product{parts.significand, T(0), parts.exponent};
  }
  __device__ __forceinline__ paired_product times(paired_product x) const {
    T product = mul_rn(significand, x.significand);
    T lost = fma_rn(significand, x.significand, -product);
    lost = fma_rn(significand, x.low, fma_rn(low, x.significand, lost));
    int64_t sum = exponent + x.exponent;
    if (is_significand(product)) return paired_product{product, lost, sum};
    if (has_no_exponent(product)) return paired_product{product, T(0), 0};
    int carry = exponent_of(product);
    return paired_product{significand_of(product), mul_rn(lost, power_of_two<T>(-carry)),
                          sum + carry};
  }
  template <typename scalar_t>
  __device__ __forceinline__ scalar_t result() const {
    T total = low == 0 ? significand : add_rn(significand, low);
    return narrowed<scalar_t>(exponent == 0 ? total : times_power_of_two(total, exponent));
  }
};

// A product of integers modulo 2^64, whose low bits are those of the narrower dtypes' products.
struct wrapping_product {
  uint64_t value;
  template <typename scalar_t>
  static __device__ __forceinline__ wrapping_product of(scalar_t x) {
    return wrapping_product{static_cast<uint64_t>(x)};
  }
  __device__ __forceinline__ wrapping_product times(wrapping_product x) const {
    return wrapping_product{value * x.value};
  }
  template <typename scalar_t>
  __device__ __forceinline__ scalar_t result() const {
    return static_cast<scalar_t>(value);
  }
};

template <typename scalar_t>
using product_t = typename conditional<
    is_same<scalar_t, double>::value, paired_product<double>,
    typename conditional<is_floating<scalar_t>::value, wide_product, wrapping_product>::type>::type;
