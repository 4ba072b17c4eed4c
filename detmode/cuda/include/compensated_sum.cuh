// A sum by one thread, in float or double, with the error of one rounding.
#pragma once

#include "dtype.cuh"

// False for infinities and NaN.
static __device__ __forceinline__ bool is_finite(float value) { return sub_rn(value, value) == 0; }
static __device__ __forceinline__ bool is_finite(double value) { return sub_rn(value, value) == 0; }

// What rounding took from `total = add_rn(a, b)`, exactly.
template <typename acc_t>
static __device__ __forceinline__ acc_t lost_in_sum(acc_t a, acc_t b, acc_t total) {
  acc_t part = sub_rn(total, a);
  return add_rn(sub_rn(a, sub_rn(total, part)), sub_rn(b, part));
}

// A sum kept in two parts: `high` is the sum as rounded, `low` what rounding took from it. Start it
// with `= {}`. For a thread that gathers in a fixed order: the order still decides the bits.
template <typename acc_t>
struct compensated_sum {
  acc_t high;
  acc_t low;
  __device__ __forceinline__ void add(acc_t value) {
    acc_t total = add_rn(high, value);
    low = add_rn(low, lost_in_sum(high, value, total));
    high = total;
  }
  // Adds value / divisor without a division: what the product with the reciprocal misses is exact,
  // and goes to `low`.
  __device__ __forceinline__ void add_share(acc_t value, acc_t divisor, acc_t reciprocal) {
    acc_t share = mul_rn(value, reciprocal);
    acc_t rest = fma_rn(-share, divisor, value);
    add(share);
    low = add_rn(low, mul_rn(rest, reciprocal));
  }
  // Once an addend or the sum is infinite or NaN, `low` is NaN and `high` alone is right.
  __device__ __forceinline__ acc_t rounded() const {
    return is_finite(low) ? add_rn(high, low) : high;
  }
  // Added to +0.0, as the shares would be: an empty sum over a negative divisor is no -0.0.
  __device__ __forceinline__ acc_t divided_by(acc_t divisor) const {
    acc_t quotient = div_rn(high, divisor);
    acc_t rest = add_rn(fma_rn(-quotient, divisor, high), low);
    if (is_finite(rest)) quotient = add_rn(quotient, div_rn(rest, divisor));
    return add_rn(static_cast<acc_t>(0), quotient);
  }
};
