// Blocks of one launch that go on from what blocks before them have found: which tile a block
// takes, and the sum of the counts of all tiles before it.
//
// A block draws its tile from a counter, so the tiles that it waits for are those of blocks that
// run already or have run, and each of those waits for earlier ones only.
#pragma once

#include "index.cuh"

// On the host blocks run one after another, unless a launch is watched for a certificate: what is
// not there never comes, and what is published twice was published too early. On a GPU these checks
// would cost a read each.
#if defined(__CUDA_ARCH__) || DETMODE_FOREIGN
#define HOST_ASSERT(condition)
#else
#define HOST_ASSERT(condition) DETMODE_ASSERT(condition)
#endif

// The next tile that no block has yet, in every thread of a block, which asks once. `counter`
// starts at 0.
static __device__ __forceinline__ int64_t draw_tile(int32_t* counter) {
  __shared__ int32_t drawn;
  if (threadIdx.x == 0) drawn = atomicAdd(counter, 1);
  __syncthreads();
  return drawn;
}

// What a tile says of its count: 0 is nothing yet; above 0, one more than its own count; below 0,
// the complement of the sum of it and of all before it. One word says it all, so no fence is
// needed; and integers have one sum, so it does not matter how far the tiles are when they are
// asked.
//
// `words` has one for each tile, `stride` apart, all 0; sums are below 2^31.
static __device__ __forceinline__ void publish_count(int32_t* words, int64_t stride, int64_t tile,
                                                     int32_t count) {
  HOST_ASSERT(load_relaxed(words + tile * stride) == 0);
  store_relaxed(words + tile * stride, tile == 0 ? ~count : count + 1);
}

// The sum of the counts of all tiles before `tile`, which has published its own. Waits for them,
// and publishes the sum with it.
static __device__ __forceinline__ int32_t count_before(int32_t* words, int64_t stride, int64_t tile,
                                                       int32_t count) {
  // Loads of one batch do not wait for one another.
  constexpr int batch = 8;
  int32_t sum = 0;
  for (int64_t end = tile; end > 0;) {
    int32_t word[batch];
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      word[b] = load_relaxed(words + max_index(end - 1 - b, 0) * stride);
    }
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      if (end == 0) break;
      HOST_ASSERT(word[b] != 0);
      if (word[b] == 0) break;
      sum += word[b] < 0 ? ~word[b] : word[b] - 1;
      end = word[b] < 0 ? 0 : end - 1;
    }
  }
  if (tile > 0) store_relaxed(words + tile * stride, ~(sum + count));
  return sum;
}
