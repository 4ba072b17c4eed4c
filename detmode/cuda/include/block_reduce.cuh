// Reductions over a warp or a block in a fixed order: ((0 1)(2 3))((4 5)(6 7))..., the neighbours
// first.
//
// `op(earlier, later)` sees its operands in the order of the threads, so it may depend on that
// order (the smaller index of equal values, a product in source order up to its grouping). Every
// thread of the block calls; the block has one dimension of `threads` threads, a multiple of 32.
#pragma once

#include "types.cuh"

// `value` as whole 32-bit words.
template <typename T>
union words_of {
  static_assert(sizeof(T) % 4 == 0, "a shuffled type has whole 32-bit words");
  static constexpr int count = sizeof(T) / 4;
  T value;
  int32_t word[count];
  __device__ words_of() {}
};

// A shuffle of all 32 lanes for any type of whole 32-bit words.
template <typename T, typename Shuffle>
static __device__ __forceinline__ T shuffled(T value, Shuffle shuffle) {
  words_of<T> in, out;
  in.value = value;
#pragma unroll
  for (int w = 0; w < words_of<T>::count; ++w) out.word[w] = shuffle(in.word[w]);
  return out.value;
}

// The reduction of the warp's 32 values, in lane 0; other lanes get parts of it.
template <typename T, typename Op>
static __device__ __forceinline__ T warp_reduce(T value, Op op) {
#pragma unroll
  for (int delta = 1; delta < 32; delta *= 2) {
    T later = shuffled(value, [=](int32_t word) {
      return __shfl_down_sync(0xffffffffu, word, static_cast<unsigned int>(delta));
    });
    value = op(value, later);
  }
  return value;
}

// The reduction of the block's values, in thread 0; other threads get parts of it. `identity`
// stands in for warps that do not exist: op(x, identity) is x.
template <int threads, typename T, typename Op>
static __device__ __forceinline__ T block_reduce(T value, Op op, T identity) {
  static_assert(threads % 32 == 0 && threads >= 32 && threads <= 1024, "whole warps, at most 1024");
  constexpr int warps = threads / 32;
  value = warp_reduce(value, op);
  if (warps == 1) return value;
  // Bytes, because a shared variable must not have a constructor.
  __shared__ __align__(16) unsigned char storage[warps * sizeof(T)];
  T* partial = reinterpret_cast<T*>(storage);
  int lane = static_cast<int>(threadIdx.x) % 32;
  int warp = static_cast<int>(threadIdx.x) / 32;
  // The previous use of `storage` may still be read.
  __syncthreads();
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  if (warp == 0) {
    value = warp_reduce(lane < warps ? partial[lane] : identity, op);
  }
  return value;
}
