// Owner election for assignments: of the sources that write one destination, the last one in
// program order wins, as in a serial loop. Owners have memory of their own, or lie in the
// destinations, whose bits are lost to a source anyway.
//
//   launch 1: elect_last(owners, destination, i);                      owners start at -1
//   launch 2: if (owners[d] >= 0) output[d] = source[owners[d]];
//
//   launch 1: lost[i] = 0; store_relaxed(marks + destination, i);
//   launch 2: elect_marked(marks + destination, lost, i);
//   launch 3: if (lost[i] == 0) output[d] = source[i];
#pragma once

#include "index.cuh"

// owner_t: int32_t or int64_t, which holds any position.
template <typename owner_t>
static __device__ __forceinline__ void elect_last(owner_t* owners, int64_t destination,
                                                  owner_t position) {
  raise_to(owners + destination, position);
}

// A mark holds some source of its destination, and rises to the last. Who meets a later one has
// lost, and so has whom a later one replaces: in the end all but the last. The third launch reads
// no mark, for by then it may be a value, which looks like any position.
static __device__ __forceinline__ void elect_marked(int32_t* mark, uint8_t* lost,
                                                    int32_t position) {
  int32_t rival = load_relaxed(mark);
  if (rival < position) rival = atomic_max(mark, position);
  if (rival != position) store_relaxed(lost + min(rival, position), uint8_t(1));
}
