// The gradient of an input in whose channels few samples lie, next to the pixels: sums in a table
// in a block's shared memory, which only has the pixels that meet an addend, and zeros elsewhere.
#pragma once

#include "index_type.cuh"
#include "sample.cuh"
#include "sum_to_zeros.cuh"

// Of a block, the same in ways.py.
constexpr int FEW = 128;
constexpr int SLOTS_LOG2 = 9;
constexpr int SLOTS = 1 << SLOTS_LOG2;

// Writes `n` zeros with all threads of a block: 16 bytes at once, but for what lies before the
// first such boundary and behind the last.
template <typename T>
static __device__ __forceinline__ void zero_in_block(T* first, int32_t n) {
  constexpr int at_once = 16 / static_cast<int>(sizeof(T));
  int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  uint64_t position = reinterpret_cast<uint64_t>(first) / sizeof(T);
  int32_t before = least(static_cast<int32_t>((0 - position) % at_once), n);
  int32_t packs = (n - before) / at_once, behind = before + packs * at_once;
  auto* aligned = reinterpret_cast<pack_of<T, at_once>*>(first + before);
#pragma unroll 4
  for (int32_t i = thread; i < packs; i += threads) aligned[i] = pack_of<T, at_once>{};
  if (thread < before) first[thread] = T{};
  if (thread < n - behind) first[behind + thread] = T{};
}

// The slot of a pixel, which takes the first free one behind its own. `places` are 1 + the pixels
// of the slots, 0 where they are free; there are more slots than pixels.
static __device__ __forceinline__ int32_t slot_of(int32_t* places, int32_t pixel) {
  // Knuth's multiplicative hashing: neither neighbours nor columns meet.
  uint32_t slot = static_cast<uint32_t>(pixel) * 2654435769u >> (32 - SLOTS_LOG2);
  for (;; slot = (slot + 1) % SLOTS) {
    int32_t taken = atomicCAS(places + slot, 0, pixel + 1);
    if (taken == 0 || taken == pixel + 1) return static_cast<int32_t>(slot);
  }
}

// A block owns a channel, a thread one of its samples. Its launch has shared memory for SLOTS keys,
// sums and places.
template <typename scalar_t, int dims, int taps>
__global__ void __launch_bounds__(FEW)
    grid_sampler_few_taps(const scalar_t* __restrict__ grad_output,
                          const scalar_t* __restrict__ grid, scalar_t* __restrict__ result,
                          extents input_size, extents output_size, extents grad_stride,
                          extents grid_stride, int64_t padding, bool align_corners,
                          int64_t headroom) {
  using addend_t = opmath_t<scalar_t>;
  constexpr int all = taps * taps * (dims == 3 ? taps : 1);
  auto totals = accumulator<scalar_t, in_block>::in_shared(SLOTS, headroom);
  int32_t* places = totals.behind_keys(SLOTS);
  int32_t* table = dynamic_shared<int32_t>();
  int32_t words = static_cast<int32_t>(places + SLOTS - table);
  Volume in = along(input_size);
  Samples of(output_size, grad_stride, grid_stride);
  int32_t width = static_cast<int32_t>(input_size.w);
  int32_t frame = width * static_cast<int32_t>(input_size.h);
  int32_t elements = static_cast<int32_t>(in.elements());
  int64_t samples = along(output_size).elements();
  int64_t channels = input_size.c, planes = input_size.n * channels;
  for (int64_t plane = blockIdx.x; plane < planes; plane += gridDim.x) {
    int64_t image = quick_div(plane, channels), c = plane - image * channels;
    bool samples_one = threadIdx.x < samples;
    int64_t s = samples_one ? threadIdx.x : 0;
    // Read before the zeros are written, and first looked at after.
    const scalar_t* coordinates = grid + image * grid_stride.n + of.in_grid(s);
    scalar_t place[dims];
    for (int axis = 0; axis < dims; ++axis) place[axis] = coordinates[axis * grid_stride.c];
    scalar_t gradient = grad_output[image * grad_stride.n + c * grad_stride.c + of.in_grad(s)];
    scalar_t* channel = result + plane * elements;
    zero_in_block(table, words);
    zero_in_block(channel, elements);
    __syncthreads();
    Sample<scalar_t, dims, taps> sample(place, 1, in, padding, align_corners);
    int32_t slots[all];
    addend_t addends[all];
    sample.each_row([&](int j, int k) {
#pragma unroll
      for (int i = 0; i < taps; ++i) {
        int tap = (k * taps + j) * taps + i;
        slots[tap] = -1;
        addends[tap] = weighted(sample, i, j, k, to_opmath(gradient));
        if (!samples_one || !sample.inside(i, j, k)) continue;
        int32_t row = sample.y.index[j] * width + sample.z.index[k] * frame;
        slots[tap] = slot_of(places, row + sample.x.index[i]);
        totals.observe(slots[tap], addends[tap]);
      }
    });
    __syncthreads();
#pragma unroll
    for (int tap = 0; tap < all; ++tap) {
      if (slots[tap] >= 0) totals.add(slots[tap], addends[tap]);
    }
    __syncthreads();
#pragma unroll 1
    for (int32_t i = threadIdx.x; i < SLOTS; i += FEW) {
      if (places[i] != 0) channel[places[i] - 1] = totals.finish_from_zero(i);
    }
    __syncthreads();
  }
}
