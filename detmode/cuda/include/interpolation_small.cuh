// The gradient of an interpolation of few elements in one launch. Each block writes the tables that
// it reads, in shared memory, so that sizes that are new need no launch that writes them for all.
#pragma once

#include "interpolation_gather.cuh"
#include "interpolation_table.cuh"

// The last dimension is the first of `tabled`. Shared memory: the tables.
template <typename interpolation, typename element_t, int dims>
__global__ void upsample_small(const element_t* __restrict__ grad_output,
                               element_t* __restrict__ grad_input, int64_t outer, int64_t inner,
                               tabled_axes tabled, bool align_corners, bool clamps) {
  using weight_t = opmath_t<element_t>;
  weight_t* tables = dynamic_shared<weight_t>();
  write_tables<interpolation>(tables, tabled, align_corners, threadIdx.x, blockDim.x);
  __syncthreads();
  resized_shape shape{outer,          inner,         tabled.a_size, tabled.a_out,  tabled.a_taps,
                      tabled.a_table, tabled.b_size, tabled.b_out,  tabled.b_taps, tabled.b_table,
                      tabled.c_size,  tabled.c_out,  tabled.c_taps, tabled.c_table};
  Axis<weight_t> axes[3];
  read_tables<weight_t>(tables, shape, axes);
  gather_elements<dims, 1, false>(grad_output, grad_input, shape, clamps, axes);
}
