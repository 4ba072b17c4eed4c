// What the tests of detmode.cuda launch.
#include "accumulator.cuh"
#include "dtype.cuh"
#include "index.cuh"

template <typename scalar_t>
__global__ void scale(const scalar_t* __restrict__ input, scalar_t* __restrict__ output, int64_t n,
                      double factor) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    output[i] =
        from_opmath<scalar_t>(to_opmath(input[i]) * static_cast<opmath_t<scalar_t>>(factor));
  }
}

// The negative control: a sum whose bits depend on the order of the threads.
template <typename scalar_t>
__global__ void naive_scatter(const scalar_t* __restrict__ source,
                              const int64_t* __restrict__ index, scalar_t* __restrict__ output,
                              int64_t n) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    atomicAdd(output + index[i], source[i]);
  }
}

// Static beside dynamic shared memory: one block reverses n floats.
__global__ void reverse_in_shared(const float* __restrict__ input, float* __restrict__ output,
                                  int64_t n) {
  __shared__ int64_t last;
  float* held = dynamic_shared<float>();
  if (threadIdx.x == 0) last = n - 1;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) held[i] = input[i];
  __syncthreads();
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) output[i] = held[last - i];
}

template <typename scalar_t>
__global__ void accumulate_keys(const scalar_t* __restrict__ source,
                                const int64_t* __restrict__ index, int32_t* __restrict__ keys,
                                int64_t n) {
  accumulator<scalar_t> totals(keys, nullptr, 0);
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    totals.observe(index[i], to_opmath(source[i]));
  }
}

template <typename scalar_t>
__global__ void accumulate_sums(const scalar_t* __restrict__ source,
                                const int64_t* __restrict__ index, const int32_t* __restrict__ keys,
                                int64_t* __restrict__ sums, int64_t n, int64_t headroom) {
  accumulator<scalar_t> totals(keys, sums, headroom);
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    totals.add(index[i], to_opmath(source[i]));
  }
}

template <typename scalar_t>
__global__ void accumulate_finish(const int32_t* __restrict__ keys,
                                  const int64_t* __restrict__ sums, scalar_t* __restrict__ output,
                                  int64_t n, int64_t headroom) {
  accumulator<scalar_t> totals(keys, sums, headroom);
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    if (totals.any(i)) output[i] = totals.finish(i);
  }
}
