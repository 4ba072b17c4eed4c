// The reproducible accumulator: sums that do not depend on the order of their addends.
//
// Pass 1 takes, per destination, the largest exponent of its addends (integer atomicMax). Pass 2
// writes each addend as an integer on the grid that this exponent and the headroom fix, and adds
// the integers (integer atomicAdd). Integer addition is associative, so any order, any GPU and any
// launch shape give the same bits. The sum is rounded to the dtype once, at the end.
//
// A destination of dtype scalar_t has `components` keys of int32 and `components * limbs` limbs of
// int64, both zero at the start. Between the passes lies the end of a launch; of a block that keeps
// them in its shared memory, a barrier.
//
//   launch 1: accumulator<scalar_t>::observe(keys, destination, addend);
//   launch 2: accumulator<scalar_t>::add(keys, limbs, destination, addend, headroom);
//   launch 3: if (accumulator<scalar_t>::any(keys, destination))
//               out[destination] = accumulator<scalar_t>::finish(keys, limbs, destination,
//               headroom);
//
// `headroom` is ceil(log2(n + 1)) for n no less than the number of addends of any destination, the
// initial value included where it is one. It is at most 36; the same in launches 2 and 3.
//
// Against a sum of float64 or of exact rationals: an addend is rounded to 2^(headroom - 62) of the
// largest addend (float and 16-bit types) or to 2^(2 * headroom - 125) (double), then nothing is
// lost before the last rounding. NaN, infinities and signed zeros come out as from IEEE additions:
// addends of -0.0 alone give -0.0, so where ATen adds to zeros, 0.0 joins the addends.
#pragma once

#include "crowd.cuh"
#include "dtype.cuh"
#include "index.cuh"
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
  uint64_t kept = value >> shift;
  uint64_t rest = value & ((uint64_t(1) << shift) - 1);
  uint64_t middle = uint64_t(1) << (shift - 1);
  return kept + (rest > middle || (rest == middle && (kept & 1)) ? 1 : 0);
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
      uint64_t kept = (high << 1 << (63 - shift)) | (low >> shift);
      uint64_t rest = low & ((uint64_t(1) << shift) - 1);
      uint64_t middle = uint64_t(1) << (shift - 1);
      significand = kept + (rest > middle || (rest == middle && (kept & 1)) ? 1 : 0);
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

  // `seen`: what the key was, or less. A stale read only costs an atomic that changes nothing; most
  // addends of a crowded destination need none, if they ask again.
  static __device__ __forceinline__ void raise(int32_t* key, int32_t own, int32_t seen) {
    if (seen < own && load_relaxed(key) < own) atomicMax(key, own);
  }

  // The same in a block's shared memory.
  static __device__ __forceinline__ void observe_in_block(int32_t* key, value_t addend) {
    int32_t own = key_of(addend);
    if (load_in_block(key) < own) atomicMax(key, own);
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
    if (limbs == 1) {
      // Exact in double, which holds a float and any such power, until it is rounded as above.
      int64_t power = width - 1 - (key - ZEROS - F::bias);
      parts[0] = __double2ll_rn(mul_rn(static_cast<double>(addend), power_of_two<double>(power)));
      return true;
    }
    uint64_t significand =
        exponent != 0 ? fraction | (uint64_t(1) << (F::precision - 1)) : fraction;
    if (exponent == 0) exponent = 1;
    int shift = limbs * width - F::precision - (key - ZEROS - exponent);
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

}  // namespace accumulator_detail

template <typename scalar_t>
struct accumulator {
  using opmath_type = opmath_t<scalar_t>;
  using part = accumulator_detail::component<opmath_type>;
  static constexpr int components = 1, limbs = part::limbs;

  // Addends come in opmath_t: a product with a weight is not rounded to 16 bits before it is added.
  static __device__ __forceinline__ void observe(int32_t* keys, int64_t destination,
                                                 opmath_type addend) {
    raise(keys, destination, part::key_of(addend));
  }
  // The same in two steps, so that the reads of several addends are in flight together.
  using key_t = int32_t;
  static __device__ __forceinline__ key_t seen(const int32_t* keys, int64_t destination) {
    return load_relaxed(keys + destination);
  }
  static __device__ __forceinline__ void observe(int32_t* keys, int64_t destination,
                                                 opmath_type addend, key_t seen) {
    part::raise(keys + destination, part::key_of(addend), seen);
  }
  static __device__ __forceinline__ void add(const int32_t* keys, int64_t* sums,
                                             int64_t destination, opmath_type addend,
                                             int64_t headroom) {
    int64_t parts[limbs];
    set_parts(keys, sums, destination, addend, headroom, parts);
    add_parts(sums, destination, parts);
  }
  // Both with a step in between, in which what threads have for one destination can be joined: the
  // largest of their keys, the sum of their parts.
  static __device__ __forceinline__ int32_t key_of(opmath_type addend) {
    return part::key_of(addend);
  }
  static __device__ __forceinline__ void raise(int32_t* keys, int64_t destination, int32_t own) {
    part::raise(keys + destination, own, accumulator_detail::NO_ADDEND);
  }
  static __device__ __forceinline__ void set_parts(const int32_t* keys, int64_t* sums,
                                                   int64_t destination, opmath_type addend,
                                                   int64_t headroom, int64_t (&parts)[limbs]) {
    for (int k = 0; k < limbs; ++k) parts[k] = 0;
    part::scale(keys[destination], sums + destination * limbs, addend, headroom, parts);
  }
  static __device__ __forceinline__ void add_parts(int64_t* sums, int64_t destination,
                                                   const int64_t (&parts)[limbs]) {
    for (int k = 0; k < limbs; ++k) {
      if (parts[k] != 0) atomic_add(sums + destination * limbs + k, parts[k]);
    }
  }
  // As add, with the destination's key; where `together` holds, all threads of a warp call it at
  // once (crowd.cuh).
  static __device__ __forceinline__ key_t key(const int32_t* keys, int64_t destination) {
    return keys[destination];
  }
  static __device__ __forceinline__ void add_in_warp(key_t key, int64_t* sums, int64_t destination,
                                                     opmath_type addend, int64_t headroom,
                                                     bool together) {
    int64_t *limb = sums + destination * limbs, parts[limbs] = {};
    part::scale(key, limb, addend, headroom, parts);
    ::add_in_warp(limb, parts, together);
  }
  // Both for keys and sums in a block's shared memory.
  static __device__ __forceinline__ void observe_in_block(int32_t* keys, int64_t destination,
                                                          opmath_type addend) {
    part::observe_in_block(keys + destination, addend);
  }
  static __device__ __forceinline__ void add_in_block(const int32_t* keys, int64_t* sums,
                                                      int64_t destination, opmath_type addend,
                                                      int64_t headroom) {
    int64_t *limb = sums + destination * limbs, parts[limbs];
    if (!part::scale(keys[destination], limb, addend, headroom, parts)) return;
    for (int k = 0; k < limbs; ++k) ::add_in_block(limb + k, parts[k]);
  }
  // Whether the destination has met an addend; without one it keeps its bits.
  static __device__ __forceinline__ bool any(const int32_t* keys, int64_t destination) {
    return keys[destination] != accumulator_detail::NO_ADDEND;
  }
  static __device__ __forceinline__ scalar_t finish(const int32_t* keys, const int64_t* sums,
                                                    int64_t destination, int64_t headroom) {
    return part::template finish<scalar_t>(keys[destination], sums + destination * limbs, headroom);
  }
  // The sum in opmath_t, for a division (mean) before the rounding to scalar_t.
  static __device__ __forceinline__ opmath_type finish_opmath(const int32_t* keys,
                                                              const int64_t* sums,
                                                              int64_t destination,
                                                              int64_t headroom) {
    return part::template finish<opmath_type>(keys[destination], sums + destination * limbs,
                                              headroom);
  }
};

// Complex numbers are two components with a key each, as their addition is.
template <typename T>
struct accumulator<complex<T>> {
  using part = accumulator<T>;
  static constexpr int components = 2, limbs = part::limbs;

  static __device__ __forceinline__ void observe(int32_t* keys, int64_t destination,
                                                 complex<T> addend) {
    part::observe(keys, 2 * destination, addend.re);
    part::observe(keys, 2 * destination + 1, addend.im);
  }
  struct key_t {
    int32_t re, im;
  };
  static __device__ __forceinline__ key_t seen(const int32_t* keys, int64_t destination) {
    return key_t{part::seen(keys, 2 * destination), part::seen(keys, 2 * destination + 1)};
  }
  static __device__ __forceinline__ void observe(int32_t* keys, int64_t destination,
                                                 complex<T> addend, key_t seen) {
    part::observe(keys, 2 * destination, addend.re, seen.re);
    part::observe(keys, 2 * destination + 1, addend.im, seen.im);
  }
  static __device__ __forceinline__ void add(const int32_t* keys, int64_t* sums,
                                             int64_t destination, complex<T> addend,
                                             int64_t headroom) {
    part::add(keys, sums, 2 * destination, addend.re, headroom);
    part::add(keys, sums, 2 * destination + 1, addend.im, headroom);
  }
  static __device__ __forceinline__ key_t key(const int32_t* keys, int64_t destination) {
    return key_t{keys[2 * destination], keys[2 * destination + 1]};
  }
  static __device__ __forceinline__ void add_in_warp(key_t key, int64_t* sums, int64_t destination,
                                                     complex<T> addend, int64_t headroom,
                                                     bool together) {
    part::add_in_warp(key.re, sums, 2 * destination, addend.re, headroom, together);
    part::add_in_warp(key.im, sums, 2 * destination + 1, addend.im, headroom, together);
  }
  static __device__ __forceinline__ void observe_in_block(int32_t* keys, int64_t destination,
                                                          complex<T> addend) {
    part::observe_in_block(keys, 2 * destination, addend.re);
    part::observe_in_block(keys, 2 * destination + 1, addend.im);
  }
  static __device__ __forceinline__ void add_in_block(const int32_t* keys, int64_t* sums,
                                                      int64_t destination, complex<T> addend,
                                                      int64_t headroom) {
    part::add_in_block(keys, sums, 2 * destination, addend.re, headroom);
    part::add_in_block(keys, sums, 2 * destination + 1, addend.im, headroom);
  }
  static __device__ __forceinline__ bool any(const int32_t* keys, int64_t destination) {
    return part::any(keys, 2 * destination);
  }
  static __device__ __forceinline__ complex<T> finish(const int32_t* keys, const int64_t* sums,
                                                      int64_t destination, int64_t headroom) {
    return complex<T>(part::finish(keys, sums, 2 * destination, headroom),
                      part::finish(keys, sums, 2 * destination + 1, headroom));
  }
  static __device__ __forceinline__ complex<T> finish_opmath(const int32_t* keys,
                                                             const int64_t* sums,
                                                             int64_t destination,
                                                             int64_t headroom) {
    return finish(keys, sums, destination, headroom);
  }
};
