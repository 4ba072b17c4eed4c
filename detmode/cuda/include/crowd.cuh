// Integer additions to memory at which threads of a warp may meet: a crowd at one address adds
// among itself, and one thread adds the sum. Integers add to the same sum in any grouping.
#pragma once

#include "index.cuh"

constexpr int WARP = 32;

// The fewest threads of a crowd. Its sum takes as many instructions for 2 threads as for 32, while
// atomics at one address wait for one another.
constexpr int CROWD = 8;

// Adds the `n` integers of `value` at `target`. All threads of a warp call it together, as long as
// `together` holds, which is the same for all of them.
template <int n>
static __device__ __forceinline__ void add_in_warp(int64_t* target, int64_t (&value)[n],
                                                   bool together) {
  constexpr unsigned int everyone = 0xffffffffu;
  int lane = static_cast<int>(threadIdx.x) % WARP;
  int64_t address = reinterpret_cast<int64_t>(target);
  unsigned int left = together ? everyone : 0;
  // Where the first thread that is left has no crowd, the others hardly have one.
  for (int leader = 0; left != 0; leader = __ffs(static_cast<int>(left)) - 1) {
    bool joins = address == __shfl_sync(everyone, address, leader);
    unsigned int crowd = __ballot_sync(everyone, joins);
    if (__popc(crowd) < CROWD) break;
    left &= ~crowd;
    for (int k = 0; k < n; ++k) {
      int64_t sum = joins ? value[k] : 0;
      for (int distance = WARP / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(everyone, sum, distance);
      }
      value[k] = lane == leader ? sum : joins ? 0 : value[k];
    }
  }
  for (int k = 0; k < n; ++k) {
    if (value[k] != 0) atomic_add(target + k, value[k]);
  }
}
