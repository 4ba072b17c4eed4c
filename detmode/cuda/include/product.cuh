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

namespace product_detail {

constexpr int BIAS = 1023;
constexpr uint64_t EXPONENT = uint64_t(0x7ff) << 52;

// 2^exponent, for an exponent from -1022 to 1023.
static __device__ __forceinline__ double power_of_two(int64_t exponent) {
  return bits_to_double(static_cast<uint64_t>(exponent + BIAS) << 52);
}

// Takes a normal number's exponent out of it.
static __device__ __forceinline__ int64_t take_exponent(double& value) {
  uint64_t word = double_to_bits(value);
  value = bits_to_double((word & ~EXPONENT) | (static_cast<uint64_t>(BIAS) << 52));
  return static_cast<int64_t>((word & EXPONENT) >> 52) - BIAS;
}

// Zeros, infinities and NaNs.
static __device__ __forceinline__ bool has_no_exponent(double value) {
  return value == 0 || (double_to_bits(value) & EXPONENT) == EXPONENT;
}

// value * 2^exponent, rounded once: into denormals and infinities in two exact halves.
static __device__ __forceinline__ double scaled(double value, int64_t exponent) {
  constexpr int64_t enough = 1200;
  if (exponent < -enough) exponent = -enough;
  if (exponent > enough) exponent = enough;
  int64_t half_of_it = exponent / 2;
  return mul_rn(mul_rn(value, power_of_two(half_of_it)), power_of_two(exponent - half_of_it));
}

template <typename scalar_t>
static __device__ __forceinline__ scalar_t narrowed(double value) {
  // One NaN for all: the hardware's own may differ.
  if (is_nan(value)) return limits<scalar_t>::nan();
  return from_opmath<scalar_t>(static_cast<opmath_t<scalar_t>>(value));
}

}  // namespace product_detail

// A product of float or 16-bit factors: double has 29 bits to spare. 16 bytes.
struct scaled_product {
  double significand;
  int64_t exponent;
  static __device__ __forceinline__ scaled_product of(double x) {
    using namespace product_detail;
    if (has_no_exponent(x)) return scaled_product{x, 0};
    // A denormal gets an exponent of its own first.
    bool normal = (double_to_bits(x) & EXPONENT) != 0;
    if (!normal) x = mul_rn(x, power_of_two(64));
    int64_t exponent = take_exponent(x);
    return scaled_product{x, normal ? exponent : exponent - 64};
  }
  template <typename scalar_t>
  static __device__ __forceinline__ scaled_product of(scalar_t x) {
    return of(static_cast<double>(to_opmath(x)));
  }
  __device__ __forceinline__ scaled_product times(scaled_product x) const {
    using namespace product_detail;
    double product = mul_rn(significand, x.significand);
    if (has_no_exponent(product)) return scaled_product{product, 0};
    int64_t carry = take_exponent(product);
    return scaled_product{product, exponent + x.exponent + carry};
  }
  template <typename scalar_t>
  __device__ __forceinline__ scalar_t result() const {
    return product_detail::narrowed<scalar_t>(product_detail::scaled(significand, exponent));
  }
};

// A product of double factors: `low`, on the scale of the significand, collects what the
// multiplications round away. 24 bytes.
struct paired_product {
  double significand, low;
  int64_t exponent;
  static __device__ __forceinline__ paired_product of(double x) {
    scaled_product one = scaled_product::of(x);
    return paired_product{one.significand, 0.0, one.exponent};
  }
  __device__ __forceinline__ paired_product times(paired_product x) const {
    using namespace product_detail;
    double product = mul_rn(significand, x.significand);
    if (has_no_exponent(product)) return paired_product{product, 0.0, 0};
    double lost = fma_rn(significand, x.significand, -product);
    lost = fma_rn(significand, x.low, fma_rn(low, x.significand, lost));
    // The significands' product is below 4, so the carry is 0 or 1.
    int64_t carry = take_exponent(product);
    return paired_product{product, carry == 0 ? lost : mul_rn(lost, 0.5),
                          exponent + x.exponent + carry};
  }
  template <typename scalar_t>
  __device__ __forceinline__ scalar_t result() const {
    double total = low == 0 ? significand : add_rn(significand, low);
    return product_detail::narrowed<scalar_t>(product_detail::scaled(total, exponent));
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
using product_t =
    typename conditional<is_same<scalar_t, double>::value, paired_product,
                         typename conditional<is_floating<scalar_t>::value, scaled_product,
                                              wrapping_product>::type>::type;
