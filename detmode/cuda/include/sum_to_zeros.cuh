// Sums of addends in any order, begun at zero: what detmode.cuda.sum_to_zeros launches.
#pragma once

#include "accumulator.cuh"

// Two neighbours a thread. Where neither has an addend their sums are not read: in a large result
// that few addends meet, these are most of the bytes. Where `needed` is not null, but what it
// points at is 0, `result` is filled already.
template <typename scalar_t>
__global__ void finish_sums(const int32_t* __restrict__ keys, const int64_t* __restrict__ sums,
                            scalar_t* __restrict__ result, int64_t n, int64_t headroom,
                            const int32_t* needed) {
  if (needed != nullptr && *needed == 0) return;
  using sum_t = accumulator<scalar_t>;
  for (int64_t i = 2 * thread_index(); i + 1 < n; i += 2 * thread_count()) {
    auto pair_of_keys = *reinterpret_cast<const pack_of<int32_t, 2>*>(keys + i);
    int64_t limbs[2 * sum_t::limbs];
    sum_t totals(pair_of_keys.lane, limbs, headroom);
    pack_of<scalar_t, 2> pair = {from_opmath<scalar_t>(0), from_opmath<scalar_t>(0)};
    if (totals.any(0) || totals.any(1)) {
      for (int k = 0; k < 2 * sum_t::limbs; ++k) limbs[k] = sums[i * sum_t::limbs + k];
      for (int k = 0; k < 2; ++k) pair.lane[k] = totals.finish_from_zero(k);
    }
    *reinterpret_cast<pack_of<scalar_t, 2>*>(result + i) = pair;
  }
  if (n % 2 != 0 && thread_index() == 0) {
    result[n - 1] = sum_t(keys, sums, headroom).finish_from_zero(n - 1);
  }
}
