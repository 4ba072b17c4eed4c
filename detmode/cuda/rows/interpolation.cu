// Backward of linear and cubic interpolation: one thread owns one element of grad_input and gathers
// what the forward spread from it (interpolation_gather.cuh). `*_tables` first writes down, for
// each dimension, which output positions read which input positions with which weights
// (interpolation_table.cuh); the gathers know no interpolation. `*_small` does both.
#include "block_reduce.cuh"
#include "interpolation_gather.cuh"
#include "interpolation_small.cuh"
#include "interpolation_table.cuh"

// ATen's rules for the source position of an output position, with the fused multiply-add that its
// CUDA build makes of scale * (o + 0.5) - 0.5. A position past the input counts as its end.
template <typename opmath_t>
static __device__ __forceinline__ opmath_t source_position(const Resize<opmath_t>& resize,
                                                           int64_t o) {
  opmath_t position = resize.align_corners
                          ? mul_rn(resize.scale, static_cast<opmath_t>(o))
                          : fma_rn(resize.scale, center_of<opmath_t>(o), opmath_t(-0.5));
  opmath_t end = static_cast<opmath_t>(resize.in + 1);
  return position < end ? position : end;
}

struct Linear {
  template <typename opmath_t>
  static __device__ __forceinline__ opmath_t locate(const Resize<opmath_t>& resize, int64_t o,
                                                    int64_t& index) {
    opmath_t position = source_position(resize, o);
    if (position < opmath_t(0)) position = opmath_t(0);
    index = min_index(static_cast<int64_t>(position), resize.in - 1);
    opmath_t lambda = sub_rn(position, static_cast<opmath_t>(index));
    return lambda < opmath_t(1) ? lambda : opmath_t(1);
  }
  template <typename opmath_t>
  static __device__ void span(const Resize<opmath_t>& resize, int64_t o, int64_t& begin,
                              int64_t& end) {
    locate(resize, o, begin);
    end = min_index(begin + 1, resize.in - 1);
  }
  template <typename opmath_t>
  static __device__ int64_t weigh(const Resize<opmath_t>& resize, int64_t o, opmath_t* weights) {
    int64_t index;
    opmath_t lambda = locate(resize, o, index);
    weights[0] = sub_rn(opmath_t(1), lambda);
    weights[1] = lambda;
    return index;
  }
};

// Cubic convolution with A = -0.75, as ATen's without antialiasing.
struct Cubic {
  template <typename opmath_t>
  static __device__ __forceinline__ opmath_t locate(const Resize<opmath_t>& resize, int64_t o,
                                                    int64_t& index) {
    opmath_t position = source_position(resize, o);
    index = static_cast<int64_t>(position);
    if (static_cast<opmath_t>(index) > position) --index;
    return sub_rn(position, static_cast<opmath_t>(index));
  }
  template <typename opmath_t>
  static __device__ void span(const Resize<opmath_t>& resize, int64_t o, int64_t& begin,
                              int64_t& end) {
    int64_t index;
    locate(resize, o, index);
    begin = clamp_index(index - 1, 0, resize.in - 1);
    end = clamp_index(index + 2, 0, resize.in - 1);
  }
  // ((A + 2) x - (A + 3)) x x + 1, for |x| <= 1
  template <typename opmath_t>
  static __device__ __forceinline__ opmath_t near(opmath_t x) {
    opmath_t slope = fma_rn(opmath_t(1.25), x, opmath_t(-2.25));
    return fma_rn(mul_rn(slope, x), x, opmath_t(1));
  }
  // ((A x - 5 A) x + 8 A) x - 4 A, for 1 < |x| < 2
  template <typename opmath_t>
  static __device__ __forceinline__ opmath_t far(opmath_t x) {
    opmath_t slope = fma_rn(opmath_t(-0.75), x, opmath_t(3.75));
    return fma_rn(fma_rn(slope, x, opmath_t(-6)), x, opmath_t(3));
  }
  template <typename opmath_t>
  static __device__ int64_t weigh(const Resize<opmath_t>& resize, int64_t o, opmath_t* weights) {
    int64_t index;
    opmath_t t = locate(resize, o, index);
    opmath_t rest = sub_rn(opmath_t(1), t);
    weights[0] = far(add_rn(t, opmath_t(1)));
    weights[1] = near(t);
    weights[2] = near(rest);
    weights[3] = far(add_rn(rest, opmath_t(1)));
    return index - 1;
  }
};

// For channels_last tensors, and for the leading dimensions alone.
template <typename in_t, typename out_t, int dims, int width, bool packed>
__global__ void __launch_bounds__(256, dims == 3 ? 2 : 3)
    upsample_gather(const in_t* __restrict__ grad_output, const opmath_t<in_t>* __restrict__ tables,
                    out_t* __restrict__ grad_input, int64_t outer, int64_t inner,
                    resized_axes resized, bool clamps) {
  Axis<opmath_t<in_t>> axes[3];
  read_tables<opmath_t<in_t>>(tables, resized, axes);
  gather_elements<dims, width, packed>(grad_output, grad_input, outer, inner, clamps, axes);
}

// For contiguous tensors ([outer, ..., w]), with coalesced reads: a thread owns `rows` neighbouring
// rows of a column of grad_input, threadIdx.y counts such groups. Each group's threads first sum
// the leading dimensions for a strip of 2 * blockDim.x output columns into shared memory, then
// gather along the width from there. Shared memory: 2 * rows values a thread. The order is that of
// `gather`, wherever a strip ends.
template <typename in_t, typename out_t, int dims, int rows>
__global__ void __launch_bounds__(256, dims == 3 ? 2 : 3)
    upsample_gather_rows(const in_t* __restrict__ grad_output,
                         const opmath_t<in_t>* __restrict__ tables, out_t* __restrict__ grad_input,
                         int64_t outer, resized_axes resized, bool clamps) {
  constexpr int width = 2;
  constexpr int rows_at_once = dims == 1 ? rows : 1;
  Axis<opmath_t<in_t>> axes[3];
  read_tables<opmath_t<in_t>>(tables, resized, axes);
  // Rows are neighbours within a plane; with no leading dimension all are.
  int64_t height = dims > 1 ? resized.h_size : outer, groups = ceil_div(height, rows);
  int64_t n = dims > 1 ? outer * groups : groups, plane = resized.w_out;
  if constexpr (dims > 2) n *= resized.d_size;
#pragma unroll
  for (int a = 1; a < dims; ++a) plane *= axes[a].out;
  int32_t threads = static_cast<int32_t>(blockDim.x), x = static_cast<int32_t>(threadIdx.x);
  int32_t strip = width * threads, size = axes[0].in;
  opmath_t<in_t>* columns = dynamic_shared<opmath_t<in_t>>() + threadIdx.y * rows * strip;
  int32_t from = static_cast<int32_t>(blockIdx.x) * threads;
  bool owns = x < size - from;
  axes[0].at = owns ? from + x : size - 1;
  int32_t low = axes[0].low[axes[0].at], high = owns ? axes[0].high[axes[0].at] : -1;
  int32_t end = axes[0].high[threads < size - from ? from + threads - 1 : size - 1];
  int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.y;
  for (int64_t top = static_cast<int64_t>(blockIdx.y) * blockDim.y; top < n; top += step) {
    int64_t group = top + threadIdx.y, above = dims > 1 ? quick_div(group, groups) : 0;
    int64_t first = (group - above * groups) * rows, row = above * height + first;
    int count = group < n ? static_cast<int>(min_index(height - first, rows)) : 0;
    int64_t rest = dims > 1 ? above : row;
    if constexpr (dims > 2) take(axes[2], rest);
    bool together =
        dims > 1 && rows > 1 && count == rows && (!clamps || (first > 0 && first + rows < height));
    opmath_t<in_t> sums[rows] = {};
    int32_t begin = axes[0].low[from];
    while (begin <= end) {
      int32_t last = strip <= end - begin ? begin + strip - 1 : end;
      int32_t left = last - begin - x;
      if (left >= 0) {
        const in_t* source = grad_output + rest * plane + begin + x;
        // The second column is the last one again where there is none.
        int32_t next = least(threads, left);
        auto keep = [&](int r, const opmath_t<in_t>(&values)[width]) {
#pragma unroll
          for (int u = 0; u < width; ++u) columns[r * strip + u * threads + x] = values[u];
        };
        if (together) {
          if constexpr (dims > 1) {
            axes[1].at = static_cast<int32_t>(first);
            opmath_t<in_t> values[rows][width];
            gather_rows<dims - 1, rows>(source, resized.w_out, next, clamps, axes + 1, values);
#pragma unroll
            for (int r = 0; r < rows; ++r) keep(r, values[r]);
          }
        } else {
#pragma unroll rows_at_once
          for (int r = 0; r < rows; ++r) {
            opmath_t<in_t> values[width] = {};
            if constexpr (dims > 1) axes[1].at = static_cast<int32_t>(first) + r;
            if (r < count)
              gather_all<dims - 1, width>(source, resized.w_out, next, width, clamps, axes + 1,
                                          values);
            if constexpr (dims == 1) source += resized.w_out;
            keep(r, values);
          }
        }
      }
      __syncthreads();
      int32_t from_here = most(low, begin), until = count > 0 ? least(high, last) : -1;
      gather<1, rows>(columns + (from_here - begin), from_here, until, 1, strip, rows, clamps, axes,
                      sums);
      __syncthreads();
      if (last == end) break;
      begin = last + 1;
    }
    out_t* target = grad_input + row * resized.w_size + axes[0].at;
#pragma unroll
    for (int r = 0; r < rows; ++r, target += resized.w_size) {
      if (owns && r < count) *target = static_cast<out_t>(add_rn(sums[r], opmath_t<in_t>(0)));
    }
  }
}

// For a last dimension of which very many output positions read one: [outer, w_out], contiguous.
// `lanes` threads, a warp or a block, own an element of each of `rows` neighbouring rows. Order:
// a thread adds every `lanes`th output position, ascending; then neighbours add up in pairs.
template <typename in_t, typename out_t, int lanes, int rows>
__global__ void __launch_bounds__(256)
    upsample_gather_lanes(const in_t* __restrict__ grad_output,
                          const opmath_t<in_t>* __restrict__ tables, out_t* __restrict__ grad_input,
                          int64_t outer, resized_axes resized, bool clamps) {
  using sum_t = opmath_t<in_t>;
  constexpr int owners = 256 / lanes;
  Axis<sum_t> axes[3];
  read_tables<sum_t>(tables, resized, axes);
  Axis<sum_t>& axis = axes[0];
  int64_t n = ceil_div(outer, rows) * axis.in, step = static_cast<int64_t>(gridDim.x) * owners;
  int lane = static_cast<int>(threadIdx.x) % lanes, owner = static_cast<int>(threadIdx.x) / lanes;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * owners + owner; i < n; i += step) {
    int64_t row = i;
    take(axis, row);
    row *= rows;
    int count = static_cast<int>(min_index(outer - row, rows));
    const in_t* source = grad_output + row * axis.out;
    int64_t first = axis.low[axis.at] + lane, last = axis.high[axis.at], out = axis.out;
    bool ends = clamps && (axis.at == 0 || axis.at == axis.in - 1);
    sum_t sums[rows] = {}, values[rows];
    auto read = [&](int64_t o) {
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        values[r] = r < count ? to_opmath(source[r * out + o]) : sum_t(0);
      }
    };
    if (ends) {
      for (int64_t o = first; o <= last; o += lanes) {
        read(o);
        add_taps<rows>(axis, static_cast<int32_t>(o), clamps, values, sums);
      }
    } else {
#pragma unroll 4
      for (int64_t o = first; o <= last; o += lanes) {
        read(o);
        sum_t weight = *Weights<sum_t>(axis, static_cast<int32_t>(o)).next();
#pragma unroll
        for (int r = 0; r < rows; ++r) sums[r] = fma_rn(weight, values[r], sums[r]);
      }
    }
    auto add = [](sum_t earlier, sum_t later) { return add_rn(earlier, later); };
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if constexpr (lanes == 32) {
        sums[r] = warp_reduce(sums[r], add);
      } else {
        sums[r] = block_reduce<lanes>(sums[r], add, sum_t(0));
      }
      if (lane == 0 && r < count) {
        grad_input[(row + r) * axis.in + axis.at] = static_cast<out_t>(add_rn(sums[r], sum_t(0)));
      }
    }
  }
}
