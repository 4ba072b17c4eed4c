// What the backward of EmbeddingBag(mode="max") adds: for each bag and column one row, or nothing.
#include "sum_to_zeros.cuh"

// The row to which element i of [bags, columns] adds. -1 is nothing: an empty bag, which has no
// maximum, and `padding_idx`. ATen's CUDA forward says -1 for an empty bag; on the CPU only
// bag_size tells it.
template <typename index_t>
static __device__ __forceinline__ int64_t chosen_row(const index_t* max_indices,
                                                     const index_t* bag_size, int64_t i,
                                                     int64_t columns, int64_t num_weights,
                                                     int64_t padding_idx) {
  int64_t row = max_indices[i];
  bool adds = row >= 0 && row != padding_idx && bag_size[quick_div(i, columns)] != 0;
  DETMODE_ASSERT(!adds || row < num_weights);
  return adds ? row : -1;
}

// Sums in any order; sum_to_zeros launches it twice.
template <typename scalar_t, typename index_t>
__global__ void embedding_bag_sums(const scalar_t* __restrict__ grad,
                                   const index_t* __restrict__ max_indices,
                                   const index_t* __restrict__ bag_size, int32_t* keys,
                                   int64_t* sums, int64_t n, int64_t columns, int64_t num_weights,
                                   int64_t padding_idx, int64_t headroom) {
  accumulator<scalar_t> totals(keys, sums, headroom);
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t row = chosen_row(max_indices, bag_size, i, columns, num_weights, padding_idx);
    if (row < 0) continue;
    int64_t destination = row * columns + i - quick_div(i, columns) * columns;
    totals.observe_or_add(destination, to_opmath(grad[i]));
  }
}

// The addends and their positions in the weight, to be sorted. Nothing is 0.0 for row 0: sums begin
// there, so that changes nothing.
template <typename scalar_t, typename index_t>
__global__ void embedding_bag_addends(const scalar_t* __restrict__ grad,
                                      const index_t* __restrict__ max_indices,
                                      const index_t* __restrict__ bag_size,
                                      int64_t* __restrict__ positions,
                                      scalar_t* __restrict__ addends, int64_t n, int64_t columns,
                                      int64_t num_weights, int64_t padding_idx) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t row = chosen_row(max_indices, bag_size, i, columns, num_weights, padding_idx);
    positions[i] = max_index(row, 0) * columns + i - quick_div(i, columns) * columns;
    addends[i] = row < 0 ? from_opmath<scalar_t>(opmath_t<scalar_t>(0)) : grad[i];
  }
}
