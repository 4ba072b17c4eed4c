// TODO: what one thread owns, and the fixed order in which it adds.
#include "dtype.cuh"
#include "index.cuh"

// The idea of the kernel in a sentence. TODO
template <typename scalar_t>
__global__ void FAMILY(const scalar_t* __restrict__ self, scalar_t* __restrict__ result,
                       int64_t n) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    opmath_t<scalar_t> value = to_opmath(self[i]);
    result[i] = from_opmath<scalar_t>(value);  // TODO: the operator
  }
}
