// Sums of addends in any order, begun at zero: what detmode.cuda.sum_to_zeros launches.
#pragma once

#include "accumulator.cuh"

// For a kernel that is launched twice: without sums it observes its addends, with sums it adds
// them. Integer maxima and additions: any order gives the same.
template <typename scalar_t>
static __device__ __forceinline__ void observe_or_add(int32_t* keys, int64_t* sums,
                                                      int64_t destination,
                                                      opmath_t<scalar_t> addend, int64_t headroom) {
  if (sums == nullptr) {
    accumulator<scalar_t>::observe(keys, destination, addend);
  } else {
    accumulator<scalar_t>::add(keys, sums, destination, addend, headroom);
  }
}

// The same for two addends of each thread, -1 where one has no destination. Where the second one's
// destination is the first one's of the next thread, that thread adds both: half of the atomics of
// a smooth image. `together` holds where all threads of a warp call it at once, for all of them.
template <typename scalar_t>
static __device__ __forceinline__ void observe_or_add_pair(int32_t* keys, int64_t* sums,
                                                           const int64_t (&destinations)[2],
                                                           const opmath_t<scalar_t> (&addends)[2],
                                                           int64_t headroom, bool together) {
  using sum_t = accumulator<scalar_t>;
  constexpr unsigned int everyone = 0xffffffffu;
  bool gives = false, takes = false;
  if (together) {
    int lane = static_cast<int>(threadIdx.x) % WARP;
    int64_t next = __shfl_down_sync(everyone, destinations[0], 1);
    gives = lane < WARP - 1 && destinations[1] >= 0 && destinations[1] == next;
    takes = __shfl_up_sync(everyone, gives ? 1 : 0, 1) != 0 && lane > 0;
  }
  bool has[2] = {destinations[0] >= 0, destinations[1] >= 0};
  if (sums == nullptr) {
    int32_t own[2];
    for (int i = 0; i < 2; ++i) own[i] = has[i] ? sum_t::key_of(addends[i]) : 0;
    if (together) {
      int32_t before = __shfl_up_sync(everyone, own[1], 1);
      if (takes && before > own[0]) own[0] = before;
    }
    if (has[0]) sum_t::raise(keys, destinations[0], own[0]);
    if (has[1] && !gives) sum_t::raise(keys, destinations[1], own[1]);
    return;
  }
  int64_t parts[2][sum_t::limbs] = {};
  for (int i = 0; i < 2; ++i) {
    if (has[i]) sum_t::set_parts(keys, sums, destinations[i], addends[i], headroom, parts[i]);
  }
  for (int k = 0; together && k < sum_t::limbs; ++k) {
    int64_t before = __shfl_up_sync(everyone, parts[1][k], 1);
    if (takes) parts[0][k] += before;
  }
  if (has[0]) sum_t::add_parts(sums, destinations[0], parts[0]);
  if (has[1] && !gives) sum_t::add_parts(sums, destinations[1], parts[1]);
}

// ATen adds to zeros: an element without an addend is 0.0, and so is one whose addends are -0.0.
template <typename scalar_t>
static __device__ __forceinline__ scalar_t finished_sum(const int32_t* keys, const int64_t* sums,
                                                        int64_t i, int64_t headroom) {
  scalar_t sum = accumulator<scalar_t>::finish(keys, sums, i, headroom);
  return to_opmath(sum) == 0 ? from_opmath<scalar_t>(0) : sum;
}

// Two neighbours a thread. Where neither has an addend their sums are not read: in a large result
// that few addends meet, these are most of the bytes.
template <typename scalar_t>
__global__ void finish_sums(const int32_t* __restrict__ keys, const int64_t* __restrict__ sums,
                            scalar_t* __restrict__ result, int64_t n, int64_t headroom) {
  using sum_t = accumulator<scalar_t>;
  for (int64_t i = 2 * thread_index(); i + 1 < n; i += 2 * thread_count()) {
    auto own = *reinterpret_cast<const pack_of<int32_t, 2>*>(keys + i);
    pack_of<scalar_t, 2> pair = {from_opmath<scalar_t>(0), from_opmath<scalar_t>(0)};
    if (sum_t::any(own.lane, 0) || sum_t::any(own.lane, 1)) {
      int64_t limbs[2 * sum_t::limbs];
      for (int k = 0; k < 2 * sum_t::limbs; ++k) limbs[k] = sums[i * sum_t::limbs + k];
      for (int k = 0; k < 2; ++k) {
        pair.lane[k] = finished_sum<scalar_t>(own.lane, limbs, k, headroom);
      }
    }
    *reinterpret_cast<pack_of<scalar_t, 2>*>(result + i) = pair;
  }
  if (n % 2 != 0 && thread_index() == 0) {
    result[n - 1] = finished_sum<scalar_t>(keys, sums, n - 1, headroom);
  }
}
