// Negative log likelihood over images, reduced in two launches: a fixed number of threads sums the
// pixels, then one block sums those sums. Which thread takes a pixel depends on the sizes only.
#include "block_reduce.cuh"
#include "compensated_sum.cuh"
#include "dtype.cuh"
#include "extents.cuh"
#include "index.cuh"

static constexpr int THREADS = 256;
// Pixels whose loads do not wait for one another.
static constexpr int BATCH = 4;

// The losses and the weights of some pixels. In double, which holds the product of two floats
// exactly, as small as it may be; for double itself, what rounding takes from a sum is kept.
struct Sums {
  compensated_sum<double> loss;
  compensated_sum<double> weight;
};

template <typename scalar_t>
static __device__ __forceinline__ void add(compensated_sum<double>& sum, double value) {
  if (is_same<scalar_t, double>::value) {
    sum.add(value);
  } else {
    sum.high = add_rn(sum.high, value);
  }
}

struct join_op {
  static __device__ __forceinline__ compensated_sum<double> join(compensated_sum<double> earlier,
                                                                 compensated_sum<double> later) {
    double total = add_rn(earlier.high, later.high);
    double lost = lost_in_sum(earlier.high, later.high, total);
    return {total, add_rn(add_rn(earlier.low, later.low), lost)};
  }
  __device__ __forceinline__ Sums operator()(Sums earlier, Sums later) const {
    return {join(earlier.loss, later.loss), join(earlier.weight, later.weight)};
  }
};

template <typename scalar_t>
static __device__ __forceinline__ double widened(scalar_t value) {
  return static_cast<double>(to_opmath(value));
}
template <typename scalar_t>
static __device__ __forceinline__ scalar_t rounded(double value) {
  return from_opmath<scalar_t>(static_cast<opmath_t<scalar_t>>(value));
}

// self is (batch, classes, height, width), target is (batch, height, width), both strided; weight
// is (classes) or null. partials[b] are the sums of block b.
template <typename scalar_t>
__global__ void __launch_bounds__(THREADS)
    nll_loss2d_sum(const scalar_t* __restrict__ self, const int64_t* __restrict__ target,
                   const scalar_t* __restrict__ weight, double* __restrict__ partials, int64_t n,
                   extents size, extents self_stride, extents target_stride, int64_t ignore_index) {
  int64_t classes = size.c, height = size.h, width = size.w;
  Sums sums = {};
  // A thread's pixels in ascending order, thread_count() apart.
  for (int64_t base = thread_index(); base < n; base += BATCH * thread_count()) {
    int64_t chosen[BATCH];
    int64_t offset[BATCH];
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      int64_t pixel = min_index(base + j * thread_count(), n - 1);
      int64_t row = quick_div(pixel, width);
      int64_t image = quick_div(row, height);
      int64_t w = pixel - row * width;
      int64_t h = row - image * height;
      offset[j] = image * self_stride.n + h * self_stride.h + w * self_stride.w;
      chosen[j] = target[image * target_stride.n + h * target_stride.h + w * target_stride.w];
    }
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      if (base + j * thread_count() >= n || chosen[j] == ignore_index) continue;
      DETMODE_ASSERT(chosen[j] >= 0 && chosen[j] < classes);
      double value = widened(self[offset[j] + chosen[j] * self_stride.c]);
      double class_weight = weight != nullptr ? widened(weight[chosen[j]]) : 1.0;
      add<scalar_t>(sums.loss, -mul_rn(value, class_weight));
      add<scalar_t>(sums.weight, class_weight);
    }
  }
  sums = block_reduce<THREADS>(sums, join_op(), Sums{});
  if (threadIdx.x == 0) {
    double* block_sums = partials + 4 * static_cast<int64_t>(blockIdx.x);
    block_sums[0] = sums.loss.high;
    block_sums[1] = sums.loss.low;
    block_sums[2] = sums.weight.high;
    block_sums[3] = sums.weight.low;
  }
}

// One block: the sum of the `blocks` partial sums, for a mean divided, and rounded.
template <typename scalar_t>
__global__ void __launch_bounds__(THREADS)
    nll_loss2d_finish(const double* __restrict__ partials, scalar_t* __restrict__ output,
                      scalar_t* __restrict__ total_weight, int64_t blocks, bool mean) {
  Sums sums = {};
  // A thread's blocks in ascending order, THREADS apart.
  for (int64_t b = threadIdx.x; b < blocks; b += THREADS) {
    const double* block_sums = partials + 4 * b;
    sums = join_op()(sums, Sums{{block_sums[0], block_sums[1]}, {block_sums[2], block_sums[3]}});
  }
  sums = block_reduce<THREADS>(sums, join_op(), Sums{});
  if (threadIdx.x == 0) {
    double loss = sums.loss.rounded();
    double weight = sums.weight.rounded();
    *output = rounded<scalar_t>(mean ? div_rn(loss, weight) : loss);
    *total_weight = rounded<scalar_t>(weight);
  }
}
