// Maxima and minima of rows by destination: index_reduce and scatter_reduce.
#include "ordered.cuh"
#include "row_shape.cuh"

// Integer maxima of keys: any order gives the same.
template <typename scalar_t>
__global__ void index_reduce_observe(const int64_t* __restrict__ index,
                                     const scalar_t* __restrict__ source,
                                     typename extremum<scalar_t>::key_t* __restrict__ keys,
                                     int64_t n, bool by_row, row_shape shape, bool largest) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t destination = placed_by(index, i, by_row, shape).destination;
    extremum<scalar_t>::observe(keys, destination, source[i], largest);
  }
}

// What a destination holds stays, to the bit, unless an observed value is beyond it.
template <typename scalar_t>
__global__ void index_reduce_finish(const typename extremum<scalar_t>::key_t* __restrict__ keys,
                                    scalar_t* __restrict__ out, int64_t n, bool include_self,
                                    bool largest) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    if (!extremum<scalar_t>::any(keys, i)) continue;
    if (include_self && extremum<scalar_t>::key_of(out[i], largest) >= keys[i]) continue;
    out[i] = extremum<scalar_t>::finish(keys, i, largest);
  }
}
