// Reductions over a warp or a block in a fixed order: ((0 1)(2 3))((4 5)(6 7))..., the neighbours
// first.
//
// `op(earlier, later)` sees its operands in the order of the threads, so it may depend on that
// order (the smaller index of equal values, a product in source order up to its grouping). Every
// thread of the block calls; the block has one dimension of `threads` threads, a multiple of 32.
#pragma once

#include "types.cuh"

template <typename scalar_t>
struct sum_op {
  __device__ __forceinline__ scalar_t operator()(scalar_t earlier, scalar_t later) const {
    return earlier + later;
  }
  // Adding -0.0 keeps every value, a -0.0 too; adding +0.0 would not.
  static __device__ __forceinline__ scalar_t identity() { return -scalar_t(0); }
};

// __shfl_down_sync of all 32 lanes for any type of whole 32-bit words.
template <typename T>
static __device__ __forceinline__ T shuffle_down(T value, int delta) {
  static_assert(sizeof(T) % 4 == 0, "a shuffled type has whole 32-bit words");
  union Words {
    T value;
    int words[sizeof(T) / 4];
    __device__ Words() {}
  } in, out;
  in.value = value;
#pragma unroll
  for (int w = 0; w < static_cast<int>(sizeof(T) / 4); ++w) {
    out.words[w] = __shfl_down_sync(0xffffffffu, in.words[w], static_cast<unsigned int>(delta));
  }
  return out.value;
}

// The reduction of the warp's 32 values, in lane 0; other lanes get parts of it.
template <typename T, typename Op>
static __device__ __forceinline__ T warp_reduce(T value, Op op) {
#pragma unroll
  for (int delta = 1; delta < 32; delta *= 2) {
    value = op(value, shuffle_down(value, delta));
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

// The same for an op with `Op::identity()`, such as sum_op<float>.
template <int threads, typename T, typename Op>
static __device__ __forceinline__ T block_reduce(T value, Op op) {
  return block_reduce<threads>(value, op, static_cast<T>(Op::identity()));
}
