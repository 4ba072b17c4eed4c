// The gradient of an interpolation of few elements in one launch. Each block writes the tables that
// it reads, or the parts of them, in shared memory, so that sizes that are new need no launch that
// writes them for all.
#pragma once

#include "interpolation_gather.cuh"
#include "interpolation_table.cuh"

// Shared memory: the tables.
template <typename interpolation, typename element_t, int dims>
__global__ void upsample_small(const element_t* __restrict__ grad_output,
                               element_t* __restrict__ grad_input, int64_t outer, int64_t inner,
                               resized_axes resized, bool align_corners, bool clamps) {
  using weight_t = opmath_t<element_t>;
  weight_t* tables = dynamic_shared<weight_t>();
  write_tables<interpolation>(tables, resized, align_corners, threadIdx.x, blockDim.x);
  __syncthreads();  // for the tables
  Axis<weight_t> axes[3];
  read_tables<weight_t>(tables, resized, axes);
  gather_elements<dims, 1, false>(grad_output, grad_input, outer, inner, clamps, axes);
}

// For rows whose tables are too long for that, of contiguous tensors: blockIdx.y is a row of
// grad_input, blockIdx.x a strip of it, a position for each thread. A block writes what the strip
// needs of the last dimension's table, and what the row needs of the others'. Shared memory:
// `capacity` bytes.
template <typename interpolation, typename element_t, int dims>
__global__ void upsample_strips(const element_t* __restrict__ grad_output,
                                element_t* __restrict__ grad_input, resized_axes resized,
                                bool align_corners, bool clamps, int64_t capacity) {
  using weight_t = opmath_t<element_t>;
  const Resizes<weight_t> resizes(resized, align_corners);
  int32_t threads = static_cast<int32_t>(blockDim.x), t = static_cast<int32_t>(threadIdx.x);
  int64_t row = blockIdx.y, rest = row, plane = 1;
  int32_t from[3], count[3];
  from[0] = static_cast<int32_t>(blockIdx.x) * threads;
  count[0] = least(threads, static_cast<int32_t>(resizes.of[0].in) - from[0]);
#pragma unroll
  for (int a = 1; a < dims; ++a) {
    from[a] = static_cast<int32_t>(rest % resizes.of[a].in);
    rest /= resizes.of[a].in;
    count[a] = 1;
  }
  // Of each position of the strip the output positions that read it; behind them, of the row.
  int32_t* ranges = dynamic_shared<int32_t>();
  auto low_of = [&](int a) { return a == 0 ? ranges : ranges + 2 * (threads + a - 1); };
  auto high_of = [&](int a) { return low_of(a) + (a == 0 ? threads : 1); };
#pragma unroll
  for (int a = 0; a < dims; ++a) {
    // The strip's last threads may have no position.
    int32_t i = a == 0 ? t : threads - a - t;
    if (a == 0 ? i < count[0] : i == 0) {
      find_readers<interpolation>(resizes.of[a], from[a] + i, low_of(a)[i], high_of(a)[i]);
    }
  }
  __syncthreads();  // for the ranges
  Axis<weight_t> axes[3];
  weight_t* weights = reinterpret_cast<weight_t*>(ranges + 2 * (threads + 2));
#pragma unroll
  for (int a = 0; a < dims; ++a) {
    const Resize<weight_t>& resize = resizes.of[a];
    int32_t taps = static_cast<int32_t>(resize.taps);
    int32_t first = low_of(a)[0], n = most(high_of(a)[count[a] - 1] - first + 1, 0);
    int32_t* positions = reinterpret_cast<int32_t*>(weights + static_cast<int64_t>(n) * taps);
    // Weights may have 8 bytes.
    int32_t* end = positions + (n + 1) / 2 * 2;
    DETMODE_ASSERT(reinterpret_cast<char*>(end) - reinterpret_cast<char*>(ranges) <= capacity);
    for (int32_t i = t; i < n; i += threads) {
      weight_t* taps_of_i = weights + static_cast<int64_t>(i) * taps;
      positions[i] = static_cast<int32_t>(interpolation::weigh(resize, first + i, taps_of_i));
    }
    axes[a] = Axis<weight_t>{static_cast<int32_t>(resize.in),
                             static_cast<int32_t>(resize.out),
                             taps,
                             from[a],
                             positions - first,
                             low_of(a) - from[a],
                             high_of(a) - from[a],
                             weights - static_cast<int64_t>(first) * taps};
    plane *= resize.out;
    weights = reinterpret_cast<weight_t*>(end);
  }
  __syncthreads();  // for the weights
  if (t >= count[0]) return;
  axes[0].at += t;
  weight_t sums[1];
  gather_all<dims, 1>(grad_output + rest * plane, 1, 1, 1, clamps, axes, sums);
  grad_input[row * resizes.of[0].in + axes[0].at] =
      static_cast<element_t>(add_rn(sums[0], weight_t(0)));
}
