// Maxima and minima by integer atomics: keys, integers in the order of the values.
//
// An integer maximum does not depend on the order of threads, and every GPU has it in hardware. A
// NaN has the largest key, for a minimum too, so that it wins as in ATen; and -0.0 lies below 0.0,
// so that the bits of the result do not depend on which of the two came first.
//
//   launch 1: extremum<scalar_t>::observe(keys, destination, value, largest);
//   launch 2: if (extremum<scalar_t>::any(keys, destination))
//               output[destination] = extremum<scalar_t>::finish(keys, destination, largest);
//
// Keys start at the smallest key_t, which means that nothing was observed. For int32_t and int64_t
// it is a value's key as well: of the lowest value for a maximum, of the highest for a minimum.
#pragma once

#include "dtype.cuh"
#include "index.cuh"

namespace ordered_detail {

// The bits of a floating-point value as a signed integer of the same width, and back.
static __device__ __forceinline__ int16_t word_of(half x) { return static_cast<int16_t>(x.bits); }
static __device__ __forceinline__ int16_t word_of(bfloat16 x) {
  return static_cast<int16_t>(x.bits);
}
static __device__ __forceinline__ int32_t word_of(float x) {
  return static_cast<int32_t>(float_to_bits(x));
}
static __device__ __forceinline__ int64_t word_of(double x) {
  return static_cast<int64_t>(double_to_bits(x));
}
static __device__ __forceinline__ void from_word(int16_t word, half& x) {
  x.bits = static_cast<uint16_t>(word);
}
static __device__ __forceinline__ void from_word(int16_t word, bfloat16& x) {
  x.bits = static_cast<uint16_t>(word);
}
static __device__ __forceinline__ void from_word(int32_t word, float& x) {
  x = bits_to_float(static_cast<uint32_t>(word));
}
static __device__ __forceinline__ void from_word(int64_t word, double& x) {
  x = bits_to_double(static_cast<uint64_t>(word));
}

// Negative floating-point numbers have their magnitude's bits turned round; twice is nothing.
template <typename word_t>
static __device__ __forceinline__ word_t turned(word_t word) {
  return word < 0 ? static_cast<word_t>(word ^ limits<word_t>::highest()) : word;
}

template <typename scalar_t, bool floating>
struct ranking {
  using key_t = typename conditional<sizeof(scalar_t) == 8, int64_t, int32_t>::type;
  static __device__ __forceinline__ bool is_nan(scalar_t) { return false; }
  static __device__ __forceinline__ key_t rank(scalar_t value) { return value; }
  static __device__ __forceinline__ scalar_t value_of(key_t rank, bool) {
    return static_cast<scalar_t>(rank);
  }
};
template <typename scalar_t>
struct ranking<scalar_t, true> {
  using key_t = typename conditional<sizeof(scalar_t) == 8, int64_t, int32_t>::type;
  using word_t = decltype(word_of(scalar_t()));
  static __device__ __forceinline__ bool is_nan(scalar_t value) { return ::is_nan(value); }
  static __device__ __forceinline__ key_t rank(scalar_t value) { return turned(word_of(value)); }
  static __device__ __forceinline__ scalar_t value_of(key_t rank, bool is_nan) {
    if (is_nan) return limits<scalar_t>::nan();
    scalar_t value;
    from_word(turned(static_cast<word_t>(rank)), value);
    return value;
  }
};

}  // namespace ordered_detail

template <typename scalar_t>
struct extremum {
  using ranks = ordered_detail::ranking<scalar_t, is_floating<scalar_t>::value>;
  using key_t = typename ranks::key_t;

  static __device__ __forceinline__ key_t key_of(scalar_t value, bool largest) {
    if (ranks::is_nan(value)) return limits<key_t>::highest();
    key_t rank = ranks::rank(value);
    return largest ? rank : ~rank;
  }
  static __device__ __forceinline__ void observe(key_t* keys, int64_t destination, scalar_t value,
                                                 bool largest) {
    key_t own = key_of(value, largest);
    // A stale read only costs an atomic that changes nothing.
    if (*static_cast<volatile key_t*>(keys + destination) < own) {
      atomic_max(keys + destination, own);
    }
  }
  // Whether a value was observed, but for the one of int32_t and int64_t that has the same key.
  static __device__ __forceinline__ bool any(const key_t* keys, int64_t destination) {
    return keys[destination] != limits<key_t>::lowest();
  }
  static __device__ __forceinline__ scalar_t finish(const key_t* keys, int64_t destination,
                                                    bool largest) {
    key_t key = keys[destination];
    return ranks::value_of(largest ? key : ~key, key == limits<key_t>::highest());
  }
};
