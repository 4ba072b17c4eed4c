// Values as integers in their order, so that a selection can go by digits, and a maximum be an
// integer's: no order of threads changes that one, and every GPU has its atomics in hardware.
//
// For floating-point values: -inf < ... < -0.0 < 0.0 < ... < inf < NaN. All NaNs have one key, the
// largest. For integers the key is the value less the smallest of its type.
#pragma once

#include "dtype.cuh"
#include "index.cuh"

namespace ordered_detail {

// The unsigned type of so many bytes.
template <int bytes>
using word = typename conditional<
    bytes == 8, uint64_t,
    typename conditional<bytes == 4, uint32_t,
                         typename conditional<bytes == 2, uint16_t, uint8_t>::type>::type>::type;

template <typename scalar_t, bool floating>
struct mapping {
  using type = word<sizeof(scalar_t)>;
  static constexpr type offset = limits<scalar_t>::is_signed
                                     ? static_cast<type>(uint64_t(1) << (8 * sizeof(type) - 1))
                                     : type(0);
  static __device__ __forceinline__ type of(scalar_t value) {
    return static_cast<type>(static_cast<type>(value) ^ offset);
  }
  static __device__ __forceinline__ scalar_t value_of(type key) {
    return static_cast<scalar_t>(static_cast<type>(key ^ offset));
  }
  static constexpr bool has_nan = false;
  static __device__ __forceinline__ bool nan(type) { return false; }
  static __device__ __forceinline__ scalar_t one_nan() { return scalar_t(0); }
  static __device__ __forceinline__ type merged(type key) { return key; }
};

template <typename scalar_t>
struct mapping<scalar_t, true> {
  using type = typename format<scalar_t>::word;
  static constexpr type sign = static_cast<type>(uint64_t(1) << (8 * sizeof(type) - 1));
  static constexpr type all = static_cast<type>(~uint64_t(0));
  static __device__ __forceinline__ type of(scalar_t value) {
    if (is_nan(value)) return all;
    type bits = format<scalar_t>::to_bits(value);
    return static_cast<type>((bits & sign) != 0 ? ~bits : bits | sign);
  }
  static __device__ __forceinline__ scalar_t value_of(type key) {
    return format<scalar_t>::from_bits(static_cast<type>((key & sign) != 0 ? key ^ sign : ~key));
  }
  static constexpr bool has_nan = true;
  static __device__ __forceinline__ bool nan(type key) { return key == all; }
  static __device__ __forceinline__ scalar_t one_nan() { return limits<scalar_t>::nan(); }
  static __device__ __forceinline__ type merged(type key) {
    return key == static_cast<type>(sign - 1) ? sign : key;
  }
};

}  // namespace ordered_detail

// radix_key<scalar_t>::type is the unsigned type of the size of scalar_t, and
//   of(value)      its key
//   value_of(key)  the value; of a NaN's key a NaN, whose payload is not the first one's
//   nan(key)       whether the value is a NaN; has_nan, whether there are any
//   one_nan()      the NaN of `limits`
//   merged(key)    the key, with that of -0.0 replaced by that of 0.0: equal where values compare
//                  equal, and for all NaNs
template <typename scalar_t>
struct radix_key : ordered_detail::mapping<scalar_t, is_floating<scalar_t>::value> {
  static constexpr int bits = 8 * sizeof(scalar_t);
};

// Maxima and minima by integer atomics. A NaN wins as in ATen, for a minimum too; and -0.0 lies
// below 0.0, so that the bits of the result do not depend on which of the two came first.
//
//   launch 1: extremum<scalar_t>::observe(keys, destination, value, largest);
//   launch 2: if (extremum<scalar_t>::any(keys, destination))
//               output[destination] = extremum<scalar_t>::finish(keys, destination, largest);
//
// Keys start at the smallest key_t, which means that nothing was observed. For int32_t and int64_t
// it is a value's key as well: of the lowest value for a maximum, of the highest for a minimum.
template <typename scalar_t>
struct extremum {
  using radix = radix_key<scalar_t>;
  // The atomics' integers are signed, and of 32 bits at least.
  using key_t = typename conditional<sizeof(scalar_t) == 8, int64_t, int32_t>::type;
  using unsigned_t = typename conditional<sizeof(scalar_t) == 8, uint64_t, uint32_t>::type;
  static constexpr unsigned_t half_range = unsigned_t(1) << (radix::bits - 1);

  static __device__ __forceinline__ key_t key_of(scalar_t value, bool largest) {
    typename radix::type key = radix::of(value);
    if (radix::nan(key)) return limits<key_t>::highest();
    key_t rank = static_cast<key_t>(static_cast<unsigned_t>(key) - half_range);
    return largest ? rank : ~rank;
  }
  static __device__ __forceinline__ void observe(key_t* keys, int64_t destination, scalar_t value,
                                                 bool largest) {
    raise_to(keys + destination, key_of(value, largest));
  }
  // Whether a value was observed, but for the one of int32_t and int64_t that has the same key.
  static __device__ __forceinline__ bool any(const key_t* keys, int64_t destination) {
    return keys[destination] != limits<key_t>::lowest();
  }
  static __device__ __forceinline__ scalar_t finish(const key_t* keys, int64_t destination,
                                                    bool largest) {
    key_t key = keys[destination];
    if (radix::has_nan && key == limits<key_t>::highest()) return radix::one_nan();
    unsigned_t rank = static_cast<unsigned_t>(largest ? key : ~key);
    return radix::value_of(static_cast<typename radix::type>(rank + half_range));
  }
};
