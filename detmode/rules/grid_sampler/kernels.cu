// Backward of grid sampling. grad_input: integers that any order adds to the same sum, in memory,
// or in a block's shared memory, with the same bits. grad_grid: one thread, or one block's column
// of threads, owns a sample and adds in a fixed order.
//
// `needed` is null, or counts[0] of tiles.cu: where that is 0, grad_input is filled already.
// A 2-d operator is a 3-d one with depths of 1. Tensors are strided, except for the results and
// what belongs to them, which are contiguous.
#include "compensated_sum.cuh"
#include "few_taps.cuh"
#include "sample.cuh"
#include "sum_to_zeros.cuh"

// A thread serves one of `groups` groups of `per_thread` channels of one sample.
// It waits for keys more than it computes: more warps are better than more registers.
template <typename scalar_t, int dims, int taps>
__global__ void __launch_bounds__(256, sizeof(scalar_t) == 8 ? 2 : 4)
    grid_sampler_scatter(const scalar_t* __restrict__ grad_output,
                         const scalar_t* __restrict__ grid, int32_t* keys, int64_t* sums,
                         int64_t groups, int64_t per_thread, extents input_size,
                         extents output_size, extents grad_stride, extents grid_stride,
                         int64_t padding, bool align_corners, int64_t headroom,
                         const int32_t* needed) {
  if (needed != nullptr && *needed == 0) return;
  Volume in = along(input_size), out = along(output_size);
  Samples of(output_size, grad_stride, grid_stride);
  Volume in_stride = {{1, in.along[0], in.along[0] * in.along[1]}};
  accumulator<scalar_t> totals(keys, sums, headroom);
  int64_t n = input_size.n, channels = input_size.c;
  int64_t samples = out.elements(), threads = n * groups * samples;
  for (int64_t thread = thread_index(); thread < threads; thread += thread_count()) {
    int64_t slice = quick_div(thread, samples), image = quick_div(slice, groups);
    int64_t begin = (slice - image * groups) * per_thread;
    int64_t end = min_index(begin + per_thread, channels);
    int64_t s = thread - slice * samples;
    const scalar_t* place = grid + image * grid_stride.n + of.in_grid(s);
    Sample<scalar_t, dims, taps> sample(place, grid_stride.c, in, padding, align_corners);
    const scalar_t* gradients = grad_output + image * grad_stride.n + of.in_grad(s);
    // The lanes of a warp go through as many channels if they are of one slice.
    bool together = taps == 2 && thread < threads / WARP * WARP;
    if (together) together = __all_sync(0xffffffffu, slice == __shfl_sync(0xffffffffu, slice, 0));
    for (int64_t c = begin; c < end; ++c) {
      auto gradient = to_opmath(gradients[c * grad_stride.c]);
      int64_t plane = (image * channels + c) * in.elements();
      sample.each_row([&](int j, int k) {
        opmath_t<scalar_t> addends[taps];
        int64_t destinations[taps];
#pragma unroll
        for (int i = 0; i < taps; ++i) {
          bool inside = sample.inside(i, j, k);
          destinations[i] = inside ? plane + sample.pixel(i, j, k, in_stride) : -1;
          addends[i] = weighted(sample, i, j, k, gradient);
        }
        if constexpr (taps == 2) {
          totals.observe_or_add_pair(destinations, addends, together);
        } else {
#pragma unroll
          for (int i = 0; i < taps; ++i) {
            if (destinations[i] >= 0) totals.observe_or_add(destinations[i], addends[i]);
          }
        }
      });
    }
  }
}

constexpr int MOST_THREADS = 1024;

// A block owns a strip of a channel: `strip` of its elements, whose keys and sums are in the
// block's shared memory. It looks at all samples of the channel twice.
template <typename scalar_t, int dims, int taps>
__global__ void __launch_bounds__(taps < 4 ? MOST_THREADS : MOST_THREADS / 2)
    grid_sampler_strips(const scalar_t* __restrict__ grad_output, const scalar_t* __restrict__ grid,
                        scalar_t* __restrict__ result, int64_t strip, int64_t strips,
                        extents input_size, extents output_size, extents grad_stride,
                        extents grid_stride, int64_t padding, bool align_corners, int64_t headroom,
                        const int32_t* needed) {
  if (needed != nullptr && *needed == 0) return;
  auto totals = accumulator<scalar_t, in_block>::in_shared(strip, headroom);
  Volume in = along(input_size);
  Samples of(output_size, grad_stride, grid_stride);
  // A channel of few strips has few elements.
  int32_t width = static_cast<int32_t>(input_size.w);
  int32_t frame = width * static_cast<int32_t>(input_size.h);
  int64_t elements = in.elements(), samples = along(output_size).elements();
  int64_t channels = input_size.c, parts = input_size.n * channels * strips;
  for (int64_t part = blockIdx.x; part < parts; part += gridDim.x) {
    int64_t plane = quick_div(part, strips), image = quick_div(plane, channels);
    int64_t c = plane - image * channels;
    int32_t first = static_cast<int32_t>((part - plane * strips) * strip);
    int32_t owned = static_cast<int32_t>(min_index(strip, elements - first));
    const scalar_t* places = grid + image * grid_stride.n;
    const scalar_t* gradients = grad_output + image * grad_stride.n + c * grad_stride.c;
    if (threadIdx.x < samples) {
      prefetch(places + of.in_grid(threadIdx.x));
      prefetch(gradients + of.in_grad(threadIdx.x));
    }
#pragma unroll 4
    for (int32_t i = threadIdx.x; i < owned; i += blockDim.x) totals.clear(i);
    __syncthreads();
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t s = threadIdx.x; s < samples; s += blockDim.x) {
        const scalar_t* place = places + of.in_grid(s);
        if (strips > 1) {
          // Most samples miss the strip along the slowest axis, which is the cheapest to see.
          constexpr int slow = dims - 1;
          int32_t step = dims == 3 ? frame : width;
          Taps<opmath_t<scalar_t>, taps> axis;
          find_taps(to_opmath(place[slow * grid_stride.c]),
                    Axis{in.along[slow], padding, align_corners}, axis);
          bool meets = false;
          for (int i = 0; i < taps; ++i) {
            int32_t pixel = axis.index[i] * step;
            meets |= axis.index[i] >= 0 && pixel < first + owned && pixel + step > first;
          }
          if (!meets) continue;
        }
        Sample<scalar_t, dims, taps> sample(place, grid_stride.c, in, padding, align_corners);
        auto gradient = to_opmath(gradients[of.in_grad(s)]);
        sample.each_row([&](int j, int k) {
          if (sample.y.index[j] < 0 || sample.z.index[k] < 0) return;
          int32_t row = sample.y.index[j] * width + sample.z.index[k] * frame - first;
#pragma unroll
          for (int i = 0; i < taps; ++i) {
            int32_t in_strip = row + sample.x.index[i];
            if (sample.x.index[i] < 0 || in_strip < 0 || in_strip >= owned) continue;
            auto addend = weighted(sample, i, j, k, gradient);
            if (pass == 0) {
              totals.observe(in_strip, addend);
            } else {
              totals.add(in_strip, addend);
            }
          }
        });
      }
      __syncthreads();
    }
    scalar_t* strip_of_result = result + plane * elements + first;
#pragma unroll 2
    for (int32_t i = threadIdx.x; i < owned; i += blockDim.x) {
      // In a channel that few samples meet, most elements are 0.
      strip_of_result[i] = totals.any(i) ? totals.finish_from_zero(i) : from_opmath<scalar_t>(0);
    }
    __syncthreads();
  }
}

constexpr int THREADS = 256;

// Blocks of THREADS threads: threadIdx.x is a sample, threadIdx.y one of blockDim.y runs of
// `run` channels. Order: a channel's taps, z, then y, then x; channels ascending; runs ascending.
// Outside the input linear has no tap; cubic, as in ATen, reads 0 there.
template <typename scalar_t, int dims, int taps>
__global__ void grid_sampler_grad_grid(const scalar_t* __restrict__ grad_output,
                                       const scalar_t* __restrict__ input,
                                       const scalar_t* __restrict__ grid,
                                       scalar_t* __restrict__ grad_grid, int64_t run,
                                       extents input_size, extents output_size, extents grad_stride,
                                       extents input_stride, extents grid_stride, int64_t padding,
                                       bool align_corners) {
  using T = opmath_t<scalar_t>;
  __shared__ compensated_sum<T> runs[dims][THREADS];
  Volume in = along(input_size), out = along(output_size), in_stride = along(input_stride);
  Samples of(output_size, grad_stride, grid_stride);
  int64_t samples = out.elements(), all = input_size.n * samples, channels = input_size.c;
  int64_t first = threadIdx.y * run;
  int slot = threadIdx.y * blockDim.x + threadIdx.x;
  int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * blockDim.x; base < all; base += step) {
    // Threads past the end repeat the last sample, so that all meet the barriers.
    int64_t owned = base + threadIdx.x, s = min_index(owned, all - 1);
    int64_t image = quick_div(s, samples), of_image = s - image * samples;
    const scalar_t* place = grid + image * grid_stride.n + of.in_grid(of_image);
    Sample<scalar_t, dims, taps> sample(place, grid_stride.c, in, padding, align_corners);
    const scalar_t* gradients = grad_output + image * grad_stride.n + of.in_grad(of_image);
    const scalar_t* plane = input + image * input_stride.n;
    compensated_sum<T> sums[dims] = {};
    for (int64_t c = first; c < min_index(first + run, channels); ++c) {
      T gradient = to_opmath(gradients[c * grad_stride.c]);
      T parts[3] = {};
      sample.each(in_stride, [&](int i, int j, int k, bool inside, int64_t pixel) {
        if (!inside && taps < 4) return;
        T value = inside ? to_opmath(plane[c * input_stride.c + pixel]) : T(0);
        T depth = dims == 3 ? sample.z.weight[k] : T(1);
        T by[3] = {mul_rn(mul_rn(sample.x.slope[i], sample.y.weight[j]), depth),
                   mul_rn(mul_rn(sample.x.weight[i], sample.y.slope[j]), depth), T(0)};
        if (dims == 3) {
          by[2] = mul_rn(mul_rn(sample.x.weight[i], sample.y.weight[j]), sample.z.slope[k]);
        }
#pragma unroll
        for (int axis = 0; axis < dims; ++axis) {
          parts[axis] = add_rn(parts[axis], mul_rn(mul_rn(value, by[axis]), gradient));
        }
      });
#pragma unroll
      for (int axis = 0; axis < dims; ++axis) sums[axis].add(parts[axis]);
    }
    if (blockDim.y > 1) {
      for (int axis = 0; axis < dims; ++axis) runs[axis][slot] = sums[axis];
      __syncthreads();
      for (int y = 1; threadIdx.y == 0 && y < blockDim.y; ++y) {
        for (int axis = 0; axis < dims; ++axis) {
          sums[axis].add(runs[axis][y * blockDim.x + threadIdx.x]);
        }
      }
      __syncthreads();
    }
    if (threadIdx.y != 0 || owned >= all) continue;
    T scales[3] = {sample.x.scale, sample.y.scale, dims == 3 ? sample.z.scale : T(0)};
    for (int axis = 0; axis < dims; ++axis) {
      T gradient = mul_rn(scales[axis], sums[axis].rounded());
      grad_grid[s * dims + axis] = from_opmath<scalar_t>(gradient);
    }
  }
}
