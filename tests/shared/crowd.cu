// Sums in which threads of a warp meet, with the atomics that they take: each is counted behind the
// word that it changes.
#include "index.cuh"
#define atomic_add(address, value)         \
  do {                                     \
    atomic_add(address, value);            \
    atomic_add((address) + 1, int64_t(1)); \
  } while (0)
#include "crowd.cuh"
#undef atomic_add

__global__ void counted_sums(const int64_t* __restrict__ targets,
                             const int64_t* __restrict__ values, int64_t* __restrict__ sums,
                             int64_t n) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t value[1] = {values[i]};
    add_in_warp(sums + 2 * targets[i], value, true);
  }
}
