// Cooperative groups: the block, tiles of a warp, and the grid.
#pragma once

namespace {
namespace cooperative_groups {

class thread_block {
 public:
  void sync(int line = __builtin_LINE()) const { __syncthreads(line); }
  unsigned int size() const { return blockDim.x * blockDim.y * blockDim.z; }
  unsigned int num_threads() const { return size(); }
  unsigned int thread_rank() const {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  }
  dim3 group_index() const { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
  dim3 thread_index() const { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
  dim3 group_dim() const { return blockDim; }
  dim3 dim_threads() const { return blockDim; }
};
inline thread_block this_thread_block() { return thread_block(); }

// The grid of a cooperative launch: all its blocks are on the GPU at once.
namespace detail {
unsigned int arrived;
volatile unsigned int generation;
}  // namespace detail
class grid_group {
 public:
  void sync(int line = __builtin_LINE()) const {
    __syncthreads(line);
    if (this_thread_block().thread_rank() == 0) {
      __threadfence();
      unsigned int mine = detail::generation;
      if (atomicAdd(&detail::arrived, 1u) == gridDim.x * gridDim.y * gridDim.z - 1) {
        atomicExch(&detail::arrived, 0u);
        __threadfence();
        detail::generation = mine + 1;
      } else {
        while (detail::generation == mine) {
        }
      }
      __threadfence();
    }
    __syncthreads(line);
  }
  bool is_valid() const { return true; }
  unsigned long long size() const {
    return static_cast<unsigned long long>(gridDim.x) * gridDim.y * gridDim.z *
           this_thread_block().size();
  }
  unsigned long long num_threads() const { return size(); }
  unsigned long long thread_rank() const {
    unsigned long long block =
        blockIdx.x +
        gridDim.x * (blockIdx.y + static_cast<unsigned long long>(gridDim.y) * blockIdx.z);
    return block * this_thread_block().size() + this_thread_block().thread_rank();
  }
};
inline grid_group this_grid() { return grid_group(); }

template <unsigned int n, typename Parent = void>
class thread_block_tile {
  static_assert(n >= 1 && n <= 32 && (n & (n - 1)) == 0,
                "the host runner has tiles of 1, 2, 4, 8, 16 and 32 threads");

 public:
  unsigned int thread_rank() const { return lane() % n; }
  static constexpr unsigned int size() { return n; }
  static constexpr unsigned int num_threads() { return n; }
  unsigned int meta_group_rank() const { return this_thread_block().thread_rank() / n; }
  unsigned int meta_group_size() const { return (this_thread_block().size() + n - 1) / n; }
  void sync(int line = __builtin_LINE()) const { __syncwarp(mask(), line); }
  template <typename T>
  T shfl(T value, int source, int line = __builtin_LINE()) const {
    return __shfl_sync(mask(), value, source, n, line);
  }
  template <typename T>
  T shfl_down(T value, unsigned int delta, int line = __builtin_LINE()) const {
    return __shfl_down_sync(mask(), value, delta, n, line);
  }
  template <typename T>
  T shfl_up(T value, unsigned int delta, int line = __builtin_LINE()) const {
    return __shfl_up_sync(mask(), value, delta, n, line);
  }
  template <typename T>
  T shfl_xor(T value, unsigned int lanes, int line = __builtin_LINE()) const {
    return __shfl_xor_sync(mask(), value, static_cast<int>(lanes), n, line);
  }
  int any(int predicate, int line = __builtin_LINE()) const {
    return __any_sync(mask(), predicate, line);
  }
  int all(int predicate, int line = __builtin_LINE()) const {
    return __all_sync(mask(), predicate, line);
  }
  unsigned int ballot(int predicate, int line = __builtin_LINE()) const {
    return __ballot_sync(mask(), predicate, line) >> first();
  }
  template <typename T>
  unsigned int match_any(T value, int line = __builtin_LINE()) const {
    return __match_any_sync(mask(), value, line) >> first();
  }

 private:
  static unsigned int lane() { return this_thread_block().thread_rank() % 32; }
  static unsigned int first() { return lane() / n * n; }
  static unsigned int mask() { return (n == 32 ? ~0u : (1u << (n % 32)) - 1u) << first(); }
};

template <unsigned int n, typename Parent>
inline thread_block_tile<n, Parent> tiled_partition(const Parent&) {
  return thread_block_tile<n, Parent>();
}

template <typename Group>
inline void sync(const Group& group, int line = __builtin_LINE()) {
  group.sync(line);
}

template <typename T>
struct plus {
  T operator()(T a, T b) const { return a + b; }
};
template <typename T>
struct greater {
  T operator()(T a, T b) const { return a < b ? b : a; }
};
template <typename T>
struct less {
  T operator()(T a, T b) const { return b < a ? b : a; }
};
template <typename T>
struct bit_and {
  T operator()(T a, T b) const { return a & b; }
};
template <typename T>
struct bit_or {
  T operator()(T a, T b) const { return a | b; }
};
template <typename T>
struct bit_xor {
  T operator()(T a, T b) const { return a ^ b; }
};

// A butterfly: one of the fixed orders that a GPU may use.
template <unsigned int n, typename Parent, typename T, typename Join>
inline T reduce(const thread_block_tile<n, Parent>& tile, T value, Join join,
                int line = __builtin_LINE()) {
  for (unsigned int lanes = n / 2; lanes > 0; lanes /= 2) {
    value = join(value, tile.shfl_xor(value, lanes, line));
  }
  return value;
}

}  // namespace cooperative_groups
}  // namespace
