// Sums in float or double with the error of one rounding: by one thread, and joined of parts.
#pragma once

#include "dtype.cuh"

// What rounding took from `total = add_rn(a, b)`, exactly.
template <typename acc_t>
static __device__ __forceinline__ acc_t lost_in_sum(acc_t a, acc_t b, acc_t total) {
  acc_t part = sub_rn(total, a);
  return add_rn(sub_rn(a, sub_rn(total, part)), sub_rn(b, part));
}

// div_rn(value, divisor) for an integer `divisor` of at most 2^20 in size and its reciprocal as
// rounded, but for underflow and overflow. The first product is less than two units in the
// last place away, and what it misses is exact: the second comes within 2^-23 units before it is
// rounded. The quotient by such a divisor is at least 2^-21 units from where rounding changes.
template <typename acc_t>
static __device__ __forceinline__ acc_t quick_quotient(acc_t value, acc_t divisor,
                                                       acc_t reciprocal) {
  acc_t near = mul_rn(value, reciprocal);
  return fma_rn(fma_rn(-near, divisor, value), reciprocal, near);
}

// A sum kept in two parts: `high` is the sum as rounded, `low` what rounding took from it. Start it
// with `= {}`, which is +0.0 and so gives +0.0 for addends of -0.0, as where ATen adds to zeros;
// where ATen begins with the first addend, take paired_sum. For a thread that gathers in a fixed
// order: the order still decides the bits.
template <typename acc_t>
struct compensated_sum {
  acc_t high;
  acc_t low;
  __device__ __forceinline__ void add(acc_t value) {
    acc_t total = add_rn(high, value);
    low = add_rn(low, lost_in_sum(high, value, total));
    high = total;
  }
  // What rounding takes stays in `low`, as with single addends.
  __device__ __forceinline__ void add(const compensated_sum& later) {
    add(later.high);
    low = add_rn(low, later.low);
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
  // Whether the sum is zero, or so far from underflow and overflow that what is not exact in the
  // quotients below is too small to change their sum.
  __device__ __forceinline__ bool divides_quickly() const {
    acc_t size = add_rn(fabs(high), fabs(low));
    return (size == 0) | ((size >= acc_t(0x1p-60f)) & (size <= acc_t(0x1p100f)));
  }
  // The bits of divided_by() without a division, for a sum that divides quickly and a divisor that
  // is an integer of at most 2^20 in size.
  __device__ __forceinline__ acc_t divided_by(acc_t divisor, acc_t reciprocal) const {
    acc_t quotient = quick_quotient(high, divisor, reciprocal);
    acc_t rest = add_rn(fma_rn(-quotient, divisor, high), low);
    quotient = add_rn(quotient, quick_quotient(rest, divisor, reciprocal));
    return add_rn(static_cast<acc_t>(0), quotient);
  }
};

// Sums that are joined of parts; -0.0 is what adds nothing. plain_sum is for a T with bits to
// spare.
template <typename T>
struct plain_sum {
  T value;
  static __device__ __forceinline__ plain_sum of(T x) { return plain_sum{x}; }
  __device__ __forceinline__ plain_sum plus(plain_sum x) const {
    return plain_sum{add_rn(value, x.value)};
  }
  __device__ __forceinline__ T total() const { return value; }
  __device__ __forceinline__ T total_from_zero() const { return add_rn(T(0), value); }
};
// `low` collects what the additions to `high` round away.
template <typename T>
struct paired_sum {
  T high, low;
  // A part without a low one, which takes an addition less to join.
  struct addend {
    T value;
    __device__ __forceinline__ operator paired_sum() const { return paired_sum{value, T(0)}; }
  };
  static __device__ __forceinline__ addend of(T x) { return addend{x}; }
  __device__ __forceinline__ paired_sum plus(paired_sum x) const {
    T sum = add_rn(high, x.high), lost = lost_in_sum(high, x.high, sum);
    return paired_sum{sum, add_rn(low, add_rn(x.low, lost))};
  }
  // As with a `low` of zero, but that the sum's may be another zero, which no total shows.
  __device__ __forceinline__ paired_sum plus(addend x) const {
    T sum = add_rn(high, x.value);
    return paired_sum{sum, add_rn(low, lost_in_sum(high, x.value, sum))};
  }
  __device__ __forceinline__ T total() const {
    // Past an infinity or a NaN, `low` means nothing; and -0.0 + 0.0 would be 0.0.
    bool counts = low != 0 && is_finite(low) && is_finite(high);
    return counts ? add_rn(high, low) : high;
  }
  // total() added to +0.0, to which it does not matter which zero that is.
  __device__ __forceinline__ T total_from_zero() const {
    bool counts = is_finite(low) && is_finite(high);
    return add_rn(T(0), counts ? add_rn(high, low) : high);
  }
};
