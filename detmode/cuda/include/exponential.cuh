// exp() and log() with the same bits on every GPU, with every version of CUDA, and on the host, and
// numbers of any size to multiply an exp() by.
//
// CUDA's expf ends in the instruction ex2.approx, whose last bit is the GPU's own. Here every
// operation is rounded explicitly. Products and sums of exponentials need no log() where exponents
// are kept beside mantissas.
#pragma once

#include "significand.cuh"

// mantissa * 2^exponent, not negative. The mantissa is in [1, 2), or it is 0, infinity or NaN, and
// the exponent then NO_EXPONENT.
template <typename T>
struct scaled {
  T mantissa;
  int64_t exponent;
};

static constexpr int64_t NO_EXPONENT = -(int64_t(1) << 62);

namespace exponential_detail {

// 2^exponent for exponents up to exponent_limit; 0 below those of normal numbers.
template <typename T>
static __device__ __forceinline__ T power_or_zero(int64_t exponent) {
  return power_of_two<T>(max_index(exponent, -exponent_limit<T>));
}

// `mantissa` is a normal number, 0, infinity or NaN.
template <typename T>
static __device__ __forceinline__ scaled<T> normalized(T mantissa, int64_t exponent) {
  if (has_no_exponent(mantissa)) return {mantissa, NO_EXPONENT};
  return {significand_of(mantissa), exponent + exponent_of(mantissa)};
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

// Below `least`, exp is under the smallest normal number, or close to it. n ln 2 is exact in its
// high part for the exponents of T. The terms are those that matter for log.
template <typename T>
struct ends;
template <>
struct ends<float> {
  static constexpr float least = -87.0f, whole = 12582912.0f;
  static constexpr float log2_e = 1.44269502f, ln2 = 0.693147182f, ln2_rest = -1.90465430e-9f;
  static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440054690583e-4f;
  static constexpr int log_terms = 5;
};
template <>
struct ends<double> {
  static constexpr double least = -708.0, whole = 6755399441055744.0;
  static constexpr double log2_e = 1.4426950408889634;
  static constexpr double ln2 = 0.6931471805599453, ln2_rest = 2.3190468138462996e-17;
  static constexpr double ln2_high = 6.93147180369123816490e-01;
  static constexpr double ln2_low = 1.90821492927058770002e-10;
  static constexpr int log_terms = 11;
};

// exp(high + low) = value * 2^n, where high + low is n ln 2 + rest, |rest| < 0.35, and value is the
// series of rest. The sum with 1.5 times a power of two rounds to an integer.
template <typename T>
struct reduced {
  T value, n;
};
template <typename T>
static __device__ __forceinline__ reduced<T> reduced_exp(T high, T low) {
  using constants = ends<T>;
  T n = sub_rn(fma_rn(high, constants::log2_e, constants::whole), constants::whole);
  T rest = fma_rn(-n, constants::ln2, high);
  rest = add_rn(fma_rn(-n, constants::ln2_rest, rest), low);
  return {series(rest), n};
}

static __device__ __forceinline__ scaled<double> exp_of(double high, double low) {
  reduced<double> exp = reduced_exp(high, low);
  return normalized(exp.value, static_cast<int64_t>(exp.n));
}
static __device__ __forceinline__ scaled<float> exp_of(float high, float low) {
  // From here on an integer's distance to high / ln 2 would be felt.
  if (high > 65536.0f || high < -65536.0f) {
    scaled<double> wide = exp_of(static_cast<double>(high), static_cast<double>(low));
    return normalized(static_cast<float>(wide.mantissa), wide.exponent);
  }
  reduced<float> exp = reduced_exp(high, low);
  return normalized(exp.value, static_cast<int64_t>(exp.n));
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
  using exponential_detail::power_or_zero;
  int64_t exponent = max_index(max_index(a.exponent, b.exponent), c.exponent);
  T sum = mul_rn(a.mantissa, power_or_zero<T>(a.exponent - exponent));
  sum = fma_rn(b.mantissa, power_or_zero<T>(b.exponent - exponent), sum);
  sum = fma_rn(c.mantissa, power_or_zero<T>(c.exponent - exponent), sum);
  return exponential_detail::normalized(sum, exponent);
}

// The number as a T, rounded once: into denormals and zero, or to infinity.
template <typename T>
static __device__ __forceinline__ T rounded(scaled<T> value) {
  if (value.exponent == NO_EXPONENT) return value.mantissa;
  return times_power_of_two(value.mantissa, value.exponent);
}

// exp(x), to about one unit in the last place.
template <typename T>
static __device__ __forceinline__ T fixed_exp(T x) {
  return rounded(scaled_exp(x, T(0)));
}

// fixed_exp(x) for x <= 0, but 0 where that would be denormal, or close to it: fewer steps.
template <typename T>
static __device__ __forceinline__ T exp_nonpositive(T x) {
  constexpr T least = exponential_detail::ends<T>::least;
  if (!(x >= least)) return x < least ? T(0) : x;
  exponential_detail::reduced<T> exp = exponential_detail::reduced_exp(x, T(0));
  return mul_rn(exp.value, power_of_two<T>(static_cast<int64_t>(exp.n)));
}

// log(x) for a positive, normal, finite x, to about one unit in the last place. NaN is NaN.
template <typename T>
static __device__ __forceinline__ T log_normal(T x) {
  using constants = exponential_detail::ends<T>;
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
  T series = static_cast<T>(2.0 / (2 * constants::log_terms + 1));
#pragma unroll
  for (int k = constants::log_terms - 1; k >= 1; --k) {
    series = fma_rn(series, square, static_cast<T>(2.0 / (2 * k + 1)));
  }
  T count = static_cast<T>(e);
  T low = fma_rn(z, fma_rn(series, square, half_square), mul_rn(count, constants::ln2_low));
  return fma_rn(count, constants::ln2_high, add_rn(r, sub_rn(low, half_square)));
}
