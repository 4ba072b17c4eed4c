// Threads that meet at one address: each kernel with its order, and without.
#include "index.cuh"

// Every thread writes its own element and reads its right neighbour's.
template <bool barrier>
__global__ void neighbour_in_block(int64_t* __restrict__ output, int64_t n) {
  __shared__ int64_t values[64];
  values[threadIdx.x] = static_cast<int64_t>(threadIdx.x);
  if constexpr (barrier) __syncthreads();
  output[thread_index()] = values[(threadIdx.x + 1) % blockDim.x];
}

// The same again in the same elements: the second writes follow other threads' reads.
template <bool barrier>
__global__ void neighbour_twice(int64_t* __restrict__ output, int64_t n) {
  __shared__ int64_t values[64];
  for (int64_t round = 0; round < n; ++round) {
    values[threadIdx.x] = static_cast<int64_t>(threadIdx.x) + round;
    __syncthreads();
    output[thread_index()] = values[(threadIdx.x + 1) % blockDim.x];
    if constexpr (barrier) __syncthreads();
  }
}

// Within a warp, a barrier of the warp is enough; a shuffle orders no memory.
template <bool barrier>
__global__ void neighbour_in_warp(int64_t* __restrict__ output, int64_t n) {
  __shared__ int64_t values[64];
  unsigned int own = threadIdx.x, first = own / 32 * 32;
  values[own] = static_cast<int64_t>(own);
  if constexpr (barrier) {
    __syncwarp();
  } else {
    __shfl_sync(0xffffffffu, 0, 0);
  }
  output[thread_index()] = values[first + (own + 1) % 32];
}

// Halves of a warp, each with a barrier of its own; a lane reads its own half, or the other.
template <bool same>
__global__ void neighbour_in_half(int64_t* __restrict__ output, int64_t n) {
  __shared__ int64_t values[64];
  unsigned int own = threadIdx.x;
  values[own] = static_cast<int64_t>(own);
  __syncwarp(own % 32 < 16 ? 0x0000ffffu : 0xffff0000u);
  output[thread_index()] = values[own ^ (same ? 1u : 16u)];
}

// The first thread of one warp writes, lanes of another read: the first thread's warp and then the
// block pass it on.
template <bool barrier>
__global__ void through_both(int64_t* __restrict__ output, int64_t n) {
  __shared__ int64_t value, copy;
  if (threadIdx.x == 0) value = 7;
  __syncwarp();
  if (threadIdx.x == 1) copy = value;
  if constexpr (barrier) __syncthreads();
  output[thread_index()] = copy + value;
}

// Threads of all blocks add to one element, or write it plainly.
template <bool atomic>
__global__ void same_element(int64_t* __restrict__ output, int64_t n) {
  if constexpr (atomic) {
    atomic_add(output, int64_t(1));
  } else {
    output[0] = n;
  }
}

// Threads add to one element, which one of them reads plainly, or as volatile.
template <bool plain>
__global__ void read_beside_atomics(int64_t* __restrict__ output, int64_t n) {
  atomic_add(output, int64_t(1));
  if (thread_index() != n) return;
  if constexpr (plain) {
    output[1] = output[0];
  } else {
    output[1] = *static_cast<volatile int64_t*>(output);
  }
}

// Blocks write a part each; the last to count itself adds the parts.
template <bool before, bool after>
__global__ void last_block(int64_t* __restrict__ output, int64_t* __restrict__ parts,
                           int32_t* __restrict__ done, int64_t n) {
  __shared__ bool last;
  __shared__ int64_t part;
  if (threadIdx.x == 1) part = static_cast<int64_t>(blockIdx.x);
  __syncthreads();
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = part;
    if constexpr (before) __threadfence();
    last = atomicAdd(done, 1) == static_cast<int32_t>(gridDim.x) - 1;
    if constexpr (after) __threadfence();
  }
  __syncthreads();
  if (!last || threadIdx.x != 2) return;
  output[0] = 0;
  for (unsigned int b = 0; b < gridDim.x; ++b) output[0] += parts[b];
}

// A thread for each byte, or two for each.
template <typename scalar_t, int threads>
__global__ void element_each(scalar_t* __restrict__ output, int64_t n) {
  int64_t i = thread_index() / threads;
  if (i < n) output[i] = static_cast<scalar_t>(1);
}

// Half of the elements are written before all are read.
template <bool all>
__global__ void read_written(int64_t* __restrict__ output, int64_t n) {
  __shared__ int64_t values[64];
  if (all || threadIdx.x % 2 == 0) values[threadIdx.x] = 1;
  __syncthreads();
  output[thread_index()] = values[threadIdx.x];
}

// One thread writes and says so; another may put its own word in the place of that; a third reads
// what the first one wrote.
template <bool replaces>
__global__ void flag_of_another(int64_t* __restrict__ output, int64_t* __restrict__ flag,
                                int64_t n) {
  volatile int64_t* said = flag;
  if (thread_index() == 0) {
    output[0] = 7;
    __threadfence();
    *said = 1;
  } else if (thread_index() == 64 && replaces) {
    *said = 2;
  } else if (thread_index() == 128) {
    int64_t word = *said;
    __threadfence();
    output[1] = output[0] + word;
  }
}

// The first lane reads a byte of a word, the second one another byte or the same after it, and the
// third, which knows of neither, writes the first one's.
template <int second>
__global__ void bytes_of_a_word(float* __restrict__ output, int64_t n) {
  unsigned char* bytes = reinterpret_cast<unsigned char*>(output);
  unsigned int lane = threadIdx.x;
  if (blockIdx.x != 0 || lane > 2) return;
  if (lane == 0) output[1] = static_cast<float>(bytes[0]);
  if (lane < 2) __syncwarp(3u);
  if (lane == 1) output[2] = static_cast<float>(bytes[second]);
  if (lane == 2) bytes[0] = 1;
}
