// Backward of deformable convolution. A tap (c, k, b, p) is the kernel's element k in channel c,
// for the output pixel p of image b: it reads the input between four pixels, at a place that an
// offset moves. Columns are tensors [channels, kernel, images, outputs] with an element a tap.
//
// Sums over taps that meet at one pixel are integers, added in any order; sums over the channels
// that share an offset belong to one thread.
#include "compensated_sum.cuh"
#include "sum_to_zeros.cuh"

// One axis: output o's tap k lies at o * stride - padding + k * dilation, before its offset.
struct Axis {
  int64_t size, kernel, out;
  int64_t stride, padding, dilation;
};

// The place of a tap in its channel's plane.
template <typename T>
struct Place {
  T y, x;
};

// Element k of the kernel at output pixel p. `before` counts [images, offset_groups, kernel]
// row-major, and mask has the tap at before * outputs + p.
struct Tap {
  int64_t before, k, p;
};

// offset is [images, offset_groups, kernel, 2, outputs].
template <typename scalar_t>
static __device__ __forceinline__ Place<opmath_t<scalar_t>> place_of(const scalar_t* offset,
                                                                     const Tap& tap,
                                                                     const Axis& rows,
                                                                     const Axis& columns) {
  using T = opmath_t<scalar_t>;
  int64_t outputs = rows.out * columns.out, k = tap.k, p = tap.p;
  int64_t out_row = quick_div(p, columns.out), row = quick_div(k, columns.kernel);
  int64_t y = out_row * rows.stride - rows.padding + row * rows.dilation;
  int64_t x = (p - out_row * columns.out) * columns.stride - columns.padding +
              (k - row * columns.kernel) * columns.dilation;
  const scalar_t* moved = offset + 2 * tap.before * outputs + p;
  return {add_rn(static_cast<T>(y), to_opmath(moved[0])),
          add_rn(static_cast<T>(x), to_opmath(moved[outputs]))};
}

// The pixel at or before a place, and how far behind it the place is. Where both neighbours are
// outside, `low` is -2.
template <typename T>
struct Between {
  int64_t low;
  T part;
};
template <typename T>
static __device__ __forceinline__ Between<T> between(T at, int64_t size) {
  T low = floor(at);
  bool near = at >= -1 && at < static_cast<T>(size);
  return {near ? static_cast<int64_t>(low) : -2, sub_rn(at, low)};
}

// The four pixels around a place; what is outside is zero.
template <typename T>
struct Corners {
  T low_low, low_high, high_low, high_high;
};
template <typename scalar_t, typename T>
static __device__ __forceinline__ Corners<T> corners_of(const scalar_t* plane, Between<T> y,
                                                        Between<T> x, int64_t height,
                                                        int64_t width) {
  auto pixel = [&](int64_t row, int64_t column) {
    bool inside = row >= 0 && row < height && column >= 0 && column < width;
    return inside ? to_opmath(plane[row * width + column]) : static_cast<T>(0);
  };
  return {pixel(y.low, x.low), pixel(y.low, x.low + 1), pixel(y.low + 1, x.low),
          pixel(y.low + 1, x.low + 1)};
}

// The input at a place: zero where it is a pixel or more outside.
template <typename T>
static __device__ __forceinline__ T interpolated(const Corners<T>& v, Place<T> at, Between<T> y,
                                                 Between<T> x, int64_t height, int64_t width) {
  if (at.y <= -1 || at.y >= static_cast<T>(height) || at.x <= -1 || at.x >= static_cast<T>(width)) {
    return 0;
  }
  T y_rest = sub_rn(static_cast<T>(1), y.part), x_rest = sub_rn(static_cast<T>(1), x.part);
  T sum = mul_rn(mul_rn(y_rest, x_rest), v.low_low);
  sum = add_rn(sum, mul_rn(mul_rn(y_rest, x.part), v.low_high));
  sum = add_rn(sum, mul_rn(mul_rn(y.part, x_rest), v.high_low));
  return add_rn(sum, mul_rn(mul_rn(y.part, x.part), v.high_high));
}

struct ImageCounts {
  int64_t images, channels, offset_groups;
};

// What the columns of one launch lie over.
struct Taps {
  Axis rows, columns;
  ImageCounts counts;
  // The plane of the input that element i of the columns reads, and its tap.
  __device__ __forceinline__ Tap tap_of(int64_t i, int64_t& plane) const {
    int64_t images = counts.images, channels = counts.channels;
    int64_t taps = rows.kernel * columns.kernel, outputs = rows.out * columns.out;
    int64_t before = quick_div(i, outputs), p = i - before * outputs;
    int64_t c_and_k = quick_div(before, images), image = before - c_and_k * images;
    int64_t c = quick_div(c_and_k, taps), k = c_and_k - c * taps;
    int64_t group = quick_div(c, channels / counts.offset_groups);
    plane = image * channels + c;
    return {(image * counts.offset_groups + group) * taps + k, k, p};
  }
  __device__ __forceinline__ int64_t in_mask(const Tap& tap) const {
    return tap.before * rows.out * columns.out + tap.p;
  }
  __device__ __forceinline__ int64_t count() const {
    return counts.channels * rows.kernel * columns.kernel * counts.images * rows.out * columns.out;
  }
};

// sampled = mask * the input at each tap. mask is null where there is none.
template <typename scalar_t>
__global__ void deform_sample(const scalar_t* __restrict__ input,
                              const scalar_t* __restrict__ offset,
                              const scalar_t* __restrict__ mask, scalar_t* __restrict__ sampled,
                              Axis rows, Axis columns, ImageCounts counts) {
  using T = opmath_t<scalar_t>;
  Taps taps = {rows, columns, counts};
  int64_t height = rows.size, width = columns.size;
  for (int64_t i = thread_index(); i < taps.count(); i += thread_count()) {
    int64_t plane;
    Tap tap = taps.tap_of(i, plane);
    Place<T> at = place_of(offset, tap, taps.rows, taps.columns);
    Between<T> y = between(at.y, height), x = between(at.x, width);
    Corners<T> v = corners_of(input + plane * height * width, y, x, height, width);
    T value = interpolated(v, at, y, x, height, width);
    sampled[i] = from_opmath<scalar_t>(
        mask != nullptr ? mul_rn(to_opmath(mask[taps.in_mask(tap)]), value) : value);
  }
}

// What the taps add to the gradient of the input.
template <typename scalar_t>
__global__ void deform_scatter(const scalar_t* __restrict__ grad_columns,
                               const scalar_t* __restrict__ offset,
                               const scalar_t* __restrict__ mask, int32_t* keys, int64_t* sums,
                               int64_t headroom, Axis rows, Axis columns, ImageCounts counts) {
  accumulator<scalar_t> totals(keys, sums, headroom);
  using T = opmath_t<scalar_t>;
  Taps taps = {rows, columns, counts};
  int64_t height = rows.size, width = columns.size;
  for (int64_t i = thread_index(); i < taps.count(); i += thread_count()) {
    int64_t plane;
    Tap tap = taps.tap_of(i, plane);
    Place<T> at = place_of(offset, tap, rows, columns);
    Between<T> y = between(at.y, height), x = between(at.x, width);
    T factor = mask != nullptr ? to_opmath(mask[taps.in_mask(tap)]) : static_cast<T>(1);
    // The pixels less than 1 away from the place.
    for (int64_t row = y.low; row <= y.low + 1; ++row) {
      for (int64_t column = x.low; column <= x.low + 1; ++column) {
        if (row < 0 || row >= height || column < 0 || column >= width) continue;
        T y_far = fabs(sub_rn(at.y, static_cast<T>(row)));
        T x_far = fabs(sub_rn(at.x, static_cast<T>(column)));
        if (!(y_far < 1 && x_far < 1)) continue;
        T weight = mul_rn(sub_rn(static_cast<T>(1), y_far), sub_rn(static_cast<T>(1), x_far));
        T addend = mul_rn(mul_rn(factor, weight), to_opmath(grad_columns[i]));
        totals.observe_or_add((plane * height + row) * width + column, addend);
      }
    }
  }
}

// grad_offset and grad_mask: a thread owns one tap of an offset group, all of whose channels read
// at one place. The order of additions: channels ascending.
template <typename scalar_t>
__global__ void deform_move(const scalar_t* __restrict__ grad_columns,
                            const scalar_t* __restrict__ input, const scalar_t* __restrict__ offset,
                            const scalar_t* __restrict__ mask, scalar_t* __restrict__ grad_offset,
                            scalar_t* __restrict__ grad_mask, Axis rows, Axis columns,
                            ImageCounts counts) {
  using T = opmath_t<scalar_t>;
  int64_t images = counts.images, channels = counts.channels, offset_groups = counts.offset_groups;
  int64_t height = rows.size, width = columns.size;
  int64_t kernel = rows.kernel * columns.kernel, outputs = rows.out * columns.out;
  int64_t per_group = offset_groups > 0 ? channels / offset_groups : 0;
  int64_t n = images * offset_groups * kernel * outputs;
  for (int64_t tap = thread_index(); tap < n; tap += thread_count()) {
    int64_t before = quick_div(tap, outputs), p = tap - before * outputs;
    int64_t image_and_group = quick_div(before, kernel), k = before - image_and_group * kernel;
    int64_t image = quick_div(image_and_group, offset_groups);
    Place<T> at = place_of(offset, Tap{before, k, p}, rows, columns);
    Between<T> y = between(at.y, height), x = between(at.x, width);
    T y_rest = sub_rn(static_cast<T>(1), y.part), x_rest = sub_rn(static_cast<T>(1), x.part);
    T factor = mask != nullptr ? to_opmath(mask[tap]) : static_cast<T>(1);
    compensated_sum<T> along_y = {}, along_x = {}, along_mask = {};
    int64_t first = (image_and_group - image * offset_groups) * per_group;
    for (int64_t c = first; c < first + per_group; ++c) {
      const scalar_t* plane = input + (image * channels + c) * height * width;
      Corners<T> v = corners_of(plane, y, x, height, width);
      T grad = to_opmath(grad_columns[((c * kernel + k) * images + image) * outputs + p]);
      T slope_y = add_rn(mul_rn(x.part, sub_rn(v.high_high, v.low_high)),
                         mul_rn(x_rest, sub_rn(v.high_low, v.low_low)));
      T slope_x = add_rn(mul_rn(y.part, sub_rn(v.high_high, v.high_low)),
                         mul_rn(y_rest, sub_rn(v.low_high, v.low_low)));
      along_y.add(mul_rn(mul_rn(factor, slope_y), grad));
      along_x.add(mul_rn(mul_rn(factor, slope_x), grad));
      if (mask != nullptr) {
        along_mask.add(mul_rn(grad, interpolated(v, at, y, x, height, width)));
      }
    }
    int64_t place = 2 * before * outputs + p;
    grad_offset[place] = from_opmath<scalar_t>(along_y.rounded());
    grad_offset[place + outputs] = from_opmath<scalar_t>(along_x.rounded());
    if (mask != nullptr) grad_mask[tap] = from_opmath<scalar_t>(along_mask.rounded());
  }
}
