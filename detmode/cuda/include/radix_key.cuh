// Radix keys: unsigned integers in the order of the values, so that a selection can go by digits
// and a maximum can be an integer's.
//
// For floating-point values: -inf < ... < -0.0 < 0.0 < ... < inf < NaN. All NaNs have one key, the
// largest. For integers the key is the value less the smallest of its type.
#pragma once

#include "dtype.cuh"

namespace radix_key_detail {

template <int bytes>
struct word;
template <>
struct word<1> {
  using type = uint8_t;
};
template <>
struct word<2> {
  using type = uint16_t;
};
template <>
struct word<4> {
  using type = uint32_t;
};
template <>
struct word<8> {
  using type = uint64_t;
};

static __device__ __forceinline__ uint16_t bits_of(half value) { return value.bits; }
static __device__ __forceinline__ uint16_t bits_of(bfloat16 value) { return value.bits; }
static __device__ __forceinline__ uint32_t bits_of(float value) { return float_to_bits(value); }
static __device__ __forceinline__ uint64_t bits_of(double value) { return double_to_bits(value); }

static __device__ __forceinline__ void set_bits(half& value, uint16_t bits) { value.bits = bits; }
static __device__ __forceinline__ void set_bits(bfloat16& value, uint16_t bits) {
  value.bits = bits;
}
static __device__ __forceinline__ void set_bits(float& value, uint32_t bits) {
  value = bits_to_float(bits);
}
static __device__ __forceinline__ void set_bits(double& value, uint64_t bits) {
  value = bits_to_double(bits);
}

template <typename scalar_t, bool floating>
struct mapping {
  using type = typename word<sizeof(scalar_t)>::type;
  static constexpr type offset = limits<scalar_t>::is_signed
                                     ? static_cast<type>(uint64_t(1) << (8 * sizeof(type) - 1))
                                     : type(0);
  static __device__ __forceinline__ type of(scalar_t value) {
    return static_cast<type>(static_cast<type>(value) ^ offset);
  }
  static __device__ __forceinline__ scalar_t value_of(type key) {
    return static_cast<scalar_t>(static_cast<type>(key ^ offset));
  }
  static __device__ __forceinline__ bool nan(type) { return false; }
  static __device__ __forceinline__ type merged(type key) { return key; }
};

template <typename scalar_t>
struct mapping<scalar_t, true> {
  using type = typename word<sizeof(scalar_t)>::type;
  static constexpr type sign = static_cast<type>(uint64_t(1) << (8 * sizeof(type) - 1));
  static constexpr type all = static_cast<type>(~uint64_t(0));
  static __device__ __forceinline__ type of(scalar_t value) {
    if (is_nan(value)) return all;
    type bits = bits_of(value);
    return static_cast<type>((bits & sign) != 0 ? ~bits : bits | sign);
  }
  static __device__ __forceinline__ scalar_t value_of(type key) {
    scalar_t value;
    set_bits(value, static_cast<type>((key & sign) != 0 ? key ^ sign : ~key));
    return value;
  }
  static __device__ __forceinline__ bool nan(type key) { return key == all; }
  static __device__ __forceinline__ type merged(type key) {
    return key == static_cast<type>(sign - 1) ? sign : key;
  }
};

}  // namespace radix_key_detail

// radix_key<scalar_t>::type is the unsigned type of the size of scalar_t, and
//   of(value)      its key
//   value_of(key)  the value; of a NaN's key a NaN, whose payload is not the first one's
//   nan(key)       whether the value is a NaN
//   merged(key)    the key, with that of -0.0 replaced by that of 0.0: equal where values compare
//                  equal, and for all NaNs
template <typename scalar_t>
struct radix_key : radix_key_detail::mapping<scalar_t, is_floating<scalar_t>::value> {
  static constexpr int bits = 8 * sizeof(scalar_t);
};
