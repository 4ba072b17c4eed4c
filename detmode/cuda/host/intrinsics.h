// What CUDA declares for every kernel: barriers, warp operations, atomics, mathematics, vectors.
#pragma once

namespace {

inline void __syncthreads(int line = __builtin_LINE()) {
  detmode_host::block_barrier(detmode_host::BARRIER, false, line);
}
inline int __syncthreads_count(int predicate, int line = __builtin_LINE()) {
  return detmode_host::block_barrier(detmode_host::BARRIER_COUNT, predicate != 0, line);
}
inline int __syncthreads_and(int predicate, int line = __builtin_LINE()) {
  return detmode_host::block_barrier(detmode_host::BARRIER_AND, predicate != 0, line);
}
inline int __syncthreads_or(int predicate, int line = __builtin_LINE()) {
  return detmode_host::block_barrier(detmode_host::BARRIER_OR, predicate != 0, line);
}
inline void __syncwarp(unsigned int mask = 0xffffffffu, int line = __builtin_LINE()) {
  detmode_host::collective(detmode_host::SYNC_WARP, mask, 0, 0, line);
}
#if DETMODE_RACES
inline void __threadfence() { detmode_host::order_fence(); }
#else
inline void __threadfence() {}
#endif
inline void __threadfence_block() { __threadfence(); }
inline void __threadfence_system() { __threadfence(); }

#define DETMODE_VOTE(name, type, kind)                                                          \
  inline type name(unsigned int mask, int predicate, int line = __builtin_LINE()) {             \
    return static_cast<type>(                                                                   \
        detmode_host::collective(detmode_host::kind, mask, predicate != 0 ? 1u : 0u, 0, line)); \
  }
DETMODE_VOTE(__ballot_sync, unsigned int, BALLOT)
DETMODE_VOTE(__any_sync, int, ANY)
DETMODE_VOTE(__all_sync, int, ALL)
#undef DETMODE_VOTE

namespace detmode_host {
inline int own_lane() { return S.current->thread % 32; }
template <typename T>
inline T exchange(unsigned int mask, T value, int source, int line) {
  u64 bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = collective(SHUFFLE, mask, bits, source, line);
  T result;
  __builtin_memcpy(&result, &bits, sizeof(T));
  return result;
}
}  // namespace detmode_host

#define DETMODE_SHUFFLE(T)                                                                         \
  inline T __shfl_sync(unsigned int mask, T value, int source, int width = 32,                     \
                       int line = __builtin_LINE()) {                                              \
    int segment = detmode_host::own_lane() / width * width;                                        \
    return detmode_host::exchange(mask, value, segment + (source & (width - 1)), line);            \
  }                                                                                                \
  inline T __shfl_up_sync(unsigned int mask, T value, unsigned int delta, int width = 32,          \
                          int line = __builtin_LINE()) {                                           \
    int own = detmode_host::own_lane();                                                            \
    int source = own - static_cast<int>(delta);                                                    \
    return detmode_host::exchange(mask, value, source < own / width * width ? own : source, line); \
  }                                                                                                \
  inline T __shfl_down_sync(unsigned int mask, T value, unsigned int delta, int width = 32,        \
                            int line = __builtin_LINE()) {                                         \
    int own = detmode_host::own_lane();                                                            \
    int source = own + static_cast<int>(delta);                                                    \
    return detmode_host::exchange(mask, value, source / width != own / width ? own : source,       \
                                  line);                                                           \
  }                                                                                                \
  inline T __shfl_xor_sync(unsigned int mask, T value, int lane_mask, int width = 32,              \
                           int line = __builtin_LINE()) {                                          \
    int own = detmode_host::own_lane();                                                            \
    int source = own ^ lane_mask;                                                                  \
    return detmode_host::exchange(mask, value, source / width > own / width ? own : source, line); \
  }
DETMODE_SHUFFLE(int)
DETMODE_SHUFFLE(unsigned int)
DETMODE_SHUFFLE(long)
DETMODE_SHUFFLE(unsigned long)
DETMODE_SHUFFLE(long long)
DETMODE_SHUFFLE(unsigned long long)
DETMODE_SHUFFLE(float)
DETMODE_SHUFFLE(double)
#undef DETMODE_SHUFFLE

#define DETMODE_MATCH(T)                                                                          \
  inline unsigned int __match_any_sync(unsigned int mask, T value, int line = __builtin_LINE()) { \
    detmode_host::u64 bits = 0;                                                                   \
    __builtin_memcpy(&bits, &value, sizeof(T));                                                   \
    return static_cast<unsigned int>(                                                             \
        detmode_host::collective(detmode_host::MATCH_ANY, mask, bits, 0, line));                  \
  }
DETMODE_MATCH(int)
DETMODE_MATCH(unsigned int)
DETMODE_MATCH(long long)
DETMODE_MATCH(unsigned long long)
DETMODE_MATCH(float)
DETMODE_MATCH(double)
#undef DETMODE_MATCH

// Atomics, for the types for which CUDA has them. One OS thread runs the whole launch, so a plain
// read and write is atomic.
namespace detmode_host {
// What a certificate names: see _ATOMICS in Python.
enum AtomicKind {
  INTEGER_ADD = 1,
  MINIMUM = 2,
  MAXIMUM = 4,
  AND = 8,
  OR = 16,
  XOR = 32,
  WRAPPED_ADD = 64,
  FLOAT_ADD = 128,
  EXCHANGE = 256,
  SWAP = 512
};
template <typename T>
constexpr int kind_of_atomicAdd =
    static_cast<T>(0.5f) == static_cast<T>(0) ? INTEGER_ADD : FLOAT_ADD;
template <typename T>
constexpr int kind_of_atomicSub = INTEGER_ADD;
template <typename T>
constexpr int kind_of_atomicExch = EXCHANGE;
template <typename T>
constexpr int kind_of_atomicMin = MINIMUM;
template <typename T>
constexpr int kind_of_atomicMax = MAXIMUM;
template <typename T>
constexpr int kind_of_atomicAnd = AND;
template <typename T>
constexpr int kind_of_atomicOr = OR;
template <typename T>
constexpr int kind_of_atomicXor = XOR;
template <typename T>
constexpr int kind_of_atomicInc = WRAPPED_ADD;
template <typename T>
constexpr int kind_of_atomicDec = WRAPPED_ADD;

// Operations of one number, which is not 0, leave the same memory in any order, if nobody reads
// what they return. Of other widths or signs they do not: a carry and a sign are others there.
template <typename T, int kind>
constexpr int commutes() {
  if constexpr (kind < WRAPPED_ADD) {
    int sign = static_cast<T>(-1) < static_cast<T>(0) ? 2 : 0;
    return 1 + __builtin_ctz(kind) * 4 + sign + (sizeof(T) == 8 ? 1 : 0);
  }
  return 0;
}
}  // namespace detmode_host

#if DETMODE_RACES
namespace detmode_host {
DETMODE_UNTRACKED inline void note_kind(u32 kind, const void* code) {
  S.watch->atomics |= kind;
  if (kind != FLOAT_ADD) return;
  u32 place = place_of(code);
  for (u32& known : S.watch->float_adds) {
    if (known == 0) known = place;
    if (known == place) return;
  }
}
}  // namespace detmode_host
#define DETMODE_ATOMIC_POINT(address, commutes)                                    \
  detmode_host::atomic_point();                                                    \
  const void* dropping = detmode_host::S.current->dropping;                        \
  const void* code = dropping != nullptr ? dropping : __builtin_return_address(0); \
  detmode_host::note_atomic(address, sizeof(*(address)), true, true, code,         \
                            dropping != nullptr ? commutes : 0)
#define DETMODE_ATOMIC_DONE(kind, old, address)                                            \
  if (detmode_host::S.watch != nullptr) {                                                  \
    detmode_host::note_kind(kind, code);                                                   \
    if (__builtin_memcmp(&old, address, sizeof(old)) != 0) detmode_host::memory_changed(); \
  }
#define DETMODE_ATOMIC_FUNCTION static DETMODE_UNTRACKED __attribute__((noinline, unused))
#else
#define DETMODE_ATOMIC_POINT(address, commutes) detmode_host::atomic_point()
#define DETMODE_ATOMIC_DONE(kind, old, address)
#define DETMODE_ATOMIC_FUNCTION inline
#endif
#define DETMODE_ATOMIC(name, T, result)                                 \
  DETMODE_ATOMIC_FUNCTION T name(T* address, T value) {                 \
    constexpr int kind = detmode_host::kind_of_##name<T>;               \
    DETMODE_ATOMIC_POINT(address, (detmode_host::commutes<T, kind>())); \
    T old = *address;                                                   \
    *address = static_cast<T>(result);                                  \
    DETMODE_ATOMIC_DONE(kind, old, address)                             \
    return old;                                                         \
  }
#define DETMODE_ATOMIC_ADD(T) DETMODE_ATOMIC(atomicAdd, T, old + value)
DETMODE_ATOMIC(atomicAdd, int, static_cast<unsigned int>(old) + static_cast<unsigned int>(value))
DETMODE_ATOMIC_ADD(unsigned int)
DETMODE_ATOMIC_ADD(unsigned long long)
DETMODE_ATOMIC_ADD(float)
DETMODE_ATOMIC_ADD(double)
DETMODE_ATOMIC(atomicSub, int, static_cast<unsigned int>(old) - static_cast<unsigned int>(value))
DETMODE_ATOMIC(atomicSub, unsigned int, old - value)
#define DETMODE_ATOMIC_EXCH(T) DETMODE_ATOMIC(atomicExch, T, value)
DETMODE_ATOMIC_EXCH(int)
DETMODE_ATOMIC_EXCH(unsigned int)
DETMODE_ATOMIC_EXCH(unsigned long long)
DETMODE_ATOMIC_EXCH(float)
#define DETMODE_ATOMIC_ORDER(T)                           \
  DETMODE_ATOMIC(atomicMin, T, value < old ? value : old) \
  DETMODE_ATOMIC(atomicMax, T, old < value ? value : old)
DETMODE_ATOMIC_ORDER(int)
DETMODE_ATOMIC_ORDER(unsigned int)
DETMODE_ATOMIC_ORDER(long long)
DETMODE_ATOMIC_ORDER(unsigned long long)
#define DETMODE_ATOMIC_BITS(T)             \
  DETMODE_ATOMIC(atomicAnd, T, old& value) \
  DETMODE_ATOMIC(atomicOr, T, old | value) \
  DETMODE_ATOMIC(atomicXor, T, old ^ value)
DETMODE_ATOMIC_BITS(int)
DETMODE_ATOMIC_BITS(unsigned int)
DETMODE_ATOMIC_BITS(unsigned long long)
DETMODE_ATOMIC(atomicInc, unsigned int, old >= value ? 0 : old + 1)
DETMODE_ATOMIC(atomicDec, unsigned int, old == 0 || old > value ? value : old - 1)
#define DETMODE_ATOMIC_CAS(T)                                           \
  DETMODE_ATOMIC_FUNCTION T atomicCAS(T* address, T compare, T value) { \
    DETMODE_ATOMIC_POINT(address, 0);                                   \
    T old = *address;                                                   \
    if (old == compare) *address = value;                               \
    DETMODE_ATOMIC_DONE(detmode_host::SWAP, old, address)               \
    return old;                                                         \
  }
DETMODE_ATOMIC_CAS(int)
DETMODE_ATOMIC_CAS(unsigned int)
DETMODE_ATOMIC_CAS(unsigned long long)
DETMODE_ATOMIC_CAS(unsigned short)
#if !DETMODE_FOREIGN  // which has more of them
#undef DETMODE_ATOMIC
#undef DETMODE_ATOMIC_POINT
#undef DETMODE_ATOMIC_DONE
#undef DETMODE_ATOMIC_FUNCTION
#endif
#undef DETMODE_ATOMIC_ADD
#undef DETMODE_ATOMIC_EXCH
#undef DETMODE_ATOMIC_ORDER
#undef DETMODE_ATOMIC_BITS
#undef DETMODE_ATOMIC_CAS

template <typename To, typename From>
inline To detmode_bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To result;
  __builtin_memcpy(&result, &value, sizeof(To));
  return result;
}
inline int __float_as_int(float x) { return detmode_bits<int>(x); }
inline unsigned int __float_as_uint(float x) { return detmode_bits<unsigned int>(x); }
inline float __int_as_float(int x) { return detmode_bits<float>(x); }
inline float __uint_as_float(unsigned int x) { return detmode_bits<float>(x); }
inline long long __double_as_longlong(double x) { return detmode_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return detmode_bits<double>(x); }

template <typename T>
__forceinline__ T __ldg(const T* address) {
  return *address;
}
inline void __trap() { detmode_host::assert_failed("__trap()", "kernel", 0); }

inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned int>(x)); }
inline int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline int __popc(unsigned int x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned int __brev(unsigned int x) {
  unsigned int r = 0;
  for (int i = 0; i < 32; ++i) r |= ((x >> i) & 1u) << (31 - i);
  return r;
}
inline unsigned int __umulhi(unsigned int a, unsigned int b) {
  return static_cast<unsigned int>((static_cast<unsigned long long>(a) * b) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline long long __mul64hi(long long a, long long b) {
  return static_cast<long long>((static_cast<__int128>(a) * b) >> 64);
}

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline double __dsqrt_rn(double a) { return __builtin_sqrt(a); }
inline double __drcp_rn(double a) { return 1.0 / a; }

inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned int x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline double __ll2double_rn(long long x) { return static_cast<double>(x); }
inline double __ull2double_rn(unsigned long long x) { return static_cast<double>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(__builtin_rintf(x)); }
inline int __float2int_rd(float x) { return static_cast<int>(__builtin_floorf(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline long long __float2ll_rn(float x) { return static_cast<long long>(__builtin_rintf(x)); }
inline long long __float2ll_rd(float x) { return static_cast<long long>(__builtin_floorf(x)); }
inline long long __float2ll_rz(float x) { return static_cast<long long>(x); }
inline long long __double2ll_rn(double x) { return static_cast<long long>(__builtin_rint(x)); }
inline long long __double2ll_rd(double x) { return static_cast<long long>(__builtin_floor(x)); }
inline long long __double2ll_rz(double x) { return static_cast<long long>(x); }

#define DETMODE_MATH1(name)                                        \
  inline float name##f(float x) { return __builtin_##name##f(x); } \
  inline float name(float x) { return __builtin_##name##f(x); }    \
  inline double name(double x) { return __builtin_##name(x); }
DETMODE_MATH1(sqrt)
DETMODE_MATH1(fabs)
DETMODE_MATH1(floor)
DETMODE_MATH1(ceil)
DETMODE_MATH1(trunc)
DETMODE_MATH1(round)
DETMODE_MATH1(rint)
DETMODE_MATH1(nearbyint)
DETMODE_MATH1(exp)
DETMODE_MATH1(exp2)
DETMODE_MATH1(expm1)
DETMODE_MATH1(log)
DETMODE_MATH1(log2)
DETMODE_MATH1(log10)
DETMODE_MATH1(log1p)
DETMODE_MATH1(sin)
DETMODE_MATH1(cos)
DETMODE_MATH1(tan)
DETMODE_MATH1(asin)
DETMODE_MATH1(acos)
DETMODE_MATH1(atan)
DETMODE_MATH1(sinh)
DETMODE_MATH1(cosh)
DETMODE_MATH1(tanh)
DETMODE_MATH1(cbrt)
DETMODE_MATH1(erf)
DETMODE_MATH1(erfc)
#undef DETMODE_MATH1
#define DETMODE_MATH2(name)                                                    \
  inline float name##f(float x, float y) { return __builtin_##name##f(x, y); } \
  inline float name(float x, float y) { return __builtin_##name##f(x, y); }    \
  inline double name(double x, double y) { return __builtin_##name(x, y); }
DETMODE_MATH2(fmin)
DETMODE_MATH2(fmax)
DETMODE_MATH2(fmod)
DETMODE_MATH2(pow)
DETMODE_MATH2(atan2)
DETMODE_MATH2(hypot)
DETMODE_MATH2(copysign)
DETMODE_MATH2(nextafter)
#undef DETMODE_MATH2
inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float ldexpf(float x, int e) { return __builtin_ldexpf(x, e); }
inline float ldexp(float x, int e) { return __builtin_ldexpf(x, e); }
inline double ldexp(double x, int e) { return __builtin_ldexp(x, e); }
inline float frexpf(float x, int* e) { return __builtin_frexpf(x, e); }
inline double frexp(double x, int* e) { return __builtin_frexp(x, e); }
inline float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
inline bool isnan(float x) { return __builtin_isnan(x); }
inline bool isnan(double x) { return __builtin_isnan(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isinf(double x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }
inline bool isfinite(double x) { return __builtin_isfinite(x); }
inline bool signbit(float x) { return __builtin_signbit(x); }
inline bool signbit(double x) { return __builtin_signbit(x); }

inline int abs(int x) { return x < 0 ? -x : x; }
inline long long abs(long long x) { return x < 0 ? -x : x; }
inline float abs(float x) { return __builtin_fabsf(x); }
inline double abs(double x) { return __builtin_fabs(x); }
// CUDA's min and max of floating-point numbers are fmin and fmax: a NaN loses.
#define DETMODE_ORDER(T)                           \
  inline T min(T a, T b) { return b < a ? b : a; } \
  inline T max(T a, T b) { return a < b ? b : a; }
DETMODE_ORDER(int)
DETMODE_ORDER(unsigned int)
DETMODE_ORDER(long long)
DETMODE_ORDER(unsigned long long)
#undef DETMODE_ORDER
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
inline double min(double a, double b) { return __builtin_fmin(a, b); }
inline double max(double a, double b) { return __builtin_fmax(a, b); }

#define DETMODE_VECTOR(T, name, alignment)                              \
  struct __attribute__((aligned(2 * sizeof(T)))) name##2 { T x, y; };   \
  inline name##2 make_##name##2(T x, T y) {                             \
    name##2 v = {x, y};                                                 \
    return v;                                                           \
  }                                                                     \
  struct __attribute__((aligned(alignment))) name##4 { T x, y, z, w; }; \
  inline name##4 make_##name##4(T x, T y, T z, T w) {                   \
    name##4 v = {x, y, z, w};                                           \
    return v;                                                           \
  }
DETMODE_VECTOR(short, short, 8)
DETMODE_VECTOR(unsigned short, ushort, 8)
DETMODE_VECTOR(int, int, 16)
DETMODE_VECTOR(unsigned int, uint, 16)
DETMODE_VECTOR(long long, longlong, 16)
DETMODE_VECTOR(unsigned long long, ulonglong, 16)
DETMODE_VECTOR(float, float, 16)
DETMODE_VECTOR(double, double, 16)
#undef DETMODE_VECTOR

}  // namespace
