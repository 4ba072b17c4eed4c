// Owner election for assignments: of the sources that write one destination, the last one in
// program order wins, as in a serial loop. Launch 1 elects, launch 2 gathers from the owners.
//
//   launch 1: elect_last(owners, destination, i);                      owners start at -1
//   launch 2: if (owners[d] >= 0) output[d] = source[owners[d]];
#pragma once

#include "index.cuh"

// owner_t: int32_t or int64_t, which holds any position.
template <typename owner_t>
static __device__ __forceinline__ void elect_last(owner_t* owners, int64_t destination,
                                                  owner_t position) {
  raise_to(owners + destination, position);
}
