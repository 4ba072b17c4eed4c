// What the backward of EmbeddingBag(mode="max") adds: for each bag and column one row, or nothing.
#include "dtype.cuh"
#include "index.cuh"

// rows, addends and their inputs are [bags, columns]. A bag without a maximum, which is an empty
// one, and `padding_idx` add 0.0 to row 0: sums begin there, so that changes nothing. ATen's CUDA
// forward says -1 for an empty bag; on the CPU only bag_size tells it.
template <typename scalar_t, typename index_t>
__global__ void embedding_bag_addends(const scalar_t* __restrict__ grad,
                                      const index_t* __restrict__ max_indices,
                                      const index_t* __restrict__ bag_size,
                                      int64_t* __restrict__ rows, scalar_t* __restrict__ addends,
                                      int64_t n, int64_t columns, int64_t padding_idx) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t row = max_indices[i];
    bool adds = row >= 0 && row != padding_idx && bag_size[quick_div(i, columns)] != 0;
    rows[i] = adds ? row : 0;
    addends[i] = adds ? grad[i] : from_opmath<scalar_t>(opmath_t<scalar_t>(0));
  }
}
