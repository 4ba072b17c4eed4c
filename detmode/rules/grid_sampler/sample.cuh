// The samples of an output: where their coordinates and gradients lie, and their taps.
#pragma once

#include "extents.cuh"
#include "taps.cuh"

// Sizes and strides along w, h and d, in the order of a grid's coordinates.
struct Volume {
  int64_t along[3];
  __device__ __forceinline__ int64_t elements() const { return along[0] * along[1] * along[2]; }
  __device__ __forceinline__ int64_t dot(const Volume& stride) const {
    return along[0] * stride.along[0] + along[1] * stride.along[1] + along[2] * stride.along[2];
  }
};

static __device__ __forceinline__ Volume along(const extents& tensor) {
  return Volume{{tensor.w, tensor.h, tensor.d}};
}

// The coordinates of element i of a volume of this size.
static __device__ __forceinline__ Volume unravelled(int64_t i, const Volume& size) {
  int64_t row = quick_div(i, size.along[0]), frame = quick_div(row, size.along[1]);
  return Volume{{i - row * size.along[0], row - frame * size.along[1], frame}};
}

// How far an output's samples lie from its first one, in two tensors. Where they follow one another
// in both, the stride along w leads from each to the next.
struct Samples {
  extents size, grad_stride, grid_stride;
  bool flat;
  __device__ __forceinline__ Samples(const extents& size, const extents& grad_stride,
                                     const extents& grid_stride)
      : size(size),
        grad_stride(grad_stride),
        grid_stride(grid_stride),
        flat(follow(size, grad_stride) && follow(size, grid_stride)) {}
  static __device__ __forceinline__ bool follow(const extents& size, const extents& stride) {
    int64_t row = stride.w * size.w;
    return (size.h == 1 || stride.h == row) && (size.d == 1 || stride.d == row * size.h);
  }
  __device__ __forceinline__ int64_t in_grad(int64_t i) const { return offset(i, grad_stride); }
  __device__ __forceinline__ int64_t in_grid(int64_t i) const { return offset(i, grid_stride); }
  __device__ __forceinline__ int64_t offset(int64_t i, const extents& stride) const {
    return flat ? i * stride.w : unravelled(i, along(size)).dot(along(stride));
  }
};

// The taps of the sample whose coordinates begin at `grid`. A missing axis has one tap.
template <typename scalar_t, int dims, int taps>
struct Sample {
  using T = opmath_t<scalar_t>;
  static constexpr int depth = dims == 3 ? taps : 1;
  Taps<T, taps> x, y;
  Taps<T, depth> z;

  __device__ __forceinline__ Sample(const scalar_t* grid, int64_t hop, const Volume& size,
                                    int64_t padding, bool align_corners) {
    find_taps(to_opmath(grid[0]), Axis{size.along[0], padding, align_corners}, x);
    find_taps(to_opmath(grid[hop]), Axis{size.along[1], padding, align_corners}, y);
    if (dims == 3) {
      find_taps(to_opmath(grid[2 * hop]), Axis{size.along[2], padding, align_corners}, z);
    } else {
      z.index[0] = 0;
      z.weight[0] = T(1);
    }
  }

  // visit(i, j, k, inside, position): taps of x, y and z; `position` says which element it is.
  template <typename Visit>
  __device__ __forceinline__ void each(const Volume& stride, Visit visit) const {
    each_row([&](int j, int k) {
#pragma unroll
      for (int i = 0; i < taps; ++i) {
        visit(i, j, k, inside(i, j, k), pixel(i, j, k, stride));
      }
    });
  }

  __device__ __forceinline__ bool inside(int i, int j, int k) const {
    return x.index[i] >= 0 && y.index[j] >= 0 && z.index[k] >= 0;
  }
  __device__ __forceinline__ int64_t pixel(int i, int j, int k, const Volume& stride) const {
    return Volume{{x.index[i], y.index[j], z.index[k]}}.dot(stride);
  }

  // visit(j, k): taps of y and z.
  template <typename Visit>
  __device__ __forceinline__ void each_row(Visit visit) const {
    // The 16 and 64 taps of cubic are too many to unroll: four are.
#pragma unroll(depth < 4 ? depth : 1)
    for (int k = 0; k < depth; ++k) {
#pragma unroll(taps < 4 ? taps : 1)
      for (int j = 0; j < taps; ++j) visit(j, k);
    }
  }
};

// What a sample adds to `grad_input` at one of its taps.
template <typename scalar_t, int dims, int taps, typename T>
static __device__ __forceinline__ T weighted(const Sample<scalar_t, dims, taps>& sample, int i,
                                             int j, int k, T gradient) {
  T weight = mul_rn(sample.x.weight[i], sample.y.weight[j]);
  if (dims == 3) weight = mul_rn(weight, sample.z.weight[k]);
  return mul_rn(weight, gradient);
}
