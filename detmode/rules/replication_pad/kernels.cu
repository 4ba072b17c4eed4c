// Backward of replication and of reflection padding: one thread owns a grad_input element and
// gathers the outputs that copied it. Where replication copied it often, the thread's warp gathers.
// No two threads write one element, so there are no atomics.
#include "block_reduce.cuh"
#include "compensated_sum.cuh"
#include "dtype.cuh"
#include "index.cuh"

// More copies than these are gathered by a warp.
static constexpr int64_t ALONE = 64;
static constexpr int LANES = 32;

// One axis. Output `o` lies at o - padding in the input; a negative padding crops.
struct Axis {
  int64_t in;
  int64_t out;
  int64_t padding;
};

// Candidates [begin, end) for the outputs that copied one input position.
struct Range {
  int64_t begin;
  int64_t end;
};

// Replication: input `i` was copied to a run of outputs, and each candidate is one of them. All
// outputs before the first input position copied that one, all after the last the last.
template <bool reflect>
static __device__ __forceinline__ Range candidates(int64_t i, const Axis& axis) {
  if (reflect) return {0, 3};
  int64_t begin = i == 0 ? 0 : max_index(i + axis.padding, 0);
  int64_t end = i == axis.in - 1 ? axis.out : min_index(i + axis.padding + 1, axis.out);
  return {begin, max_index(begin, end)};
}

// The output of candidate `k`, or -1 where it is none. Reflection: the image before the input, the
// position itself and the image behind the input, which ascend; the ends are their own images.
template <bool reflect>
static __device__ __forceinline__ int64_t output_of(int64_t k, int64_t i, const Axis& axis) {
  if (!reflect) return k;
  if ((k == 0 && i == 0) || (k == 2 && i == axis.in - 1)) return -1;
  int64_t o = axis.padding + (k == 0 ? -i : k == 1 ? i : 2 * (axis.in - 1) - i);
  return o < axis.out ? max_index(o, -1) : -1;
}

// The sum of one element; a complex one has two.
template <typename scalar_t>
struct Sum {
  compensated_sum<opmath_t<scalar_t>> total;
  __device__ __forceinline__ void add(scalar_t value) { total.add(to_opmath(value)); }
  __device__ __forceinline__ void add(const Sum& later) { join(total, later.total); }
  __device__ __forceinline__ scalar_t rounded() const {
    return from_opmath<scalar_t>(total.rounded());
  }
  // What rounding takes stays in `low`, as with single addends.
  template <typename acc_t>
  static __device__ __forceinline__ void join(compensated_sum<acc_t>& sum,
                                              const compensated_sum<acc_t>& later) {
    sum.add(later.high);
    sum.low = add_rn(sum.low, later.low);
  }
};
template <typename T>
struct Sum<complex<T>> {
  Sum<T> re;
  Sum<T> im;
  __device__ __forceinline__ void add(complex<T> value) {
    re.add(value.re);
    im.add(value.im);
  }
  __device__ __forceinline__ void add(const Sum& later) {
    re.add(later.re);
    im.add(later.im);
  }
  __device__ __forceinline__ complex<T> rounded() const {
    return complex<T>(re.rounded(), im.rounded());
  }
};

template <typename scalar_t>
struct Joined {
  __device__ __forceinline__ Sum<scalar_t> operator()(Sum<scalar_t> earlier,
                                                      Sum<scalar_t> later) const {
    earlier.add(later);
    return earlier;
  }
};

// An element of grad_input: its plane, its position on the axes and what may have copied it.
template <bool reflect>
struct Element {
  int64_t plane;
  int64_t positions[3];
  Range ranges[3];
  __device__ __forceinline__ Element(int64_t i, const Axis (&axes)[3]) {
    int64_t sizes[4] = {0, axes[0].in, axes[1].in, axes[2].in};
    int64_t coordinates[4];
    unravel(i, sizes, coordinates);
    plane = coordinates[0];
#pragma unroll
    for (int a = 0; a < 3; ++a) {
      positions[a] = coordinates[a + 1];
      ranges[a] = candidates<reflect>(positions[a], axes[a]);
    }
  }
  __device__ __forceinline__ int64_t length(int a) const { return ranges[a].end - ranges[a].begin; }
};

// Outputs in row-major order: d, then h, then w.
template <typename scalar_t, bool reflect>
static __device__ __forceinline__ scalar_t gather_alone(const scalar_t* __restrict__ plane,
                                                        const Element<reflect>& element,
                                                        const Axis (&axes)[3]) {
  Sum<scalar_t> sum = {};
  for (int64_t kd = element.ranges[0].begin; kd < element.ranges[0].end; ++kd) {
    int64_t d = output_of<reflect>(kd, element.positions[0], axes[0]);
    if (d < 0) continue;
    for (int64_t kh = element.ranges[1].begin; kh < element.ranges[1].end; ++kh) {
      int64_t h = output_of<reflect>(kh, element.positions[1], axes[1]);
      if (h < 0) continue;
      const scalar_t* line = plane + (d * axes[1].out + h) * axes[2].out;
      for (int64_t kw = element.ranges[2].begin; kw < element.ranges[2].end; ++kw) {
        int64_t w = output_of<reflect>(kw, element.positions[2], axes[2]);
        if (w >= 0) sum.add(line[w]);
      }
    }
  }
  return sum.rounded();
}

// Outputs in row-major order, numbered from 0: a lane adds every 32nd, from its own number on; then
// the lanes' sums are joined, neighbours first. Lane 0 has the result.
template <typename scalar_t>
static __device__ __forceinline__ scalar_t gather_together(const scalar_t* __restrict__ plane,
                                                           const Element<false>& element,
                                                           const Axis (&axes)[3], int lane) {
  int64_t height = element.length(1);
  int64_t width = element.length(2);
  int64_t count = element.length(0) * height * width;
  Sum<scalar_t> sum = {};
  for (int64_t k = lane; k < count; k += LANES) {
    int64_t row = quick_div(k, width);
    int64_t frame = quick_div(row, height);
    int64_t d = element.ranges[0].begin + frame;
    int64_t h = element.ranges[1].begin + row - frame * height;
    int64_t w = element.ranges[2].begin + k - row * width;
    sum.add(plane[(d * axes[1].out + h) * axes[2].out + w]);
  }
  return warp_reduce(sum, Joined<scalar_t>()).rounded();
}

// Neighbouring threads own neighbouring elements. A warp's lanes stay together: where one of them
// has many outputs to gather, all 32 gather them, one such element after the other.
template <typename scalar_t, bool reflect>
__global__ void pad_backward(const scalar_t* __restrict__ grad_output,
                             scalar_t* __restrict__ grad_input, int64_t n, int64_t d_in,
                             int64_t h_in, int64_t w_in, int64_t d_out, int64_t h_out,
                             int64_t w_out, int64_t d_padding, int64_t h_padding,
                             int64_t w_padding) {
  const Axis axes[3] = {
      {d_in, d_out, d_padding}, {h_in, h_out, h_padding}, {w_in, w_out, w_padding}};
  int64_t outputs = d_out * h_out * w_out;
  int lane = static_cast<int>(threadIdx.x) % LANES;
  for (int64_t first = thread_index() - lane; first < n; first += thread_count()) {
    bool owns = first + lane < n;
    bool many = false;
    if (owns) {
      Element<reflect> element(first + lane, axes);
      many = !reflect && element.length(0) * element.length(1) * element.length(2) > ALONE;
      if (!many) {
        grad_input[first + lane] =
            gather_alone<scalar_t, reflect>(grad_output + element.plane * outputs, element, axes);
      }
    }
    if constexpr (!reflect) {
      for (unsigned int left = __ballot_sync(0xffffffffu, many); left != 0; left &= left - 1) {
        int64_t i = first + __ffs(static_cast<int>(left)) - 1;
        Element<false> element(i, axes);
        scalar_t value =
            gather_together(grad_output + element.plane * outputs, element, axes, lane);
        if (lane == 0) grad_input[i] = value;
      }
    }
  }
}
