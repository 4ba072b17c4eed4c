// What threads of a block and of a warp tell one another.
#include "index.cuh"

__global__ void warp_operations(int64_t* __restrict__ output) {
  int lane = static_cast<int>(threadIdx.x) % 32;
  int64_t* row = output + thread_index() * 10;
  unsigned int all = 0xffffffffu;
  row[0] = __shfl_sync(all, lane, 3, 8);
  row[1] = __shfl_up_sync(all, lane, 2, 16);
  row[2] = __shfl_down_sync(all, lane, 2, 16);
  row[3] = __shfl_xor_sync(all, lane, 5);
  row[4] = __ballot_sync(all, lane % 3 == 0);
  row[5] = __any_sync(all, lane == 40) * 2 + __all_sync(all, lane < 32);
  row[6] = __popc(__ballot_sync(all, lane >= 7)) + __ffs(__ballot_sync(all, lane > 20));
  row[7] = __match_any_sync(all, lane % 4);
  row[8] = __shfl_sync(all, static_cast<double>(lane) + 0.5, 7) * 2;
  // Each half of the warp on its own.
  row[9] = lane < 16 ? __shfl_sync(0x0000ffffu, lane, 15) : __shfl_sync(0xffff0000u, lane, 16);
}

__global__ void block_operations(int64_t* __restrict__ output) {
  int64_t* row = output + thread_index() * 4;
  int x = static_cast<int>(threadIdx.x);
  row[0] = __syncthreads_count(x % 2);
  row[1] = __syncthreads_and(x >= 0) + 2 * __syncthreads_and(x > 0);
  row[2] = __syncthreads_or(x == 3) + 2 * __syncthreads_or(x < 0);
  __shared__ int64_t ring[96];
  ring[x] = x;
  __syncthreads();
  row[3] = ring[(x + 1) % blockDim.x];
}

// The block's and the thread's coordinates, each once.
__global__ void coordinates(int64_t* __restrict__ output) {
  int64_t block =
      (static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  int64_t thread =
      (static_cast<int64_t>(threadIdx.z) * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  atomic_add(output + block * blockDim.x * blockDim.y * blockDim.z + thread, int64_t(1));
}

// The order in which threads run, as they draw tickets.
__global__ void tickets(int32_t* __restrict__ next, int32_t* __restrict__ output, int64_t n) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) output[i] = atomicAdd(next, 1);
}

// A read, other threads' turn, a write: wrong on a GPU, and with a seed wrong here too.
__global__ void lost_update(int32_t* __restrict__ counter, int32_t* __restrict__ scratch,
                            int64_t n) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int32_t seen = *static_cast<volatile int32_t*>(counter);
    atomicAdd(scratch, 1);
    *static_cast<volatile int32_t*>(counter) = seen + 1;
  }
}

// A struct by value, between other parameters.
struct mixed {
  int64_t whole, other;
  double real;
};
__global__ void by_value(int64_t* __restrict__ output, mixed both, int64_t after) {
  if (thread_index() == 0) {
    output[0] = both.whole;
    output[1] = both.other;
    output[2] = static_cast<int64_t>(both.real * 4);
    output[3] = after;
  }
}

__global__ void kinds(const int32_t* __restrict__ input, int64_t* __restrict__ output,
                      int64_t whole, double real, bool flag, const void* __restrict__ anything) {
  if (thread_index() == 0) {
    output[0] = whole;
    output[1] = static_cast<int64_t>(real * 4);
    output[2] = flag;
    output[3] = input == nullptr;
    output[4] = anything == nullptr;
  }
}

// The order in which the threads of a block come to a barrier, and in which they leave it.
__global__ void turns(int64_t* __restrict__ before, int64_t* __restrict__ after) {
  __shared__ int64_t next;
  if (threadIdx.x == 0) next = 0;
  __syncthreads();
  before[threadIdx.x] = next++;
  __syncthreads();
  after[threadIdx.x] = next++ - blockDim.x;
}
