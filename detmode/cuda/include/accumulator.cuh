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
//   accumulator<scalar_t> totals(keys, sums, headroom);
//   launch 1: totals.observe(destination, addend);
//   launch 2: totals.add(destination, addend);
//   launch 3: if (totals.any(destination)) out[destination] = totals.finish(destination);
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

// Keys and sums in memory.
struct in_memory {
  static __device__ __forceinline__ void raise(int32_t* key, int32_t to) { raise_to(key, to); }
  static __device__ __forceinline__ void add(int64_t* limb, int64_t part) {
    if (part != 0) atomic_add(limb, part);
  }
};

// Keys and sums in a block's shared memory.
struct in_block {
  static __device__ __forceinline__ void raise(int32_t* key, int32_t to) {
    raise_in_block(key, to);
  }
  static __device__ __forceinline__ void add(int64_t* limb, int64_t part) {
    add_in_block(limb, part);
  }
};

// Complex numbers are two components with a key each, as their addition is.
template <typename scalar_t, typename space = in_memory>
class accumulator {
  using part = accumulator_detail::component<opmath_t<real_t<scalar_t>>>;

 public:
  static constexpr int components = is_same<scalar_t, real_t<scalar_t>>::value ? 1 : 2;
  static constexpr int limbs = part::limbs;
  // Addends come in opmath_t: a product with a weight is not rounded to 16 bits before it is added.
  using addend_t = opmath_t<scalar_t>;
  struct key_t {
    int32_t of[components];
  };

  // What a launch only reads is const there.
  __device__ __forceinline__ accumulator(const int32_t* keys, const int64_t* sums, int64_t headroom)
      : keys_(const_cast<int32_t*>(keys)), sums_(const_cast<int64_t*>(sums)), headroom_(headroom) {}

  // Of `destinations` in a block's dynamic shared memory; behind their sums lie their keys.
  static __device__ __forceinline__ accumulator in_shared(int64_t destinations, int64_t headroom) {
    int64_t* sums = dynamic_shared<int64_t>();
    int64_t* behind = sums + destinations * components * limbs;
    return accumulator(reinterpret_cast<int32_t*>(behind), sums, headroom);
  }
  __device__ __forceinline__ int32_t* behind_keys(int64_t destinations) const {
    return key_at(destinations, 0);
  }
  __device__ __forceinline__ void clear(int64_t destination) const {
    for (int c = 0; c < components; ++c) {
      *key_at(destination, c) = accumulator_detail::NO_ADDEND;
      for (int k = 0; k < limbs; ++k) limb_at(destination, c)[k] = 0;
    }
  }

  __device__ __forceinline__ void observe(int64_t destination, addend_t addend) const {
    raise(destination, key_of(addend));
  }
  // The same for sums that finish_from_zero finishes, in fewer instructions.
  __device__ __forceinline__ void observe_from_zero(int64_t destination, addend_t addend) const {
    for (int c = 0; c < components; ++c) {
      auto value = accumulator_detail::component_of(addend, c);
      space::raise(key_at(destination, c), part::key_among_zeros(value));
    }
  }
  __device__ __forceinline__ void add(int64_t destination, addend_t addend) const {
    for (int c = 0; c < components; ++c) {
      int64_t parts[limbs];
      if (!scale(*key_at(destination, c), destination, c, addend, parts)) continue;
      for (int k = 0; k < limbs; ++k) space::add(limb_at(destination, c) + k, parts[k]);
    }
  }
  // For a kernel that is launched twice: without sums it observes its addends.
  __device__ __forceinline__ void observe_or_add(int64_t destination, addend_t addend) const {
    if (sums_ == nullptr) {
      observe(destination, addend);
    } else {
      add(destination, addend);
    }
  }
  // The same for two addends of each thread, -1 where one has no destination. Where the second
  // one's destination is the first one's of the next thread, that thread adds both: half of the
  // atomics of a smooth image. `together` holds where all threads of a warp call it at once, for
  // all of them.
  __device__ __forceinline__ void observe_or_add_pair(const int64_t (&destinations)[2],
                                                      const addend_t (&addends)[2],
                                                      bool together) const {
    static_assert(components == 1, "pairs of real numbers");
    constexpr unsigned int everyone = 0xffffffffu;
    bool gives = false, takes = false;
    if (together) {
      int lane = static_cast<int>(threadIdx.x) % WARP;
      int64_t next = __shfl_down_sync(everyone, destinations[0], 1);
      gives = lane < WARP - 1 && destinations[1] >= 0 && destinations[1] == next;
      takes = __shfl_up_sync(everyone, gives ? 1 : 0, 1) != 0 && lane > 0;
    }
    bool has[2] = {destinations[0] >= 0, destinations[1] >= 0};
    bool adds[2] = {has[0], has[1] && !gives};
    if (sums_ == nullptr) {
      key_t keys[2] = {};
      for (int i = 0; i < 2; ++i) {
        if (has[i]) keys[i] = key_of(addends[i]);
      }
      if (together) {
        int32_t before = __shfl_up_sync(everyone, keys[1].of[0], 1);
        if (takes && before > keys[0].of[0]) keys[0].of[0] = before;
      }
      for (int i = 0; i < 2; ++i) {
        if (adds[i]) raise(destinations[i], keys[i]);
      }
      return;
    }
    int64_t parts[2][limbs] = {};
    for (int i = 0; i < 2; ++i) {
      if (has[i]) scale(*key_at(destinations[i], 0), destinations[i], 0, addends[i], parts[i]);
    }
    for (int k = 0; together && k < limbs; ++k) {
      int64_t before = __shfl_up_sync(everyone, parts[1][k], 1);
      if (takes) parts[0][k] += before;
    }
    for (int i = 0; i < 2; ++i) {
      for (int k = 0; adds[i] && k < limbs; ++k) {
        space::add(limb_at(destinations[i], 0) + k, parts[i][k]);
      }
    }
  }

  // In steps, so that the reads of several keys are in flight together. A key that was `seen` may
  // have been raised since.
  static __device__ __forceinline__ key_t key_of(addend_t addend) {
    key_t key;
    for (int c = 0; c < components; ++c) {
      key.of[c] = part::key_of(accumulator_detail::component_of(addend, c));
    }
    return key;
  }
  __device__ __forceinline__ key_t seen(int64_t destination) const {
    key_t key;
    for (int c = 0; c < components; ++c) key.of[c] = load_relaxed(key_at(destination, c));
    return key;
  }
  __device__ __forceinline__ void raise(int64_t destination, key_t key, key_t seen = {}) const {
    for (int c = 0; c < components; ++c) {
      if (seen.of[c] < key.of[c]) space::raise(key_at(destination, c), key.of[c]);
    }
  }
  __device__ __forceinline__ key_t key(int64_t destination) const {
    key_t key;
    for (int c = 0; c < components; ++c) key.of[c] = *key_at(destination, c);
    return key;
  }
  // Where `together` holds, all threads of a warp call it at once (crowd.cuh).
  __device__ __forceinline__ void add_in_warp(key_t key, int64_t destination, addend_t addend,
                                              bool together) const {
    for (int c = 0; c < components; ++c) {
      int64_t parts[limbs] = {};
      scale(key.of[c], destination, c, addend, parts);
      ::add_in_warp(limb_at(destination, c), parts, together);
    }
  }

  // Whether the destination has met an addend; without one it keeps its bits.
  __device__ __forceinline__ bool any(int64_t destination) const {
    return *key_at(destination, 0) != accumulator_detail::NO_ADDEND;
  }
  __device__ __forceinline__ scalar_t finish(int64_t destination) const {
    return rounded<scalar_t>(destination);
  }
  // The sum in opmath_t, for a division (mean) before the rounding to scalar_t.
  __device__ __forceinline__ addend_t finish_opmath(int64_t destination) const {
    return rounded<addend_t>(destination);
  }
  // Where ATen adds to zeros, an element without an addend is 0.0, and so is one whose addends are
  // -0.0.
  __device__ __forceinline__ scalar_t finish_from_zero(int64_t destination) const {
    scalar_t sum = finish(destination);
    return to_opmath(sum) == 0 ? from_opmath<scalar_t>(0) : sum;
  }

 private:
  __device__ __forceinline__ int32_t* key_at(int64_t destination, int component) const {
    return keys_ + destination * components + component;
  }
  __device__ __forceinline__ int64_t* limb_at(int64_t destination, int component) const {
    return sums_ + (destination * components + component) * limbs;
  }
  __device__ __forceinline__ bool scale(int32_t key, int64_t destination, int component,
                                        addend_t addend, int64_t (&parts)[limbs]) const {
    return part::scale(key, limb_at(destination, component),
                       accumulator_detail::component_of(addend, component), headroom_, parts);
  }
  template <typename result_t>
  __device__ __forceinline__ result_t rounded(int64_t destination) const {
    auto component = [&](int c) {
      return part::template finish<real_t<result_t>>(*key_at(destination, c),
                                                     limb_at(destination, c), headroom_);
    };
    if constexpr (components == 1) {
      return component(0);
    } else {
      return result_t(component(0), component(1));
    }
  }

  int32_t* keys_;
  int64_t* sums_;
  int64_t headroom_;
};
