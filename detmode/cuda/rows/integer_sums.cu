// Sums of rows by destination, as integers that any order adds to the same sum: in memory (observe,
// admit_self, accumulate, finish), or in a block's shared memory (strips).
#include "accumulator.cuh"
#include "row_elements.cuh"

template <typename scalar_t, int together>
__global__ void index_add_observe(const int64_t* __restrict__ index,
                                  const scalar_t* __restrict__ source, int32_t* __restrict__ keys,
                                  int64_t n, bool by_row, row_shape shape, scaling alpha) {
  using sum_t = accumulator<scalar_t>;
  sum_t totals(keys, nullptr, 0);
  using read_t = elements<scalar_t, together>;
  auto observe = [&](const read_t& read, int64_t, int64_t) {
    typename sum_t::key_t seen[together];
#pragma unroll
    for (int k = 0; k < together; ++k) seen[k] = totals.seen(read.destinations[k]);
    // The last element changes no maximum when it comes again.
#pragma unroll
    for (int k = 0; k < together; ++k) {
      totals.raise(read.destinations[k], sum_t::key_of(read.addends[k]), seen[k]);
    }
  };
  read_t::of_block(index, source, n, by_row, shape, alpha, observe);
}

// The initial value joins the addends of each destination that has one. Where it does not count,
// 0.0 does, as in ATen, so that -0.0 is never the sum.
template <typename scalar_t>
__global__ void index_add_admit_self(const scalar_t* __restrict__ self, int32_t* __restrict__ keys,
                                     int64_t* __restrict__ sums, int64_t n, bool include_self,
                                     int64_t headroom) {
  accumulator<scalar_t> totals(keys, sums, headroom);
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    if (!totals.any(i)) continue;
    auto value = include_self ? to_opmath(self[i]) : opmath_t<scalar_t>(0);
    totals.observe(i, value);
    totals.add(i, value);
  }
}

// Threads of one warp meet where no more than CROWDED_COLUMNS lie side by side.
template <typename scalar_t, bool crowded, int together>
__global__ void index_add_accumulate(const int64_t* __restrict__ index,
                                     const scalar_t* __restrict__ source,
                                     const int32_t* __restrict__ keys, int64_t* __restrict__ sums,
                                     int64_t* __restrict__ counts, int64_t n, bool by_row,
                                     row_shape shape, scaling alpha, int64_t headroom) {
  using sum_t = accumulator<scalar_t>;
  sum_t totals(keys, sums, headroom);
  int64_t in_whole_warps = n / WARP * WARP;
  using read_t = elements<scalar_t, together>;
  auto add = [&](const read_t& read, int64_t i, int64_t end) {
    typename sum_t::key_t largest[together];
#pragma unroll
    for (int k = 0; k < together; ++k) largest[k] = totals.key(read.destinations[k]);
#pragma unroll
    for (int k = 0; k < together; ++k) {
      int64_t place = i + k * blockDim.x, destination = read.destinations[k];
      if (place >= end) break;
      bool met = crowded && place < in_whole_warps;
      totals.add_in_warp(largest[k], destination, read.addends[k], met);
      if (counts != nullptr) {
        int64_t one[1] = {1};
        add_in_warp(counts + destination, one, met);
      }
    }
  };
  read_t::of_block(index, source, n, by_row, shape, alpha, add);
}

// The sum divided by the number of its addends, of which the initial value may be one.
template <typename scalar_t, typename space>
static __device__ __forceinline__ scalar_t finished_mean(const accumulator<scalar_t, space>& totals,
                                                         int64_t i, int64_t count,
                                                         bool include_self) {
  return from_opmath<scalar_t>(quotient(totals.finish_opmath(i), count + (include_self ? 1 : 0)));
}

template <typename scalar_t>
__global__ void index_add_finish(const int32_t* __restrict__ keys, const int64_t* __restrict__ sums,
                                 const int64_t* __restrict__ counts, scalar_t* __restrict__ out,
                                 int64_t n, bool include_self, int64_t headroom) {
  accumulator<scalar_t> totals(keys, sums, headroom);
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    if (!totals.any(i)) continue;
    out[i] =
        counts == nullptr ? totals.finish(i) : finished_mean(totals, i, counts[i], include_self);
  }
}

// All four at once, for elements, each with a place in the index, of planes of `shape.size`
// destinations side by side. A block owns a strip of a plane, whose keys and sums are in its shared
// memory, and behind them the counts for a mean.
template <typename scalar_t>
__global__ void __launch_bounds__(1024)
    index_add_strips(const int64_t* __restrict__ index, const scalar_t* __restrict__ source,
                     scalar_t* __restrict__ out, int64_t strip, int64_t strips, row_shape shape,
                     bool include_self, bool mean, scaling alpha, int64_t headroom) {
  constexpr int TOGETHER = 4;
  auto totals = accumulator<scalar_t, in_block>::in_shared(strip, headroom);
  int32_t* counts = totals.behind_keys(strip);
  int32_t rows = static_cast<int32_t>(shape.rows), threads = blockDim.x;
  int64_t parts = shape.outer * strips;
  for (int64_t part = blockIdx.x; part < parts; part += gridDim.x) {
    int64_t plane = quick_div(part, strips), first = (part - plane * strips) * strip;
    int32_t owned = static_cast<int32_t>(min_index(strip, shape.size - first));
    for (int32_t i = threadIdx.x; i < owned; i += threads) totals.clear(i);
    for (int32_t i = threadIdx.x; mean && i < owned; i += threads) counts[i] = 0;
    __syncthreads();
    const int64_t* places = index + plane * shape.rows;
    const scalar_t* source_of_plane = source + plane * shape.rows;
    scalar_t* out_of_strip = out + plane * shape.size + first;
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
      for (int32_t row = threadIdx.x; row < rows; row += TOGETHER * threads) {
        int64_t positions[TOGETHER];
        scalar_t values[TOGETHER];
#pragma unroll
        for (int k = 0; k < TOGETHER; ++k) {
          int32_t place = min(row + k * threads, rows - 1);
          positions[k] = position_at(places, place, shape);
          values[k] = source_of_plane[place];
        }
#pragma unroll
        for (int k = 0; k < TOGETHER; ++k) {
          if (row + k * threads >= rows) break;
          DETMODE_ASSERT(positions[k] >= 0 && positions[k] < shape.size);
          int64_t in_strip = positions[k] - first;
          if (in_strip < 0 || in_strip >= owned) continue;
          auto value = addend(values[k], alpha);
          if (pass == 0) {
            totals.observe(in_strip, value);
          } else {
            totals.add(in_strip, value);
            if (mean) atomicAdd(counts + in_strip, 1);
          }
        }
      }
      __syncthreads();
      if (pass == 1) break;
      for (int32_t i = threadIdx.x; i < owned; i += threads) {
        if (!totals.any(i)) continue;
        auto value = include_self ? to_opmath(out_of_strip[i]) : opmath_t<scalar_t>(0);
        totals.observe(i, value);
        totals.add(i, value);
      }
      __syncthreads();
    }
    for (int32_t i = threadIdx.x; i < owned; i += threads) {
      if (!totals.any(i)) continue;
      out_of_strip[i] = mean ? finished_mean(totals, i, counts[i], include_self) : totals.finish(i);
    }
    __syncthreads();
  }
}
