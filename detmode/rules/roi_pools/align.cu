// Backward of roi_align and ps_roi_align: a block owns a tile of grad_input, a thread one pixel of
// it in some channels, and gathers from the bins whose samples reach the pixel. No atomics.
//
// A sample of a bin lies at (y, x) and shares its gradient between the pixels around it, by
// bilinear weights. The samples form a grid, so the weight of a bin at a pixel is the product of a
// sum over the grid's rows and one over its columns. Samples are placed as in torchvision, with
// each operation rounded once.
#include "regions.cuh"

// One axis of a region: bin p covers [start + p * bin, start + (p + 1) * bin], in pixels, with
// `grid` samples.
template <typename T>
struct Axis {
  T start;
  T bin;
  int64_t grid;
};
template <typename T>
struct AlignedRegion {
  Axis<T> rows;
  Axis<T> columns;
};

template <typename T>
static __device__ __forceinline__ Axis<T> axis_of(T begin, T end, T scale, int64_t pooled,
                                                  int64_t sampling_ratio, bool aligned) {
  T offset = aligned ? static_cast<T>(0.5) : static_cast<T>(0);
  T start = sub_rn(mul_rn(begin, scale), offset);
  T size = sub_rn(sub_rn(mul_rn(end, scale), offset), start);
  if (!aligned && !(size >= 1)) size = 1;
  T bin = div_rn(size, static_cast<T>(pooled));
  constexpr int64_t most = (int64_t(1) << 31) - 1;
  int64_t grid =
      bin > 0 ? (bin < static_cast<T>(most) ? static_cast<int64_t>(ceil(bin)) : most) : 0;
  return {start, bin, sampling_ratio > 0 ? sampling_ratio : grid};
}

template <typename T>
static __device__ __forceinline__ T bin_start(const Axis<T>& axis, int64_t p) {
  return add_rn(axis.start, mul_rn(static_cast<T>(p), axis.bin));
}

// Whether bins [p, p_end) may have samples that reach one of the pixels [first, last]. A sample
// reaches pixels less than 1 away, or 1 away at the border; the rest is family for roundings. NaN
// reaches nothing.
template <typename T>
static __device__ __forceinline__ bool may_reach(const Axis<T>& axis, int64_t p, int64_t p_end,
                                                 int64_t first, int64_t last) {
  T start = bin_start(axis, p), end = bin_start(axis, p_end);
  T low = start < end ? start : end, high = start < end ? end : start;
  return axis.grid > 0 && high >= static_cast<T>(first - 2) && low <= static_cast<T>(last + 2);
}

// What the samples of one bin give to one pixel, along one axis.
template <typename T>
struct Weight {
  T sum;
  bool reaches;
  bool has_zero;  // a sample's weight was zero: Inf times it is NaN
};

// The order of additions: the samples of the bin, first to last.
template <typename T>
static __device__ __forceinline__ Weight<T> weight_at(const Axis<T>& axis, int64_t p, int64_t pixel,
                                                      int64_t size) {
  Weight<T> weight = {static_cast<T>(0), false, false};
  if (!may_reach(axis, p, p + 1, pixel, pixel)) return weight;
  T start = bin_start(axis, p), grid = static_cast<T>(axis.grid);
  int64_t i = 0;
  if (axis.grid > 8 && axis.bin > 0) {
    // Samples ascend: skip those before the pixel's reach.
    T before = div_rn(mul_rn(sub_rn(static_cast<T>(pixel - 2), start), grid), axis.bin);
    i = before > 0 ? static_cast<int64_t>(before < grid ? before : grid) : 0;
  }
  for (; i < axis.grid; ++i) {
    T half_way = add_rn(static_cast<T>(i), static_cast<T>(0.5));
    T at = add_rn(start, div_rn(mul_rn(half_way, axis.bin), grid));
    if (axis.bin > 0 && at > static_cast<T>(pixel + 2)) break;
    if (!(at >= -1 && at <= static_cast<T>(size))) continue;
    if (at <= 0) at = 0;
    int64_t low = static_cast<int64_t>(at), high = low + 1;
    T fraction = sub_rn(at, static_cast<T>(low));
    if (low >= size - 1) {
      low = high = size - 1;
      fraction = 0;
    }
    if (low == pixel) {
      T part = sub_rn(static_cast<T>(1), fraction);
      weight = {add_rn(weight.sum, part), true, weight.has_zero || part == 0};
    }
    if (high == pixel) {
      weight = {add_rn(weight.sum, fraction), true, weight.has_zero || fraction == 0};
    }
  }
  return weight;
}

// grad is [regions, channels_out, pooled_height, pooled_width] with strides; grad_input is
// [images, channels, height, width]. A thread owns one pixel in `per_thread` channels. Position
// sensitive, a channel of grad_input belongs to one bin: channel (c_out * pooled_height + p) *
// pooled_width + q to bin (p, q) of channel c_out; otherwise all bins have all channels.
//
// The order of additions: regions, then bin rows, then bin columns, ascending.
template <typename scalar_t, int per_thread, bool position_sensitive>
__global__ void roi_align_backward(const scalar_t* __restrict__ grad,
                                   const scalar_t* __restrict__ rois,
                                   scalar_t* __restrict__ grad_input, extents bins, extents shape,
                                   extents grad_stride, double spatial_scale,
                                   int64_t sampling_ratio, bool aligned) {
  int64_t regions = bins.n, channels_out = bins.c;
  int64_t pooled_height = bins.h, pooled_width = bins.w;
  int64_t images = shape.n, channels = shape.c, height = shape.h, width = shape.w;
  using T = opmath_t<scalar_t>;
  static_assert(!position_sensitive || per_thread == 1, "each channel has another bin");
  int64_t groups = ceil_div(channels, per_thread);
  int64_t items = images * groups * tiles_of(height, width);
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    Tile tile = tile_of(item, groups, per_thread, height, width);
    int64_t row = tile.row + threadIdx.x / TILE_COLUMNS;
    int64_t column = tile.column + threadIdx.x % TILE_COLUMNS;
    bool owns = row < height && column < width;
    int64_t p_begin = 0, p_end = pooled_height, q_begin = 0, q_end = pooled_width;
    int64_t channel = tile.channel, own_channels = min_index(per_thread, channels - tile.channel);
    if (position_sensitive) {
      int64_t bins_before = quick_div(tile.channel, pooled_width);
      channel = quick_div(bins_before, pooled_height);
      p_begin = bins_before - channel * pooled_height;
      q_begin = tile.channel - bins_before * pooled_width;
      p_end = p_begin + 1;
      q_end = q_begin + 1;
    }
    compensated_sum<T> sums[per_thread] = {};
    for_each_region<AlignedRegion<T>>(
        channel < channels_out ? regions : 0,
        [&](int64_t n, AlignedRegion<T>& region) {
          const scalar_t* roi = rois + 5 * n;
          if (image_of(roi, images) != tile.image) return false;
          T scale = static_cast<T>(spatial_scale);
          region.columns = axis_of(to_opmath(roi[1]), to_opmath(roi[3]), scale, pooled_width,
                                   sampling_ratio, aligned);
          region.rows = axis_of(to_opmath(roi[2]), to_opmath(roi[4]), scale, pooled_height,
                                sampling_ratio, aligned);
          return may_reach(region.rows, p_begin, p_end, tile.row, tile.row + TILE_ROWS - 1) &&
                 may_reach(region.columns, q_begin, q_end, tile.column,
                           tile.column + TILE_COLUMNS - 1);
        },
        [&](int64_t n, const AlignedRegion<T>& region) {
          if (!owns || !may_reach(region.columns, q_begin, q_end, column, column)) return;
          T samples = static_cast<T>(region.rows.grid * region.columns.grid);
          const scalar_t* gradients = grad + n * grad_stride.n + channel * grad_stride.c;
          for (int64_t p = p_begin; p < p_end; ++p) {
            Weight<T> along_rows = weight_at(region.rows, p, row, height);
            if (!along_rows.reaches) continue;
            for (int64_t q = q_begin; q < q_end; ++q) {
              Weight<T> along_columns = weight_at(region.columns, q, column, width);
              if (!along_columns.reaches) continue;
              T weight = div_rn(mul_rn(along_rows.sum, along_columns.sum), samples);
              bool has_zero = along_rows.has_zero || along_columns.has_zero;
              const scalar_t* values = gradients + p * grad_stride.h + q * grad_stride.w;
#pragma unroll
              for (int k = 0; k < per_thread; ++k) {
                if (k >= own_channels) break;
                T value = to_opmath(values[k * grad_stride.c]);
                T factor = has_zero && !is_finite(value) ? static_cast<T>(0) : weight;
                sums[k].add(mul_rn(value, factor));
              }
            }
          }
        });
    if (!owns) continue;
    int64_t first = (tile.image * channels + tile.channel) * height;
#pragma unroll
    for (int k = 0; k < per_thread; ++k) {
      if (k >= own_channels) break;
      int64_t line = first + k * height + row;
      grad_input[line * width + column] = from_opmath<scalar_t>(sums[k].rounded());
    }
  }
}
