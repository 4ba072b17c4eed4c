// A 16-bit float as CUDA's headers have it: converted from and to float, computed in float.
#pragma once

namespace {

// The project's own conversions; its names stay in there.
namespace detmode_floats {
#include "dtype.cuh"
#include "types.cuh"
}  // namespace detmode_floats

template <typename Storage>
struct detmode_float16 {
  static constexpr char detmode_code = Storage::detmode_code;
  unsigned short bits;
  detmode_float16() = default;
  template <typename T, typename = decltype(static_cast<float>(static_cast<T>(0)) + T(0.5f))>
  detmode_float16(T value) : bits(Storage(static_cast<float>(value)).bits) {}
  operator float() const {
    Storage storage;
    storage.bits = bits;
    return static_cast<float>(storage);
  }
  detmode_float16& operator+=(detmode_float16 b) { return *this = *this + b; }
  detmode_float16& operator-=(detmode_float16 b) { return *this = *this - b; }
  detmode_float16& operator*=(detmode_float16 b) { return *this = *this * b; }
  detmode_float16& operator/=(detmode_float16 b) { return *this = *this / b; }
  friend detmode_float16 operator+(detmode_float16 a, detmode_float16 b) {
    return detmode_float16(float(a) + float(b));
  }
  friend detmode_float16 operator-(detmode_float16 a, detmode_float16 b) {
    return detmode_float16(float(a) - float(b));
  }
  friend detmode_float16 operator*(detmode_float16 a, detmode_float16 b) {
    return detmode_float16(float(a) * float(b));
  }
  friend detmode_float16 operator/(detmode_float16 a, detmode_float16 b) {
    return detmode_float16(float(a) / float(b));
  }
  friend detmode_float16 operator-(detmode_float16 a) { return detmode_float16(-float(a)); }
  friend bool operator==(detmode_float16 a, detmode_float16 b) { return float(a) == float(b); }
  friend bool operator!=(detmode_float16 a, detmode_float16 b) { return float(a) != float(b); }
  friend bool operator<(detmode_float16 a, detmode_float16 b) { return float(a) < float(b); }
  friend bool operator>(detmode_float16 a, detmode_float16 b) { return float(a) > float(b); }
  friend bool operator<=(detmode_float16 a, detmode_float16 b) { return float(a) <= float(b); }
  friend bool operator>=(detmode_float16 a, detmode_float16 b) { return float(a) >= float(b); }
};

template <typename Storage>
struct alignas(4) detmode_float16_pair {
  detmode_float16<Storage> x, y;
  friend detmode_float16_pair operator+(detmode_float16_pair a, detmode_float16_pair b) {
    return {a.x + b.x, a.y + b.y};
  }
  friend detmode_float16_pair operator-(detmode_float16_pair a, detmode_float16_pair b) {
    return {a.x - b.x, a.y - b.y};
  }
  friend detmode_float16_pair operator*(detmode_float16_pair a, detmode_float16_pair b) {
    return {a.x * b.x, a.y * b.y};
  }
  detmode_float16_pair& operator+=(detmode_float16_pair b) { return *this = *this + b; }
  detmode_float16_pair& operator*=(detmode_float16_pair b) { return *this = *this * b; }
};

// What both headers declare, of a type and its pair.
#define DETMODE_FLOAT16(T, T2)                                                                   \
  inline T __hadd(T a, T b) { return a + b; }                                                    \
  inline T __hsub(T a, T b) { return a - b; }                                                    \
  inline T __hmul(T a, T b) { return a * b; }                                                    \
  inline T __hdiv(T a, T b) { return a / b; }                                                    \
  inline T __hneg(T a) { return -a; }                                                            \
  inline T __habs(T a) { return T(fabsf(a)); }                                                   \
  inline T __hfma(T a, T b, T c) { return T(fmaf(a, b, c)); }                                    \
  inline T __hmax(T a, T b) { return T(fmaxf(a, b)); }                                           \
  inline T __hmin(T a, T b) { return T(fminf(a, b)); }                                           \
  inline bool __heq(T a, T b) { return a == b; }                                                 \
  inline bool __hlt(T a, T b) { return a < b; }                                                  \
  inline bool __hgt(T a, T b) { return a > b; }                                                  \
  inline bool __hle(T a, T b) { return a <= b; }                                                 \
  inline bool __hge(T a, T b) { return a >= b; }                                                 \
  inline bool __hisnan(T a) { return isnan(float(a)); }                                          \
  inline T hexp(T a) { return T(expf(a)); }                                                      \
  inline T hlog(T a) { return T(logf(a)); }                                                      \
  inline T hsqrt(T a) { return T(sqrtf(a)); }                                                    \
  inline T hrsqrt(T a) { return T(rsqrtf(a)); }                                                  \
  inline T hrcp(T a) { return T(1.0f / float(a)); }                                              \
  inline T2 __hadd2(T2 a, T2 b) { return a + b; }                                                \
  inline T2 __hsub2(T2 a, T2 b) { return a - b; }                                                \
  inline T2 __hmul2(T2 a, T2 b) { return a * b; }                                                \
  inline T2 __hfma2(T2 a, T2 b, T2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
  inline T2 __hmax2(T2 a, T2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                 \
  inline T2 __hmin2(T2 a, T2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                 \
  inline T __low2float16(T2 a) { return a.x; }                                                   \
  inline float __low2float(T2 a) { return a.x; }                                                 \
  inline float __high2float(T2 a) { return a.y; }                                                \
  inline T __shfl_sync(unsigned int mask, T value, int source, int width = 32,                   \
                       int line = __builtin_LINE()) {                                            \
    int segment = detmode_host::own_lane() / width * width;                                      \
    return detmode_host::exchange(mask, value, segment + (source & (width - 1)), line);          \
  }                                                                                              \
  inline T __shfl_xor_sync(unsigned int mask, T value, int lane_mask, int width = 32,            \
                           int line = __builtin_LINE()) {                                        \
    T result;                                                                                    \
    result.bits = static_cast<unsigned short>(                                                   \
        __shfl_xor_sync(mask, static_cast<unsigned int>(value.bits), lane_mask, width, line));   \
    return result;                                                                               \
  }                                                                                              \
  inline T __shfl_down_sync(unsigned int mask, T value, unsigned int delta, int width = 32,      \
                            int line = __builtin_LINE()) {                                       \
    T result;                                                                                    \
    result.bits = static_cast<unsigned short>(                                                   \
        __shfl_down_sync(mask, static_cast<unsigned int>(value.bits), delta, width, line));      \
    return result;                                                                               \
  }                                                                                              \
  DETMODE_ATOMIC(atomicAdd, T, old + value)                                                      \
  DETMODE_ATOMIC(atomicAdd, T2, old + value)

}  // namespace

namespace {
namespace detmode_host {
template <typename Storage>
constexpr int kind_of_atomicAdd<detmode_float16<Storage>> = FLOAT_ADD;
template <typename Storage>
constexpr int kind_of_atomicAdd<detmode_float16_pair<Storage>> = FLOAT_ADD;
}  // namespace detmode_host
}  // namespace
