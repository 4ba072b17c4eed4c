// The elements of rows, as threads read them to add them one by one.
#pragma once

#include "row_shape.cuh"
#include "scaling.cuh"

// The elements of a block: neighbours, in turns of one for each thread. Other blocks are elsewhere
// meanwhile, so that keys have mostly been raised when the next turn's addends ask for them.
struct share_of_block {
  int64_t begin, end;
  static __device__ __forceinline__ share_of_block of(int64_t n) {
    int64_t turns = quick_div(n - 1, thread_count()) + 1, size = turns * blockDim.x;
    return {blockIdx.x * size, min_index((blockIdx.x + 1) * size, n)};
  }
};

// Elements that a thread takes at once, a turn apart: each waits for its index and then for its
// destination's key, all of them together.
template <typename scalar_t, int together>
struct elements {
  int64_t destinations[together];
  opmath_t<scalar_t> addends[together];
  // From `first` on; where there are no more before the `end`, the last one again.
  static __device__ __forceinline__ elements read(const int64_t* index, const scalar_t* source,
                                                  int64_t first, int64_t end, bool by_row,
                                                  const row_shape& shape, scaling alpha) {
    named places[together];
    int64_t positions[together];
    scalar_t values[together];
    elements found;
#pragma unroll
    for (int k = 0; k < together; ++k) {
      int64_t i = min_index(first + k * blockDim.x, end - 1);
      places[k] = named_by(i, by_row, shape);
      positions[k] = index[places[k].place];
      values[k] = source[i];
    }
#pragma unroll
    for (int k = 0; k < together; ++k) {
      int64_t position = from_start(positions[k], shape.size, shape.wraps != 0);
      found.destinations[k] = destination_of(places[k], position, shape);
      found.addends[k] = addend(values[k], alpha);
    }
    return found;
  }
  // Calls visit(elements, first, end) for those of the block's share, a thread's turn each time.
  template <typename Visit>
  static __device__ __forceinline__ void of_block(const int64_t* index, const scalar_t* source,
                                                  int64_t n, bool by_row, const row_shape& shape,
                                                  scaling alpha, Visit visit) {
    share_of_block share = share_of_block::of(n);
    for (int64_t i = share.begin + threadIdx.x; i < share.end; i += together * blockDim.x) {
      visit(read(index, source, i, share.end, by_row, shape, alpha), i, share.end);
    }
  }
};
