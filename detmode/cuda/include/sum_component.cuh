// The arithmetic of one real component of a reproducible sum (accumulator.cuh): the key of an
// addend, the integer that the key makes of it, and a sum of such integers rounded to a dtype,
// once.
#pragma once

#include "dtype.cuh"
#include "significand.cuh"

namespace accumulator_detail {

// Keys, in the order in which atomicMax prefers them. A finite addend that is not zero has the key
// 2 + its biased exponent; a denormal counts as exponent 1.
constexpr int32_t NO_ADDEND = 0;
constexpr int32_t NEGATIVE_ZEROS = 1;
constexpr int32_t ZEROS = 2;
constexpr int32_t SPECIAL = 1 << 20;

// For a SPECIAL key the first limb holds these instead of a sum.
constexpr uint64_t SAW_NAN = 1;
constexpr uint64_t SAW_POSITIVE_INFINITY = 2;
constexpr uint64_t SAW_NEGATIVE_INFINITY = 4;

// A word of T's size as a T, and how many bits it has.
template <typename T>
static __device__ __forceinline__ T from_bits(uint64_t word) {
  return format<T>::from_bits(static_cast<typename format<T>::word>(word));
}
template <typename T>
constexpr int bits_of = 8 * static_cast<int>(sizeof(T));
template <typename T>
constexpr uint64_t infinity_of =
    ((uint64_t(1) << (bits_of<T> - format<T>::precision)) - 1) << (format<T>::precision - 1);

// value >> shift, rounded to nearest, ties to even; 0 < shift.
static __device__ __forceinline__ uint64_t shift_right_rn(uint64_t value, int shift) {
  if (shift > 64) return 0;
  if (shift == 64) return value > (uint64_t(1) << 63) ? 1 : 0;
  uint64_t quotient = value >> shift;
  uint64_t rest = value & ((uint64_t(1) << shift) - 1);
  uint64_t middle = uint64_t(1) << (shift - 1);
  return quotient + (rest > middle || (rest == middle && (quotient & 1)) ? 1 : 0);
}

// Rounds the integer high * 2^64 + low < 2^126, times 2^exponent, to the format of T, once: to
// nearest, ties to even, into denormals and infinity. Zero gives +0.0 or, where `negative`, -0.0.
template <typename T>
static __device__ __forceinline__ T round_to(bool negative, uint64_t high, uint64_t low,
                                             int exponent) {
  using F = format<T>;
  constexpr uint64_t infinity = infinity_of<T>;
  uint64_t word = 0;
  if ((high | low) != 0) {
    int length = high != 0 ? 128 - __clzll(static_cast<int64_t>(high))
                           : 64 - __clzll(static_cast<int64_t>(low));
    int leading = exponent + length - 1;
    int smallest = 1 - F::bias;
    int biased = leading > smallest ? leading + F::bias : 1;
    // The exponent of the result's last place, less the integer's: the bits that must go.
    int shift = biased - F::bias - (F::precision - 1) - exponent;
    uint64_t significand;
    if (shift <= 0) {
      significand = -shift < 64 ? low << -shift : 0;
    } else if (shift < 64) {
      uint64_t quotient = (high << 1 << (63 - shift)) | (low >> shift);
      uint64_t rest = low & ((uint64_t(1) << shift) - 1);
      uint64_t middle = uint64_t(1) << (shift - 1);
      significand = quotient + (rest > middle || (rest == middle && (quotient & 1)) ? 1 : 0);
    } else {
      // `low` lies below the last place: half of it, and a sticky bit for the rest, decide.
      uint64_t sticky = (low << 1) != 0 ? 1 : 0;
      significand = shift_right_rn((high << 2) | (low >> 63 << 1) | sticky, shift - 62);
    }
    if (biased >= 2 * F::bias + 1) {
      word = infinity;
    } else {
      // The leading one adds itself to the exponent; so does a carry out of the rounding.
      word = (static_cast<uint64_t>(biased - 1) << (F::precision - 1)) + significand;
      if (word > infinity) word = infinity;
    }
  }
  return from_bits<T>(word | (negative ? uint64_t(1) << (bits_of<T> - 1) : 0));
}

// Whether doubles take a GPU as long as integers: those for numerical work. On others a product or
// a conversion takes 32 or 64 times as long as one of floats.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 700 || __CUDA_ARCH__ == 800 || \
                               __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)
constexpr bool QUICK_DOUBLE = true;
#else
constexpr bool QUICK_DOUBLE = false;
#endif

// One real component, added as value_t (float or double).
template <typename value_t>
struct component {
  using F = format<value_t>;
  static constexpr int limbs = sizeof(value_t) == 8 ? 2 : 1;
  static constexpr int exponent_mask = 2 * F::bias + 1;

  static __device__ __forceinline__ int exponent_of(uint64_t word) {
    return static_cast<int>(word >> (F::precision - 1)) & exponent_mask;
  }
  static __device__ __forceinline__ bool negative(uint64_t word) {
    return (word >> (bits_of<value_t> - 1)) != 0;
  }
  static __device__ __forceinline__ uint64_t fraction_of(uint64_t word) {
    return word & ((uint64_t(1) << (F::precision - 1)) - 1);
  }

  static __device__ __forceinline__ int32_t key_of(value_t addend) {
    uint64_t word = F::to_bits(addend);
    int exponent = exponent_of(word);
    if (exponent == exponent_mask) return SPECIAL;
    if (exponent != 0) return ZEROS + exponent;
    if (fraction_of(word) != 0) return ZEROS + 1;
    return negative(word) ? NEGATIVE_ZEROS : ZEROS;
  }
  // The same, but for zeros, which have a denormal's: a sum of them is 0 all the same.
  static __device__ __forceinline__ int32_t key_among_zeros(value_t addend) {
    int exponent = exponent_of(F::to_bits(addend));
    return exponent == exponent_mask ? SPECIAL : ZEROS + (exponent > 1 ? exponent : 1);
  }

  // A float times 2^power, rounded to nearest even, in two ways: exact in double, which holds a
  // float and any such power, until it is rounded; and by a shift of its significand, of which
  // nothing is left a bit below the last one.
  static __device__ __forceinline__ int64_t scaled_in_double(float x, int64_t power) {
    return __double2ll_rn(mul_rn(static_cast<double>(x), power_of_two<double>(power)));
  }
  static __device__ __forceinline__ int64_t scaled_by_shift(uint32_t significand, bool negative,
                                                            int shift) {
    int dropped = shift >= 0 ? 1 : shift < -31 ? 31 : -shift;
    uint32_t below_half = (uint32_t(1) << (dropped - 1)) - 1, odd = significand >> dropped & 1;
    uint64_t rounded = (significand + below_half + odd) >> dropped;
    uint64_t whole = static_cast<uint64_t>(significand) << (shift & 63);
    uint64_t magnitude = shift < 0 ? rounded : whole;
    return static_cast<int64_t>(negative ? 0 - magnitude : magnitude);
  }

  // Sets what an addend adds to the limbs; false, and nothing set, where that is nothing. An
  // infinity or NaN is noted in the first limb at once.
  static __device__ __forceinline__ bool scale(int32_t key, int64_t* limb, value_t addend,
                                               int64_t headroom, int64_t (&parts)[limbs]) {
    if (key <= ZEROS) return false;
    uint64_t word = F::to_bits(addend);
    int exponent = exponent_of(word);
    uint64_t fraction = fraction_of(word);
    if (key >= SPECIAL) {
      if (exponent != exponent_mask) return false;
      atomicOr(reinterpret_cast<unsigned long long*>(limb), fraction != 0 ? SAW_NAN
                                                            : negative(word)
                                                                ? SAW_NEGATIVE_INFINITY
                                                                : SAW_POSITIVE_INFINITY);
      return false;
    }
    // The largest addend's leading bit is bit `limbs * width - 1` of the integer.
    int width = 63 - static_cast<int>(headroom);
    if (limbs == 1 && QUICK_DOUBLE) {
      parts[0] = scaled_in_double(addend, width - 1 - (key - ZEROS - F::bias));
      return true;
    }
    uint64_t significand =
        exponent != 0 ? fraction | (uint64_t(1) << (F::precision - 1)) : fraction;
    if (exponent == 0) exponent = 1;
    int shift = limbs * width - F::precision - (key - ZEROS - exponent);
    if (limbs == 1) {
      parts[0] = scaled_by_shift(static_cast<uint32_t>(significand), negative(word), shift);
      return true;
    }
    uint64_t high, low = 0;
    if (shift >= width) {
      high = significand << (shift - width);
    } else if (shift > 0) {
      int split = width - shift;
      high = significand >> split;
      low = (significand & ((uint64_t(1) << split) - 1)) << shift;
    } else {
      uint64_t value = shift == 0 ? significand : shift_right_rn(significand, -shift);
      high = value >> width;
      low = value & ((uint64_t(1) << width) - 1);
    }
    parts[0] = static_cast<int64_t>(negative(word) ? 0 - high : high);
    parts[limbs - 1] = static_cast<int64_t>(negative(word) ? 0 - low : low);
    return true;
  }

  template <typename result_t>
  static __device__ __forceinline__ result_t finish(int32_t key, const int64_t* limb,
                                                    int64_t headroom) {
    if (key <= ZEROS) return round_to<result_t>(key == NEGATIVE_ZEROS, 0, 0, 0);
    if (key >= SPECIAL) {
      uint64_t saw = static_cast<uint64_t>(limb[0]);
      constexpr uint64_t infinity = infinity_of<result_t>;
      if (saw == SAW_POSITIVE_INFINITY) return from_bits<result_t>(infinity);
      if (saw == SAW_NEGATIVE_INFINITY) {
        return from_bits<result_t>(infinity | (uint64_t(1) << (bits_of<result_t> - 1)));
      }
      return from_bits<result_t>(infinity | (uint64_t(1) << (format<result_t>::precision - 2)));
    }
    int width = 63 - static_cast<int>(headroom);
    int exponent = key - ZEROS - F::bias - (limbs * width - 1);
    int64_t first = limb[0];
    if (limbs == 1) {
      bool is_negative = first < 0;
      uint64_t magnitude = static_cast<uint64_t>(first);
      return round_to<result_t>(is_negative, 0, is_negative ? 0 - magnitude : magnitude, exponent);
    }
    // limb[0] * 2^width + limb[1] in 128 bits of two's complement.
    int64_t second = limb[1];
    uint64_t low = static_cast<uint64_t>(first) << width;
    uint64_t high = static_cast<uint64_t>(first >> (64 - width));
    uint64_t sum = low + static_cast<uint64_t>(second);
    high += static_cast<uint64_t>(second >> 63) + (sum < low ? 1 : 0);
    low = sum;
    bool is_negative = (high >> 63) != 0;
    if (is_negative) {
      low = 0 - low;
      high = ~high + (low == 0 ? 1 : 0);
    }
    return round_to<result_t>(is_negative, high, low, exponent);
  }
};

// A component of a number: the number itself, unless it is complex.
template <typename T>
static __device__ __forceinline__ T component_of(T x, int) {
  return x;
}
template <typename T>
static __device__ __forceinline__ T component_of(complex<T> x, int component) {
  return component == 0 ? x.re : x.im;
}

}  // namespace accumulator_detail
