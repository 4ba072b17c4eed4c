// The dtypes of PyTorch that CUDA C++ lacks without headers, and `opmath_t`, the type to compute
// in.
#pragma once

#include "types.cuh"

// 16-bit floats are storage: arithmetic happens in `opmath_t`, so every conversion is written out.
struct half {
  static constexpr char detmode_code = 'e';
  uint16_t bits;
  half() = default;
  __device__ __forceinline__ explicit half(float value);
  __device__ __forceinline__ explicit operator float() const;
};

struct bfloat16 {
  static constexpr char detmode_code = 'E';
  uint16_t bits;
  bfloat16() = default;
  __device__ __forceinline__ explicit bfloat16(float value);
  __device__ __forceinline__ explicit operator float() const;
};

// Rounds to nearest even. NaN becomes 0x7fff, the NaN of the GPU's own conversion, on every GPU and
// on the host.
__device__ __forceinline__ half::half(float value) {
#ifdef __CUDA_ARCH__
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
  uint32_t word = float_to_bits(value);
  uint16_t sign = static_cast<uint16_t>((word >> 16) & 0x8000u);
  uint32_t magnitude = word & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    bits = 0x7fff;
  } else if (magnitude >= 0x477ff000u) {
    // 65520, halfway between the largest half and 2^16, and all above it round to infinity.
    bits = sign | 0x7c00;
  } else if (magnitude >= 0x38800000u) {
    uint32_t odd = (magnitude >> 13) & 1u;
    bits = sign | static_cast<uint16_t>((magnitude - 0x38000000u + 0xfffu + odd) >> 13);
  } else if (magnitude <= 0x33000000u) {
    bits = sign;  // 2^-25, halfway to the smallest denormal, ties to zero
  } else {
    uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    uint32_t shift = 126u - (magnitude >> 23);
    uint32_t odd = (significand >> shift) & 1u;
    bits = sign | static_cast<uint16_t>((significand + (1u << (shift - 1)) - 1u + odd) >> shift);
  }
#endif
}

__device__ __forceinline__ half::operator float() const {
#ifdef __CUDA_ARCH__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  uint32_t exponent = (bits >> 10) & 0x1fu;
  uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0x1fu) return bits_to_float(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0) return bits_to_float(sign | ((exponent + 112u) << 23) | (fraction << 13));
  // A denormal is a small integer times 2^-24, which float holds exactly.
  float value = mul_rn(static_cast<float>(fraction), 5.9604644775390625e-08f);
  return bits_to_float(float_to_bits(value) | sign);
#endif
}

__device__ __forceinline__ bfloat16::bfloat16(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
  uint32_t word = float_to_bits(value);
  if ((word & 0x7fffffffu) > 0x7f800000u) {
    bits = 0x7fff;
  } else {
    bits = static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
  }
#endif
}

__device__ __forceinline__ bfloat16::operator float() const {
  return bits_to_float(static_cast<uint32_t>(bits) << 16);
}

// Laid out as PyTorch's complex dtypes: the real component first.
template <typename T>
struct alignas(2 * sizeof(T)) complex {
  static constexpr char detmode_code = sizeof(T) == 4 ? 'F' : 'D';
  T re;
  T im;
  complex() = default;
  __device__ __forceinline__ complex(T real, T imag) : re(real), im(imag) {}
  __device__ __forceinline__ explicit complex(T real) : re(real), im(T(0)) {}
};

template <typename T>
static __device__ __forceinline__ complex<T> operator+(complex<T> a, complex<T> b) {
  return complex<T>(add_rn(a.re, b.re), add_rn(a.im, b.im));
}
template <typename T>
static __device__ __forceinline__ complex<T> operator-(complex<T> a, complex<T> b) {
  return complex<T>(sub_rn(a.re, b.re), sub_rn(a.im, b.im));
}
template <typename T>
static __device__ __forceinline__ complex<T> operator-(complex<T> a) {
  return complex<T>(-a.re, -a.im);
}
template <typename T>
static __device__ __forceinline__ complex<T> operator*(complex<T> a, complex<T> b) {
  return complex<T>(sub_rn(mul_rn(a.re, b.re), mul_rn(a.im, b.im)),
                    add_rn(mul_rn(a.re, b.im), mul_rn(a.im, b.re)));
}
template <typename T>
static __device__ __forceinline__ bool operator==(complex<T> a, complex<T> b) {
  return a.re == b.re && a.im == b.im;
}
template <typename T>
static __device__ __forceinline__ bool operator!=(complex<T> a, complex<T> b) {
  return !(a == b);
}

// An IEEE format: the bits of the significand with the leading one, the exponent's bias, a word of
// its size.
template <typename T>
struct format;
template <typename T, int digits, int exponent_bias>
struct format_of_16_bits {
  static constexpr int precision = digits, bias = exponent_bias;
  using word = uint16_t;
  static __device__ __forceinline__ word to_bits(T value) { return value.bits; }
  static __device__ __forceinline__ T from_bits(word bits) {
    T value;
    value.bits = bits;
    return value;
  }
};
template <>
struct format<half> : format_of_16_bits<half, 11, 15> {};
template <>
struct format<bfloat16> : format_of_16_bits<bfloat16, 8, 127> {};
template <>
struct format<float> {
  static constexpr int precision = 24, bias = 127;
  using word = uint32_t;
  static __device__ __forceinline__ word to_bits(float value) { return float_to_bits(value); }
  static __device__ __forceinline__ float from_bits(word bits) { return bits_to_float(bits); }
};
template <>
struct format<double> {
  static constexpr int precision = 53, bias = 1023;
  using word = uint64_t;
  static __device__ __forceinline__ word to_bits(double value) { return double_to_bits(value); }
  static __device__ __forceinline__ double from_bits(word bits) { return bits_to_double(bits); }
};

template <typename scalar_t>
struct opmath {
  using type = scalar_t;
};
template <>
struct opmath<half> {
  using type = float;
};
template <>
struct opmath<bfloat16> {
  using type = float;
};
template <typename scalar_t>
using opmath_t = typename opmath<scalar_t>::type;

template <typename scalar_t>
static __device__ __forceinline__ opmath_t<scalar_t> to_opmath(scalar_t value) {
  return static_cast<opmath_t<scalar_t>>(value);
}
template <typename scalar_t>
static __device__ __forceinline__ scalar_t from_opmath(opmath_t<scalar_t> value) {
  return static_cast<scalar_t>(value);
}

// The real type under a dtype: float for complex<float>, scalar_t for everything else.
template <typename scalar_t>
struct real_of {
  using type = scalar_t;
};
template <typename T>
struct real_of<complex<T>> {
  using type = T;
};
template <typename scalar_t>
using real_t = typename real_of<scalar_t>::type;

template <typename scalar_t>
struct is_floating {
  static constexpr bool value =
      is_same<scalar_t, float>::value || is_same<scalar_t, double>::value ||
      is_same<scalar_t, half>::value || is_same<scalar_t, bfloat16>::value;
};

template <typename scalar_t>
static __device__ __forceinline__ bool is_nan(scalar_t value) {
  return value != value;
}
static __device__ __forceinline__ bool is_nan(half value) {
  return (value.bits & 0x7fffu) > 0x7c00u;
}
static __device__ __forceinline__ bool is_nan(bfloat16 value) {
  return (value.bits & 0x7fffu) > 0x7f80u;
}

// False for infinities and NaN.
static __device__ __forceinline__ bool is_finite(float value) { return sub_rn(value, value) == 0; }
static __device__ __forceinline__ bool is_finite(double value) { return sub_rn(value, value) == 0; }

// Limits. `lowest` and `highest` are the infinities for floating-point types and the ends of the
// range for integers, which is what amin, amax and max pooling start from.
template <typename scalar_t>
struct limits {
  static constexpr bool is_signed = scalar_t(-1) < scalar_t(0);
  static __device__ __forceinline__ scalar_t lowest() {
    return is_signed ? static_cast<scalar_t>(uint64_t(1) << (8 * sizeof(scalar_t) - 1))
                     : scalar_t(0);
  }
  static __device__ __forceinline__ scalar_t highest() {
    return static_cast<scalar_t>(~static_cast<uint64_t>(lowest()));
  }
};
template <>
struct limits<bool> {
  static __device__ __forceinline__ bool lowest() { return false; }
  static __device__ __forceinline__ bool highest() { return true; }
};
template <>
struct limits<float> {
  static __device__ __forceinline__ float lowest() { return bits_to_float(0xff800000u); }
  static __device__ __forceinline__ float highest() { return bits_to_float(0x7f800000u); }
  static __device__ __forceinline__ float nan() { return bits_to_float(0x7fc00000u); }
};
template <>
struct limits<double> {
  static __device__ __forceinline__ double lowest() {
    return bits_to_double(0xfff0000000000000ull);
  }
  static __device__ __forceinline__ double highest() {
    return bits_to_double(0x7ff0000000000000ull);
  }
  static __device__ __forceinline__ double nan() { return bits_to_double(0x7ff8000000000000ull); }
};
template <typename T>
struct limits_of_16_bits {
  static __device__ __forceinline__ T lowest() { return T(limits<float>::lowest()); }
  static __device__ __forceinline__ T highest() { return T(limits<float>::highest()); }
  static __device__ __forceinline__ T nan() { return T(limits<float>::nan()); }
};
template <>
struct limits<half> : limits_of_16_bits<half> {};
template <>
struct limits<bfloat16> : limits_of_16_bits<bfloat16> {};

// A float or double as a scalar_t. One NaN for all: the hardware's own may differ, but where it
// converts to 16 bits it has one.
template <typename scalar_t, typename T>
static __device__ __forceinline__ scalar_t narrowed(T value) {
  if (sizeof(scalar_t) > 2 && is_nan(value)) return limits<scalar_t>::nan();
  return from_opmath<scalar_t>(static_cast<opmath_t<scalar_t>>(value));
}
