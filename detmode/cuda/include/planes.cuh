// One place in neighbouring planes, or in channels: what one thread reads and writes of them.
#pragma once

#include "dtype.cuh"

// Of `count` planes `hop` elements apart, the first `per_thread`, or `missing` for planes that
// there are not. The loads do not wait for one another.
template <int per_thread, typename scalar_t, typename acc_t, typename index_t>
static __device__ __forceinline__ void load_planes(const scalar_t* first, index_t hop,
                                                   index_t count, acc_t missing,
                                                   acc_t (&values)[per_thread]) {
  if (count >= per_thread) {
#pragma unroll
    for (int j = 0; j < per_thread; ++j, first += hop) values[j] = to_opmath(*first);
  } else {
#pragma unroll
    for (int j = 0; j < per_thread; ++j, first += hop) {
      values[j] = j < count ? to_opmath(*first) : missing;
    }
  }
}

template <int per_thread, typename scalar_t, typename acc_t, typename index_t>
static __device__ __forceinline__ void store_planes(scalar_t* first, index_t hop, index_t count,
                                                    const acc_t (&values)[per_thread]) {
  if (count >= per_thread) {
#pragma unroll
    for (int j = 0; j < per_thread; ++j, first += hop) *first = from_opmath<scalar_t>(values[j]);
  } else {
#pragma unroll
    for (int j = 0; j < per_thread; ++j, first += hop) {
      if (j < count) *first = from_opmath<scalar_t>(values[j]);
    }
  }
}
