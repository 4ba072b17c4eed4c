// Positions. Everything is 64-bit: a tensor of 2^31 elements is ordinary.
#pragma once

#include "types.cuh"

// Ends the launch when `condition` is false: PyTorch's "device-side assert triggered" on a GPU,
// `detmode.cuda.host.DeviceAssert` on the host.
#ifdef __CUDA_ARCH__
extern "C" __device__ void __assertfail(const char* message, const char* file, unsigned int line,
                                        const char* function, decltype(sizeof(0)) char_size);
#define DETMODE_ASSERT(condition)                                                          \
  do {                                                                                     \
    if (!(condition))                                                                      \
      __assertfail(#condition, __FILE__, __LINE__, static_cast<const char*>(__func__), 1); \
  } while (0)
#else
#define DETMODE_ASSERT(condition)                                                    \
  do {                                                                               \
    if (!(condition)) ::detmode_host::assert_failed(#condition, __FILE__, __LINE__); \
  } while (0)
#endif

// This thread's position in a 1-D launch and the number of its threads: the loop
// `for (int64_t i = thread_index(); i < n; i += thread_count())` covers n elements.
static __device__ __forceinline__ int64_t thread_index() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
static __device__ __forceinline__ int64_t thread_count() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

static __device__ __forceinline__ int64_t min_index(int64_t a, int64_t b) { return b < a ? b : a; }
static __device__ __forceinline__ int64_t max_index(int64_t a, int64_t b) { return a < b ? b : a; }
static __device__ __forceinline__ int64_t clamp_index(int64_t value, int64_t low, int64_t high) {
  return min_index(max_index(value, low), high);
}

// A position from the start; one that `wraps` counts from the end where it is negative.
static __device__ __forceinline__ int64_t from_start(int64_t position, int64_t size, bool wraps) {
  return wraps && position < 0 ? position + size : position;
}

// `divisor` is positive in the two below.
static __device__ __forceinline__ int64_t ceil_div(int64_t value, int64_t divisor) {
  return value / divisor + (value % divisor > 0 ? 1 : 0);
}
// A quotient of two non-negative 31-bit numbers without the GPU's slow 64-bit division.
static __device__ __forceinline__ int64_t quick_div(int64_t value, int64_t divisor) {
  if (((value | divisor) >> 31) == 0) {
    return static_cast<int64_t>(static_cast<uint32_t>(value) / static_cast<uint32_t>(divisor));
  }
  return value / divisor;
}

// Reads and writes of an integer in global memory that other blocks write or read meanwhile: they
// order nothing. `volatile`, which does on the host, would on a GPU mean all GPUs and the CPU.
#ifdef __CUDA_ARCH__
static __device__ __forceinline__ uint64_t global_address(const void* generic) {
  uint64_t address;
  asm("cvta.to.global.u64 %0, %1;" : "=l"(address) : "l"(generic));
  return address;
}
static __device__ __forceinline__ int32_t load_relaxed(const int32_t* from) {
  int32_t value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];"
               : "=r"(value)
               : "l"(global_address(from))
               : "memory");
  return value;
}
static __device__ __forceinline__ int64_t load_relaxed(const int64_t* from) {
  int64_t value;
  asm volatile("ld.relaxed.gpu.global.s64 %0, [%1];"
               : "=l"(value)
               : "l"(global_address(from))
               : "memory");
  return value;
}
static __device__ __forceinline__ void store_relaxed(int32_t* to, int32_t value) {
  asm volatile("st.relaxed.gpu.global.s32 [%0], %1;"
               :
               : "l"(global_address(to)), "r"(value)
               : "memory");
}
static __device__ __forceinline__ void store_relaxed(uint8_t* to, uint8_t value) {
  asm volatile("st.relaxed.gpu.global.u8 [%0], %1;"
               :
               : "l"(global_address(to)), "r"(static_cast<uint32_t>(value))
               : "memory");
}
#else
template <typename T>
static __forceinline__ T load_relaxed(const T* from) {
  return *static_cast<const volatile T*>(from);
}
template <typename T>
static __forceinline__ void store_relaxed(T* to, T value) {
  *static_cast<volatile T*>(to) = value;
}
#endif

// The same for a block's shared memory.
static __device__ __forceinline__ int32_t load_in_block(const int32_t* from) {
  return *static_cast<const volatile int32_t*>(from);
}

// Begins to read what a thread will read soon.
static __device__ __forceinline__ void prefetch(const void* address) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L1 [%0];" : : "l"(global_address(address)));
#else
  (void)address;
#endif
}

// 64-bit integer atomics under one name; CUDA declares most of them for unsigned types only.
static __device__ __forceinline__ int64_t atomic_add(int64_t* address, int64_t value) {
  return static_cast<int64_t>(atomicAdd(reinterpret_cast<unsigned long long*>(address),
                                        static_cast<unsigned long long>(value)));
}
static __device__ __forceinline__ int32_t atomic_add(int32_t* address, int32_t value) {
  return atomicAdd(address, value);
}
static __device__ __forceinline__ int64_t atomic_max(int64_t* address, int64_t value) {
  return atomicMax(address, value);
}
static __device__ __forceinline__ int32_t atomic_max(int32_t* address, int32_t value) {
  return atomicMax(address, value);
}
static __device__ __forceinline__ int64_t atomic_min(int64_t* address, int64_t value) {
  return atomicMin(address, value);
}
static __device__ __forceinline__ int32_t atomic_min(int32_t* address, int32_t value) {
  return atomicMin(address, value);
}

// Raises an integer to `value`, or leaves it. It is read first: that what is read may be old only
// costs an atomic that changes nothing.
template <typename T>
static __device__ __forceinline__ void raise_to(T* address, T value) {
  if (load_relaxed(address) < value) atomic_max(address, value);
}
static __device__ __forceinline__ void raise_in_block(int32_t* address, int32_t value) {
  if (load_in_block(address) < value) atomicMax(address, value);
}

// Adds to a sum in a block's shared memory. There GPUs have additions of 32 bits, while one of 64
// compares and swaps until it succeeds. The halves are added one after the other: which addition
// carries depends on their order, how many do only on the sum. Where it
// `skips_zeros`, a half that is 0 is not added.
template <bool skips_zeros = true>
static __device__ __forceinline__ void add_in_block(int64_t* address, int64_t value) {
  uint32_t* halves = reinterpret_cast<uint32_t*>(address);
  uint32_t low = static_cast<uint32_t>(value), high = static_cast<uint32_t>(value >> 32);
  if (!skips_zeros || low != 0) high += atomicAdd(halves, low) + low < low ? 1 : 0;
  if (!skips_zeros || high != 0) atomicAdd(halves + 1, high);
}
