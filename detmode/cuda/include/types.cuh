// Integer names, traits and bit casts. CUDA's runtime compiler has no system headers, so what the
// kernels need is defined here, with the same types on the device and on the host: `int64_t` is
// `long long` on both, so overloads resolve alike.
#pragma once

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

template <typename T, typename U>
struct is_same {
  static constexpr bool value = false;
};
template <typename T>
struct is_same<T, T> {
  static constexpr bool value = true;
};

template <bool condition, typename T, typename U>
struct conditional {
  using type = T;
};
template <typename T, typename U>
struct conditional<false, T, U> {
  using type = U;
};

static __device__ __forceinline__ float bits_to_float(uint32_t bits) {
  return __int_as_float(static_cast<int>(bits));
}
static __device__ __forceinline__ uint32_t float_to_bits(float value) {
  return static_cast<uint32_t>(__float_as_int(value));
}
static __device__ __forceinline__ double bits_to_double(uint64_t bits) {
  return __longlong_as_double(static_cast<long long>(bits));
}
static __device__ __forceinline__ uint64_t double_to_bits(double value) {
  return static_cast<uint64_t>(__double_as_longlong(value));
}

// Arithmetic that means one rounding each on every GPU and on the host, whatever the options are: a
// compiler that may fuse a plain `a * b + c` does it where it likes.
static __device__ __forceinline__ float mul_rn(float a, float b) { return __fmul_rn(a, b); }
static __device__ __forceinline__ double mul_rn(double a, double b) { return __dmul_rn(a, b); }
static __device__ __forceinline__ float add_rn(float a, float b) { return __fadd_rn(a, b); }
static __device__ __forceinline__ double add_rn(double a, double b) { return __dadd_rn(a, b); }
static __device__ __forceinline__ float sub_rn(float a, float b) { return __fsub_rn(a, b); }
static __device__ __forceinline__ double sub_rn(double a, double b) { return __dsub_rn(a, b); }
static __device__ __forceinline__ float div_rn(float a, float b) { return __fdiv_rn(a, b); }
static __device__ __forceinline__ double div_rn(double a, double b) { return __ddiv_rn(a, b); }
static __device__ __forceinline__ float fma_rn(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
static __device__ __forceinline__ double fma_rn(double a, double b, double c) {
  return __fma_rn(a, b, c);
}

// `n` neighbouring elements, which one thread reads or writes at once: an address is a multiple of
// their size together.
template <typename T, int n>
struct alignas(n * sizeof(T)) pack_of {
  T lane[n];
};

// The launch's dynamic shared memory, as an array of T. 16-byte aligned.
#ifdef __CUDA_ARCH__
template <typename T>
static __device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char detmode_dynamic_shared[];
  return reinterpret_cast<T*>(detmode_dynamic_shared);
}
#endif
