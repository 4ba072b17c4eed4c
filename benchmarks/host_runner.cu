// The three kernels whose threads per second benchmarks/host_runner.py measures.
#include "index.cuh"

__global__ void simple(const float* __restrict__ input, float* __restrict__ output, int64_t n) {
  int64_t i = thread_index();
  if (i < n) output[i] = input[i] * 2.0f;
}

__global__ void barriers(const float* __restrict__ input, float* __restrict__ output, int64_t n) {
  __shared__ float tile[256];
  int x = static_cast<int>(threadIdx.x);
  int64_t i = thread_index();
  tile[x] = i < n ? input[i] : 0.0f;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (x < half) tile[x] += tile[x + half];
    __syncthreads();
  }
  if (x == 0) output[blockIdx.x] = tile[0];
}

__global__ void atomics(const int64_t* __restrict__ index, int64_t* __restrict__ output,
                        int64_t n) {
  int64_t i = thread_index();
  if (i < n) atomic_add(output + index[i], int64_t(1));
}
