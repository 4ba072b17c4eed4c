// Backward of roi_pool, which adds each gradient to the pixel that argmax names, as integers in any
// order, and of ps_roi_pool, which gathers: a block owns a tile of grad_input, a thread one pixel.
#include "regions.cuh"
#include "sum_to_zeros.cuh"

struct pooled_planes {
  int64_t images, channels, pixels, bins;
};

// The place in grad_input [images, channels, pixels] that the gradient of bin `i` of
// [regions, channels, bins] goes to; -1 where the bin was empty.
template <typename scalar_t>
static __device__ __forceinline__ int64_t destination_of(int64_t i, const scalar_t* rois,
                                                         const int32_t* argmax,
                                                         const pooled_planes& planes) {
  int64_t pixel = argmax[i];
  if (pixel == -1) return -1;
  DETMODE_ASSERT(pixel >= 0 && pixel < planes.pixels);
  int64_t plane = quick_div(i, planes.bins), n = quick_div(plane, planes.channels);
  int64_t first = image_of(rois + 5 * n, planes.images) * planes.channels;
  return (first + plane - n * planes.channels) * planes.pixels + pixel;
}

template <typename scalar_t>
__global__ void roi_pool_scatter(const scalar_t* __restrict__ grad,
                                 const scalar_t* __restrict__ rois,
                                 const int32_t* __restrict__ argmax, int32_t* keys, int64_t* sums,
                                 int64_t n, pooled_planes planes, int64_t headroom) {
  accumulator<scalar_t> totals(keys, sums, headroom);
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t destination = destination_of(i, rois, argmax, planes);
    if (destination < 0) continue;
    totals.observe_or_add(destination, to_opmath(grad[i]));
  }
}

// The pixels of one bin, and what each of them gets.
template <typename T>
struct PooledBin {
  int64_t row, row_end;
  int64_t column, column_end;
  T share;
};

// A whole number as an integer, as the GPU's own conversion to int32 gives it: NaN is 0, and what
// is too large the nearest there is.
template <typename T>
static __device__ __forceinline__ int64_t integer_of(T whole) {
  constexpr int64_t most = int64_t(1) << 31;
  if (is_nan(whole)) return 0;
  if (whole >= static_cast<T>(most)) return most - 1;
  return whole <= static_cast<T>(-most) ? -most : static_cast<int64_t>(whole);
}

// The pixels of bin p of one axis. Each operation is rounded to scalar_t, as in the forward: a
// pixel belongs to a bin or it does not.
template <typename scalar_t>
static __device__ __forceinline__ void pixels_of(scalar_t begin, scalar_t end, scalar_t scale,
                                                 int64_t p, int64_t pooled, int64_t size,
                                                 int64_t& first, int64_t& last) {
  using T = opmath_t<scalar_t>;
  auto rounded = [](T value) { return to_opmath(from_opmath<scalar_t>(value)); };
  T from = rounded(mul_rn(to_opmath(begin), to_opmath(scale)));
  T to = rounded(mul_rn(to_opmath(end), to_opmath(scale)));
  // Halves go away from zero; float64 is rounded to float first, as in torchvision's CUDA kernel.
  int64_t start = integer_of(roundf(static_cast<float>(from)));
  int64_t stop = integer_of(roundf(static_cast<float>(to)));
  T whole = rounded(static_cast<T>(max_index(stop - start, 1)));
  T bin = rounded(div_rn(whole, rounded(static_cast<T>(pooled))));
  T low = rounded(mul_rn(rounded(static_cast<T>(p)), bin));
  T high = rounded(mul_rn(rounded(static_cast<T>(p + 1)), bin));
  first = clamp_index(integer_of(floor(low)) + start, 0, size);
  last = clamp_index(integer_of(ceil(high)) + start, 0, size);
}

// grad is [regions, channels_out, pooled_height, pooled_width]. Channel (c_out * pooled_height + p)
// * pooled_width + q of grad_input belongs to bin (p, q) of channel c_out.
//
// The order of additions: regions ascending.
template <typename scalar_t>
__global__ void ps_roi_pool_backward(const scalar_t* __restrict__ grad,
                                     const scalar_t* __restrict__ rois,
                                     scalar_t* __restrict__ grad_input, extents bins, extents shape,
                                     double spatial_scale) {
  int64_t regions = bins.n, channels_out = bins.c;
  int64_t pooled_height = bins.h, pooled_width = bins.w;
  int64_t images = shape.n, channels = shape.c, height = shape.h, width = shape.w;
  using T = opmath_t<scalar_t>;
  int64_t items = images * channels * tiles_of(height, width);
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    Tile tile = tile_of(item, channels, 1, height, width);
    int64_t row = tile.row + threadIdx.x / TILE_COLUMNS;
    int64_t column = tile.column + threadIdx.x % TILE_COLUMNS;
    int64_t bins_before = quick_div(tile.channel, pooled_width);
    int64_t q = tile.channel - bins_before * pooled_width;
    int64_t channel_out = quick_div(bins_before, pooled_height);
    int64_t p = bins_before - channel_out * pooled_height;
    compensated_sum<T> sum = {};
    for_each_region<PooledBin<T>>(
        channel_out < channels_out ? regions : 0,
        [&](int64_t n, PooledBin<T>& bin) {
          const scalar_t* roi = rois + 5 * n;
          if (image_of(roi, images) != tile.image) return false;
          scalar_t scale = from_opmath<scalar_t>(static_cast<T>(spatial_scale));
          pixels_of(roi[1], roi[3], scale, q, pooled_width, width, bin.column, bin.column_end);
          pixels_of(roi[2], roi[4], scale, p, pooled_height, height, bin.row, bin.row_end);
          int64_t area = (bin.row_end - bin.row) * (bin.column_end - bin.column);
          if (bin.row >= bin.row_end || bin.column >= bin.column_end) return false;
          int64_t place = ((n * channels_out + channel_out) * pooled_height + p) * pooled_width + q;
          bin.share = div_rn(to_opmath(grad[place]), static_cast<T>(area));
          return bin.row < tile.row + TILE_ROWS && tile.row < bin.row_end &&
                 bin.column < tile.column + TILE_COLUMNS && tile.column < bin.column_end;
        },
        [&](int64_t, const PooledBin<T>& bin) {
          bool covers = bin.row <= row && row < bin.row_end && bin.column <= column &&
                        column < bin.column_end;
          if (covers) sum.add(bin.share);
        });
    if (row >= height || column >= width) continue;
    int64_t line = (tile.image * channels + tile.channel) * height + row;
    grad_input[line * width + column] = from_opmath<scalar_t>(sum.rounded());
  }
}

// The kernels that gather take it for granted that bin `i` of a region has channel `i`, which the
// forward's channel_mapping says.
__global__ void ps_check_mapping(const int32_t* __restrict__ channel_mapping, int64_t n,
                                 int64_t bins) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    DETMODE_ASSERT(channel_mapping[i] == i % bins);
  }
}
