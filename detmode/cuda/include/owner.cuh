// Owner election for assignments: of the sources that write one destination, the last one in
// program order wins, as in a serial loop. Launch 1 elects, launch 2 gathers from the owners.
//
//   launch 1: elect_last(owners, destination, i);                      owners start at -1
//   launch 2: if (owners[d] >= 0) output[d] = source[owners[d]];
#pragma once

#include "index.cuh"

static __device__ __forceinline__ void elect_last(int64_t* owners, int64_t destination,
                                                  int64_t position) {
  // A stale read only costs an atomic that changes nothing.
  if (load_relaxed(owners + destination) < position) {
    atomic_max(owners + destination, position);
  }
}
