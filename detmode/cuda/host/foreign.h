// What CUDA declares for every kernel and detmode's own do without.
#pragma once

namespace {

#define DETMODE_HOST 1

// For atomics whose result nobody reads: the source is changed to call these, in foreign.py.
#define DETMODE_DROPPED(name)                                                            \
  template <typename T, typename V>                                                      \
  DETMODE_UNTRACKED __attribute__((noinline)) void name##_dropped(T* address, V value) { \
    detmode_host::S.current->dropping = __builtin_return_address(0);                     \
    name(address, value);                                                                \
    detmode_host::S.current->dropping = nullptr;                                         \
  }
DETMODE_DROPPED(atomicAdd)
DETMODE_DROPPED(atomicSub)
DETMODE_DROPPED(atomicMin)
DETMODE_DROPPED(atomicMax)
DETMODE_DROPPED(atomicAnd)
DETMODE_DROPPED(atomicOr)
DETMODE_DROPPED(atomicXor)
#undef DETMODE_DROPPED

// CUDA's names for an atomic of a narrower or a wider scope: here each is one of the whole launch.
#define atomicAdd_block atomicAdd
#define atomicAdd_system atomicAdd
#define atomicCAS_block atomicCAS
#define atomicCAS_system atomicCAS
#define atomicMax_block atomicMax
#define atomicMin_block atomicMin

#define DETMODE_SMALL_VECTOR(T, name)                \
  struct name##1 { T x; };                           \
  struct name##3 { T x, y, z; };                     \
  inline name##1 make_##name##1(T x) { return {x}; } \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }
DETMODE_SMALL_VECTOR(signed char, char)
DETMODE_SMALL_VECTOR(unsigned char, uchar)
DETMODE_SMALL_VECTOR(short, short)
DETMODE_SMALL_VECTOR(unsigned short, ushort)
DETMODE_SMALL_VECTOR(int, int)
struct uint1 {
  unsigned int x;
};
inline uint3 make_uint3(unsigned int x, unsigned int y, unsigned int z) { return {x, y, z}; }
DETMODE_SMALL_VECTOR(long long, longlong)
DETMODE_SMALL_VECTOR(unsigned long long, ulonglong)
DETMODE_SMALL_VECTOR(float, float)
DETMODE_SMALL_VECTOR(double, double)
#undef DETMODE_SMALL_VECTOR
#define DETMODE_VECTOR_OF_BYTES(T, name)                     \
  struct alignas(2) name##2 { T x, y; };                     \
  struct alignas(4) name##4 { T x, y, z, w; };               \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
DETMODE_VECTOR_OF_BYTES(signed char, char)
DETMODE_VECTOR_OF_BYTES(unsigned char, uchar)
#undef DETMODE_VECTOR_OF_BYTES

// The fast variants: their last bits are a GPU's own.
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frsqrt_rn(float x) { return 1.0f / __builtin_sqrtf(x); }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float exp10f(float x) { return powf(10.0f, x); }
inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752f); }
inline void sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
inline void sincos(double x, double* s, double* c) { *s = sin(x), *c = cos(x); }
inline int __float2int_ru(float x) { return static_cast<int>(ceilf(x)); }
inline unsigned int __float2uint_rn(float x) { return static_cast<unsigned int>(rintf(x)); }
inline int __double2int_rn(double x) { return static_cast<int>(rint(x)); }
inline double __int2double_rn(int x) { return x; }

inline int __mul24(int a, int b) { return a * b; }
inline unsigned int __umul24(unsigned int a, unsigned int b) { return a * b; }
inline int __mulhi(int a, int b) { return static_cast<int>((static_cast<long long>(a) * b) >> 32); }
inline unsigned int __sad(int x, int y, unsigned int z) {
  return z + static_cast<unsigned int>(x > y ? x - y : y - x);
}
inline unsigned int __byte_perm(unsigned int x, unsigned int y, unsigned int selector) {
  unsigned long long both = x | static_cast<unsigned long long>(y) << 32;
  unsigned int result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned int>((both >> (8 * ((selector >> (4 * i)) & 7))) & 0xff)
              << (8 * i);
  }
  return result;
}
inline unsigned int __funnelshift_l(unsigned int low, unsigned int high, unsigned int shift) {
  unsigned long long both = low | static_cast<unsigned long long>(high) << 32;
  return static_cast<unsigned int>((both << (shift & 31)) >> 32);
}
inline unsigned int __funnelshift_r(unsigned int low, unsigned int high, unsigned int shift) {
  unsigned long long both = low | static_cast<unsigned long long>(high) << 32;
  return static_cast<unsigned int>(both >> (shift & 31));
}

// Loads and stores with a hint for caches.
template <typename T>
__forceinline__ T __ldcg(const T* address) {
  return *address;
}
template <typename T>
__forceinline__ T __ldca(const T* address) {
  return *address;
}
template <typename T>
__forceinline__ T __ldcs(const T* address) {
  return *address;
}
template <typename T>
__forceinline__ void __stcg(T* address, T value) {
  *address = value;
}
template <typename T>
__forceinline__ void __stcs(T* address, T value) {
  *address = value;
}

inline void __nanosleep(unsigned int) { detmode_host::volatile_point(); }
inline void __builtin_assume(bool) {}

template <typename T>
inline T detmode_reduce(unsigned int mask, T value, int line, T (*join)(T, T)) {
  T result = value;
  bool first = true;
  for (int lane = 0; lane < 32; ++lane) {
    if (!((mask >> lane) & 1u)) continue;
    T other = detmode_host::exchange(mask, value, lane, line);
    result = first ? other : join(result, other);
    first = false;
  }
  return result;
}
#define DETMODE_REDUCE(name, T, expression)                                                \
  inline T name(unsigned int mask, T value, int line = __builtin_LINE()) {                 \
    return detmode_reduce<T>(mask, value, line, [](T a, T b) -> T { return expression; }); \
  }
DETMODE_REDUCE(__reduce_add_sync, int, a + b)
DETMODE_REDUCE(__reduce_add_sync, unsigned int, a + b)
DETMODE_REDUCE(__reduce_min_sync, int, b < a ? b : a)
DETMODE_REDUCE(__reduce_min_sync, unsigned int, b < a ? b : a)
DETMODE_REDUCE(__reduce_max_sync, int, a < b ? b : a)
DETMODE_REDUCE(__reduce_max_sync, unsigned int, a < b ? b : a)
DETMODE_REDUCE(__reduce_and_sync, unsigned int, a& b)
DETMODE_REDUCE(__reduce_or_sync, unsigned int, a | b)
DETMODE_REDUCE(__reduce_xor_sync, unsigned int, a ^ b)
#undef DETMODE_REDUCE

}  // namespace

#undef assert
#define assert(condition) \
  ((condition) ? (void)0 : detmode_host::assert_failed(#condition, "kernel", __LINE__))
