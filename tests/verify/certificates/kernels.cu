// Patterns of kernels as many programs have them, each with a fixed order of additions and without.
#include <cooperative_groups.h>
#include <cuda_fp16.h>

namespace cg = cooperative_groups;

__constant__ float weights[3];
__device__ unsigned int retired;

// Histogram

__global__ void histogram(const int* bins, int* counts, int n, int n_bins) {
  extern __shared__ int own[];
  for (int b = threadIdx.x; b < n_bins; b += blockDim.x) own[b] = 0;
  __syncthreads();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&own[bins[i]], 1);
  __syncthreads();
  for (int b = threadIdx.x; b < n_bins; b += blockDim.x) atomicAdd(&counts[b], own[b]);
}

__global__ void histogram_of_weights(const int* bins, const float* x, float* sums, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&sums[bins[i]], x[i]);
}

// Scatter

__global__ void scatter_by_owner(const int* index, const float* x, float* out, int n, int n_out) {
  int o = blockIdx.x * blockDim.x + threadIdx.x;
  if (o >= n_out) return;
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) {
    if (index[i] == o) sum += x[i];
  }
  out[o] = sum;
}

__global__ void scatter_any(const int* index, const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[index[i]] = x[i];
}

// Backward of softmax: a row for each block

__device__ __forceinline__ float warp_sum(float value) {
  for (int offset = 16; offset > 0; offset >>= 1) {
    value += __shfl_down_sync(0xffffffff, value, offset);
  }
  return value;
}

__global__ void __launch_bounds__(64)
    softmax_backward(const float* __restrict__ grad, const float* __restrict__ y,
                     float* __restrict__ out, int columns) {
  __shared__ float of_warps[2];
  const float* g = grad + blockIdx.x * columns;
  const float* p = y + blockIdx.x * columns;
  float sum = 0.0f;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) sum += g[c] * p[c];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = of_warps[0] + of_warps[1];
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    out[blockIdx.x * columns + c] = p[c] * (g[c] - sum);
  }
}

__global__ void softmax_backward_atomic(const float* grad, const float* y, float* out,
                                        int columns) {
  __shared__ float sum;
  if (threadIdx.x == 0) sum = 0.0f;
  __syncthreads();
  int c = blockIdx.x * columns + threadIdx.x;
  atomicAdd(&sum, grad[c] * y[c]);
  __syncthreads();
  out[c] = y[c] * (grad[c] - sum);
}

// Gradient of layer norm's gamma: sums of columns

__global__ void gamma_by_column(const float4* grad, const float4* x, float4* out, int rows,
                                int columns) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= columns) return;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int r = 0; r < rows; ++r) {
    float4 g = grad[r * columns + c], v = x[r * columns + c];
    sum.x += g.x * v.x, sum.y += g.y * v.y, sum.z += g.z * v.z, sum.w += g.w * v.w;
  }
  out[c] = sum;
}

__global__ void gamma_by_rows(const float* grad, const float* x, float* out, int rows,
                              int columns) {
  for (int r = blockIdx.x; r < rows; r += gridDim.x) {
    int i = r * columns + threadIdx.x;
    atomicAdd(&out[threadIdx.x], grad[i] * x[i]);
  }
}

// Sums in parts: split-K, and the ticket of the last block

__device__ float block_sum(float value) {
  __shared__ float values[64];
  values[threadIdx.x] = value;
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) values[threadIdx.x] += values[threadIdx.x + half];
  }
  __syncthreads();
  return values[0];
}

__global__ void split_k_last_block(const float* a, const float* b, float* parts, float* out, int n,
                                   bool has_fence) {
  float value = 0.0f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    value += a[i] * b[i];
  }
  value = block_sum(value);
  if (threadIdx.x != 0) return;
  parts[blockIdx.x] = value;
  if (has_fence) __threadfence();
  if (atomicAdd(&retired, 1u) != gridDim.x - 1) return;
  if (has_fence) __threadfence();
  float sum = 0.0f;
  for (int p = 0; p < gridDim.x; ++p) sum += parts[p];
  *out = sum;
  atomicExch(&retired, 0u);
}

__global__ void split_k_atomic(const float* a, const float* b, float* out, int n) {
  float value = 0.0f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    value += a[i] * b[i];
  }
  value = block_sum(value);
  if (threadIdx.x == 0) atomicAdd(out, value);
}

// Permutation of tokens by expert

__global__ void permute_by_rank(const int* expert, int* rows, int n, int n_experts) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int place = 0;
  for (int j = 0; j < n; ++j) {
    if (expert[j] < expert[i] || (expert[j] == expert[i] && j < i)) ++place;
  }
  rows[place] = i;
}

__global__ void permute_by_counter(const int* expert, const int* first, int* used, int* rows,
                                   int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) rows[first[expert[i]] + atomicAdd(&used[expert[i]], 1)] = i;
}

// Top-k of a row, by one warp

__global__ void top_k(const float* x, int* indices, int n, int k) {
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  float last = __int_as_float(0x7f800000);
  int last_index = -1;
  for (int found = 0; found < k; ++found) {
    float best = -__int_as_float(0x7f800000);
    int index = n;
    for (int i = warp.thread_rank(); i < n; i += warp.size()) {
      bool left = x[i] < last || (x[i] == last && i > last_index);
      if (left && (x[i] > best || (x[i] == best && i < index))) best = x[i], index = i;
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      float other = warp.shfl_xor(best, lanes);
      int its = warp.shfl_xor(index, lanes);
      if (other > best || (other == best && its < index)) best = other, index = its;
    }
    if (warp.thread_rank() == 0) indices[found] = index;
    last = best, last_index = index;
  }
}

__global__ void above_threshold(const float* x, int* indices, int* count, int n, float threshold) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && x[i] > threshold) indices[atomicAdd(count, 1)] = i;
}

// Scan with look-back: each block waits for the tiles before its own

template <typename T>
__device__ void look_back(const T* x, T* out, T* own, T* prefix, volatile int* state, int* ticket) {
  __shared__ T values[32];
  __shared__ T before;
  __shared__ int tile;
  if (threadIdx.x == 0) tile = atomicAdd(ticket, 1);
  __syncthreads();
  int i = tile * 32 + threadIdx.x;
  values[threadIdx.x] = x[i];
  __syncthreads();
  for (int step = 1; step < 32; step *= 2) {
    T value = threadIdx.x >= step ? values[threadIdx.x - step] : T(0);
    __syncthreads();
    values[threadIdx.x] += value;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    own[tile] = values[31];
    __threadfence();
    state[tile] = 1;
    T sum = 0;
    for (int t = tile - 1; t >= 0; --t) {
      int found;
      while ((found = state[t]) == 0) {
      }
      __threadfence();
      sum = (found == 2 ? prefix[t] : own[t]) + sum;
      if (found == 2) break;
    }
    prefix[tile] = sum + values[31];
    __threadfence();
    state[tile] = 2;
    before = sum;
  }
  __syncthreads();
  out[i] = before + values[threadIdx.x];
}

__global__ void scan_of_integers(const int* x, int* out, int* own, int* prefix, int* state,
                                 int* ticket) {
  look_back(x, out, own, prefix, state, ticket);
}

__global__ void scan_of_floats(const float* x, float* out, float* own, float* prefix, int* state,
                               int* ticket) {
  look_back(x, out, own, prefix, state, ticket);
}

// Transpose and stencil

__global__ void transpose(const float* x, float* out, int size, bool has_barrier) {
  __shared__ float tile[8][9];
  int column = blockIdx.x * 8 + threadIdx.x, row = blockIdx.y * 8 + threadIdx.y;
  tile[threadIdx.y][threadIdx.x] = x[row * size + column];
  if (has_barrier) __syncthreads();
  column = blockIdx.y * 8 + threadIdx.x, row = blockIdx.x * 8 + threadIdx.y;
  out[row * size + column] = tile[threadIdx.x][threadIdx.y];
}

__global__ void stencil(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < 1 || i >= n - 1) return;
  out[i] = weights[0] * x[i - 1] + weights[1] * x[i] + weights[2] * x[i + 1];
}

__global__ void stencil_in_place(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= 1 && i < n - 1) x[i] = 0.5f * x[i] + 0.25f * x[i + 1];
}

__global__ void stencil_past_the_end(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] + x[i + 1];
}

__global__ void shift_past_the_end(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i + 1] = x[i];
}

// Locks and loops

__global__ void maximum_by_swaps(const float* x, int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int old = *(volatile int*)out;
  while (x[i] > __int_as_float(old)) {
    int assumed = old;
    old = atomicCAS(out, assumed, __float_as_int(x[i]));
    if (old == assumed) break;
  }
}

__global__ void sum_under_lock(const float* x, volatile float* out, int* lock, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  for (bool done = false; !done;) {
    if (atomicCAS(lock, 0, 1) == 0) {
      __threadfence();
      *out = *out + x[i];
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}

__global__ void waits_for_the_next(int* state) {
  if (threadIdx.x == 0 && blockIdx.x + 1 < gridDim.x) {
    while (atomicAdd(&state[blockIdx.x + 1], 0) == 0) {
    }
  }
  if (threadIdx.x == 0) atomicExch(&state[blockIdx.x], 1);
}

__global__ void waits_for_ever(int* state) {
  while (atomicAdd(state, 0) == 0) {
  }
}

__global__ void divergent_barrier(float* out) {
  if (threadIdx.x < 16) __syncthreads();
  out[threadIdx.x] = 1.0f;
}

// 16-bit pairs, and a barrier of the whole grid

__global__ void add_pairs(const __half2* x, __half2* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&out[0], __hmul2(x[i], __float2half2_rn(0.5f)));
}

__global__ void mean_of_grid(const float* x, float* parts, float* out) {
  cg::grid_group grid = cg::this_grid();
  cg::thread_block block = cg::this_thread_block();
  float sum = block_sum(x[grid.thread_rank()]);
  if (block.thread_rank() == 0) parts[blockIdx.x] = sum;
  grid.sync();
  float all = 0.0f;
  for (int b = 0; b < gridDim.x; ++b) all += parts[b];
  out[grid.thread_rank()] = all / grid.size();
}

// The second block meets the third one only where it runs before the first.
__global__ void meets_if_early(int* flag, int* out) {
  if (blockIdx.x == 0) atomicExch(flag, 1);
  if (blockIdx.x == 1 && atomicAdd(flag, 0) == 0) atomicExch(out, 1);
  if (blockIdx.x == 2) atomicExch(out, 2);
}
