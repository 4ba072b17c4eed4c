// exp and log with the same bits on every GPU, with every version of CUDA, and on the host: made of
// explicitly rounded operations alone. CUDA's own expf asks the hardware for 2^x, and its bits are
// the hardware's.
#pragma once

#include "types.cuh"

// Where floats and doubles keep their exponent, for the numbers that are not denormal.
template <typename T>
struct exponent_bits;
template <>
struct exponent_bits<float> {
  static constexpr int bias = 127;
  static __device__ __forceinline__ int of(float x) {
    return static_cast<int>((float_to_bits(x) >> 23) & 0xffu) - bias;
  }
  static __device__ __forceinline__ float power(int e) {
    return bits_to_float(static_cast<uint32_t>(e + bias) << 23);
  }
  static __device__ __forceinline__ float cleared(float x) {
    return bits_to_float((float_to_bits(x) & 0x807fffffu) | 0x3f800000u);
  }
};
template <>
struct exponent_bits<double> {
  static constexpr int bias = 1023;
  static __device__ __forceinline__ int of(double x) {
    return static_cast<int>((double_to_bits(x) >> 52) & 0x7ffu) - bias;
  }
  static __device__ __forceinline__ double power(int e) {
    return bits_to_double(static_cast<uint64_t>(e + bias) << 52);
  }
  static __device__ __forceinline__ double cleared(double x) {
    return bits_to_double((double_to_bits(x) & 0x800fffffffffffffull) | 0x3ff0000000000000ull);
  }
};

// e with 2^e <= |x| < 2^(e + 1), for a normal x.
static __device__ __forceinline__ int exponent_of(float x) { return exponent_bits<float>::of(x); }
static __device__ __forceinline__ int exponent_of(double x) { return exponent_bits<double>::of(x); }
// x / 2^exponent_of(x), for a normal x.
static __device__ __forceinline__ float significand_of(float x) {
  return exponent_bits<float>::cleared(x);
}
static __device__ __forceinline__ double significand_of(double x) {
  return exponent_bits<double>::cleared(x);
}
// x * 2^e for any e, in two steps: for 1/4 <= |x| <= 4 only the second one can round, where the
// product is denormal.
template <typename T>
static __device__ __forceinline__ T times_power_of_two(T x, int e) {
  constexpr int most = 2 * exponent_bits<T>::bias, least = 4 - most;
  e = e > most ? most : e;
  e = e < least ? least : e;
  int half = e / 2;
  return mul_rn(mul_rn(x, exponent_bits<T>::power(half)), exponent_bits<T>::power(e - half));
}

template <typename T>
struct exp_log;
template <>
struct exp_log<float> {
  // Below `least`, exp is taken as 0: it is under the smallest normal number, or close to it.
  static constexpr float least = -87.0f;
  static constexpr float ln2_high = 0.693359375f;
  static constexpr float ln2_low = -2.12194440054690583e-4f;
  static constexpr int exp_terms = 6;
  static constexpr int log_terms = 5;
};
template <>
struct exp_log<double> {
  static constexpr double least = -708.0;
  static constexpr double ln2_high = 6.93147180369123816490e-01;
  static constexpr double ln2_low = 1.90821492927058770002e-10;
  static constexpr int exp_terms = 12;
  static constexpr int log_terms = 11;
};

// exp(x) for x <= 0, to about one unit in the last place; 0 where it would be denormal. NaN is NaN.
template <typename T>
static __device__ __forceinline__ T exp_nonpositive(T x) {
  if (!(x >= exp_log<T>::least)) return x < exp_log<T>::least ? T(0) : x;
  constexpr double inverse_factorials[] = {1.0 / 2,        1.0 / 6,         1.0 / 24,
                                           1.0 / 120,      1.0 / 720,       1.0 / 5040,
                                           1.0 / 40320,    1.0 / 362880,    1.0 / 3628800,
                                           1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0};
  T n = rint(mul_rn(x, static_cast<T>(1.4426950408889634)));
  T rest = fma_rn(n, -exp_log<T>::ln2_low, fma_rn(n, -exp_log<T>::ln2_high, x));
  T series = static_cast<T>(inverse_factorials[exp_log<T>::exp_terms - 1]);
#pragma unroll
  for (int k = exp_log<T>::exp_terms - 2; k >= 0; --k) {
    series = fma_rn(series, rest, static_cast<T>(inverse_factorials[k]));
  }
  // 1 + (rest + rest^2 series): the small terms first.
  T value = add_rn(T(1), fma_rn(mul_rn(rest, rest), series, rest));
  return mul_rn(value, exponent_bits<T>::power(static_cast<int>(n)));
}

// log(x) for a positive, normal, finite x, to about one unit in the last place. NaN is NaN.
template <typename T>
static __device__ __forceinline__ T log_normal(T x) {
  if (!(x > 0)) return x;
  int e = exponent_of(x);
  T f = significand_of(x);
  if (f > static_cast<T>(1.4142135623730951)) {
    f = mul_rn(f, static_cast<T>(0.5));
    e += 1;
  }
  // With r = f - 1, which is exact, and z = r / (2 + r), |z| < 0.172:
  // log(f) = 2 z + z (2 z^2 / 3 + 2 z^4 / 5 + ...), and 2 z = r - r^2 / 2 + z r^2 / 2.
  T r = sub_rn(f, T(1));
  T z = div_rn(r, add_rn(r, T(2))), square = mul_rn(z, z);
  T half_square = mul_rn(mul_rn(static_cast<T>(0.5), r), r);
  T series = static_cast<T>(2.0 / (2 * exp_log<T>::log_terms + 1));
#pragma unroll
  for (int k = exp_log<T>::log_terms - 1; k >= 1; --k) {
    series = fma_rn(series, square, static_cast<T>(2.0 / (2 * k + 1)));
  }
  T count = static_cast<T>(e);
  T low = fma_rn(z, fma_rn(series, square, half_square), mul_rn(count, exp_log<T>::ln2_low));
  return fma_rn(count, exp_log<T>::ln2_high, add_rn(r, sub_rn(low, half_square)));
}
