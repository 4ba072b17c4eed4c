// exp() with the same bits on every GPU and on the host, and numbers of any size to multiply it by.
//
// CUDA's expf ends in the instruction ex2.approx, whose last bit is the GPU's own. Here every
// operation is rounded explicitly, and there is no log(): sums of exponentials need none where
// exponents are kept beside mantissas.
#pragma once

#include "compensated_sum.cuh"
#include "dtype.cuh"
#include "index.cuh"
#include "types.cuh"

// mantissa * 2^exponent, not negative. The mantissa is in [1, 2), or it is 0, infinity or NaN, and
// the exponent then NO_EXPONENT.
template <typename T>
struct scaled {
  T mantissa;
  int64_t exponent;
};

static constexpr int64_t NO_EXPONENT = -(int64_t(1) << 62);

namespace exponential_detail {

template <typename T>
struct format;
template <>
struct format<float> {
  static constexpr int bias = 127, digits = 23;
  static constexpr uint32_t exponent_mask = 0xff;
  using word = uint32_t;
  static __device__ __forceinline__ word to_bits(float value) { return float_to_bits(value); }
  static __device__ __forceinline__ float from_bits(word bits) { return bits_to_float(bits); }
};
template <>
struct format<double> {
  static constexpr int bias = 1023, digits = 52;
  static constexpr uint64_t exponent_mask = 0x7ff;
  using word = uint64_t;
  static __device__ __forceinline__ word to_bits(double value) { return double_to_bits(value); }
  static __device__ __forceinline__ double from_bits(word bits) { return bits_to_double(bits); }
};

// 2^exponent for exponents up to the bias; 0 below the normal ones.
template <typename T>
static __device__ __forceinline__ T power_of_two(int64_t exponent) {
  using F = format<T>;
  typename F::word biased = static_cast<typename F::word>(max_index(exponent, -F::bias) + F::bias);
  return F::from_bits(biased << F::digits);
}

// `mantissa` is a normal number, 0, infinity or NaN.
template <typename T>
static __device__ __forceinline__ scaled<T> normalized(T mantissa, int64_t exponent) {
  using F = format<T>;
  typename F::word word = F::to_bits(mantissa);
  typename F::word biased = (word >> F::digits) & F::exponent_mask;
  if (biased == 0 || biased == F::exponent_mask) return {mantissa, NO_EXPONENT};
  constexpr typename F::word one = static_cast<typename F::word>(F::bias) << F::digits;
  constexpr typename F::word fraction = (static_cast<typename F::word>(1) << F::digits) - 1;
  return {F::from_bits((word & fraction) | one), exponent + static_cast<int64_t>(biased) - F::bias};
}

// The series of exp to the degree whose next term is below the last place for |x| < 0.35.
static __device__ __forceinline__ float series(float x) {
  float sum = 1.98412698e-4f;  // 1 / 7!, then 1 / 6! down to 1 / 0!
  sum = fma_rn(sum, x, 1.38888889e-3f);
  sum = fma_rn(sum, x, 8.33333333e-3f);
  sum = fma_rn(sum, x, 4.16666667e-2f);
  sum = fma_rn(sum, x, 1.66666667e-1f);
  sum = fma_rn(sum, x, 0.5f);
  sum = fma_rn(sum, x, 1.0f);
  return fma_rn(sum, x, 1.0f);
}
static __device__ __forceinline__ double series(double x) {
  double sum = 1.6059043836821613e-10;  // 1 / 13!, then 1 / 12! down to 1 / 0!
  sum = fma_rn(sum, x, 2.08767569878681e-09);
  sum = fma_rn(sum, x, 2.505210838544172e-08);
  sum = fma_rn(sum, x, 2.755731922398589e-07);
  sum = fma_rn(sum, x, 2.7557319223985893e-06);
  sum = fma_rn(sum, x, 2.48015873015873e-05);
  sum = fma_rn(sum, x, 0.0001984126984126984);
  sum = fma_rn(sum, x, 0.001388888888888889);
  sum = fma_rn(sum, x, 0.008333333333333333);
  sum = fma_rn(sum, x, 0.041666666666666664);
  sum = fma_rn(sum, x, 0.16666666666666666);
  sum = fma_rn(sum, x, 0.5);
  sum = fma_rn(sum, x, 1.0);
  return fma_rn(sum, x, 1.0);
}

// high + low is n ln 2 + rest, |rest| < 0.35: exp is 2^n times the series. The sum with 1.5 times a
// power of two rounds to an integer.
static __device__ __forceinline__ scaled<double> exp_of(double high, double low) {
  double n = sub_rn(fma_rn(high, 1.4426950408889634, 6755399441055744.0), 6755399441055744.0);
  double rest = fma_rn(-n, 0.6931471805599453, high);
  rest = add_rn(fma_rn(-n, 2.3190468138462996e-17, rest), low);
  return normalized(series(rest), static_cast<int64_t>(n));
}
static __device__ __forceinline__ scaled<float> exp_of(float high, float low) {
  // From here on an integer's distance to high / ln 2 would be felt.
  if (high > 65536.0f || high < -65536.0f) {
    scaled<double> wide = exp_of(static_cast<double>(high), static_cast<double>(low));
    return normalized(static_cast<float>(wide.mantissa), wide.exponent);
  }
  float n = sub_rn(fma_rn(high, 1.44269502f, 12582912.0f), 12582912.0f);
  float rest = fma_rn(-n, 0.693147182f, high);
  rest = add_rn(fma_rn(-n, -1.90465430e-9f, rest), low);
  return normalized(series(rest), static_cast<int64_t>(n));
}

}  // namespace exponential_detail

template <typename T>
static __device__ __forceinline__ scaled<T> scaled_zero() {
  return {T(0), NO_EXPONENT};
}

// exp(high + low), where low is what rounding took from high; it is not read where high is not
// finite. Beyond 2^40 on either side of zero, high counts as 2^40.
template <typename T>
static __device__ __forceinline__ scaled<T> scaled_exp(T high, T low) {
  constexpr T far = static_cast<T>(int64_t(1) << 40);
  if (!is_finite(high)) return {high < T(0) ? T(0) : high, NO_EXPONENT};
  if (high > far || high < -far) return exponential_detail::exp_of(high > far ? far : -far, T(0));
  return exponential_detail::exp_of(high, low);
}

template <typename T>
static __device__ __forceinline__ scaled<T> scaled_product(scaled<T> a, scaled<T> b) {
  return exponential_detail::normalized(mul_rn(a.mantissa, b.mantissa), a.exponent + b.exponent);
}

// (a + b) + c.
template <typename T>
static __device__ __forceinline__ scaled<T> scaled_sum(scaled<T> a, scaled<T> b, scaled<T> c) {
  using exponential_detail::power_of_two;
  int64_t exponent = max_index(max_index(a.exponent, b.exponent), c.exponent);
  T sum = mul_rn(a.mantissa, power_of_two<T>(a.exponent - exponent));
  sum = fma_rn(b.mantissa, power_of_two<T>(b.exponent - exponent), sum);
  sum = fma_rn(c.mantissa, power_of_two<T>(c.exponent - exponent), sum);
  return exponential_detail::normalized(sum, exponent);
}

// The number as a T, rounded once: into denormals and zero, or to infinity.
template <typename T>
static __device__ __forceinline__ T rounded(scaled<T> value) {
  using exponential_detail::power_of_two;
  constexpr int bias = exponential_detail::format<T>::bias;
  if (value.exponent == NO_EXPONENT) return value.mantissa;
  if (value.exponent > bias) return limits<T>::highest();
  int64_t normal = max_index(value.exponent, 1 - bias);
  // The second factor is 1 but for denormals.
  return mul_rn(mul_rn(value.mantissa, power_of_two<T>(normal)),
                power_of_two<T>(value.exponent - normal));
}

// exp(x), to about one place of the last digit.
template <typename T>
static __device__ __forceinline__ T fixed_exp(T x) {
  return rounded(scaled_exp(x, T(0)));
}
