// The row-major position of several indices, one index a launch: keys = keys * size + index.
#include "index.cuh"

// Where nothing is `before` it, the first index writes the keys. A negative index counts from the
// end where `wraps`.
__global__ void index_put_linearize(const int64_t* __restrict__ index, int64_t* __restrict__ keys,
                                    int64_t n, int64_t size, bool before, bool wraps) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t position = from_start(index[i], size, wraps);
    DETMODE_ASSERT(position >= 0 && position < size);
    keys[i] = before ? keys[i] * size + position : position;
  }
}
