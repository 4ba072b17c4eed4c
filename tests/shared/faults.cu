// Kernels that do what the host runner must catch, one fault each.
#include "index.cuh"

__global__ void write_after(float* __restrict__ output, int64_t n) {
  if (thread_index() == 0) output[n] = 1.0f;
}
__global__ void write_before(float* __restrict__ output, int64_t n) {
  if (thread_index() == 0) output[-1] = 1.0f;
}
__global__ void write_const(const float* __restrict__ input, float* __restrict__ output,
                            int64_t n) {
  if (thread_index() == 0) const_cast<float*>(input)[n - 1] = 7.0f;
}
__global__ void write_shared(float* __restrict__ output, int64_t n) {
  dynamic_shared<float>()[threadIdx.x] = 1.0f;
}
__global__ void read_after(const float* __restrict__ input, float* __restrict__ output, int64_t n) {
  if (thread_index() == 0) output[0] = input[n];
}
__global__ void read_before(const float* __restrict__ input, float* __restrict__ output,
                            int64_t n) {
  if (thread_index() == 0 && input[-1] == 1.0f) output[0] = 1.0f;
}
__global__ void read_shared(float* __restrict__ output, int64_t n) {
  __shared__ float tile[64];
  if (threadIdx.x == 0) {
    output[blockIdx.x] = tile[1];
    tile[1] = 1.0f;
  }
}
template <typename T>
__global__ void read_shared_of(T* __restrict__ output, int64_t n) {
  __shared__ T tile[64];
  if (threadIdx.x == 0) {
    output[blockIdx.x] = tile[1];
    tile[1] = 1.0f;
  }
}
__global__ void forget(float* __restrict__ output, int64_t n) {
  for (int64_t i = thread_index() + 1; i < n; i += thread_count()) output[i] = 1.0f;
}
__global__ void barrier_some(float* __restrict__ output, int64_t n) {
  if (threadIdx.x < 17) __syncthreads();
}
__global__ void barrier_returned(float* __restrict__ output, int64_t n) {
  if (threadIdx.x == 5) return;
  __syncthreads();
}
__global__ void barrier_two(float* __restrict__ output, int64_t n) {
  if (threadIdx.x < 17) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void shuffle_some(float* __restrict__ output, int64_t n) {
  if (threadIdx.x != 5) output[0] = __shfl_sync(0xffffffffu, 1.0f, 0);
}
__global__ void shuffle_mask(float* __restrict__ output, int64_t n) {
  output[0] = __shfl_sync(0x1u, 1.0f, 0);
}
__global__ void assert_small(float* __restrict__ output, int64_t n) {
  DETMODE_ASSERT(n < 10);
  output[0] = 1.0f;
}
__global__ void null_write(float* __restrict__ output, float* __restrict__ other, int64_t n) {
  if (thread_index() == 0) other[n] = 1.0f;
}
__global__ void divide_by_zero(float* __restrict__ output, int64_t n) {
  output[0] = static_cast<float>(n / (n - n));
}
static __device__ __noinline__ int64_t descend(int64_t depth) {
  volatile int64_t frame[64];
  frame[depth % 64] = depth;
  return descend(depth + 1) + frame[1];
}
__global__ void overflow_stack(float* __restrict__ output, int64_t n) {
  output[0] = static_cast<float>(descend(n));
}
__global__ void endless(float* __restrict__ output, int64_t n) {
  volatile int64_t step = 0;
  for (int64_t i = thread_index(); i < n; i += step) output[0] = 1.0f;
}
