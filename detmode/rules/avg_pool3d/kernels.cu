// Backward of 3-D average pooling: one thread owns grad_input elements and gathers from the windows
// that cover them. No two threads write one element, so there are no atomics.
#include "compensated_sum.cuh"
#include "dtype.cuh"
#include "index_type.cuh"

// One axis of the pooling. Window `o` starts at o * stride - padding.
template <typename index_t>
struct Axis {
  index_t in;
  index_t out;
  index_t kernel;
  index_t stride;
  index_t padding;
  __device__ __forceinline__ Axis(int64_t in, int64_t out, int64_t kernel, int64_t stride,
                                  int64_t padding)
      : in(static_cast<index_t>(in)),
        out(static_cast<index_t>(out)),
        kernel(static_cast<index_t>(kernel)),
        stride(static_cast<index_t>(stride)),
        padding(static_cast<index_t>(padding)) {}
};

// Outputs [begin, end) of one axis.
template <typename index_t>
struct Range {
  index_t begin;
  index_t end;
};

// The outputs whose windows cover input `i`: o * stride - padding <= i < o * stride - padding +
// kernel. Empty where the stride is wider than the window.
template <typename index_t>
static __device__ __forceinline__ Range<index_t> covering(index_t i, const Axis<index_t>& axis) {
  index_t shifted = i + axis.padding;
  index_t begin = shifted < axis.kernel ? 0 : quotient(shifted - axis.kernel, axis.stride) + 1;
  index_t end = least(quotient(shifted, axis.stride) + 1, axis.out);
  return {begin, end};
}

// What window `o` counts on this axis: its positions in the input, or with `padded` those in the
// padding too. What reaches beyond the padding (ceil_mode) never counts.
template <typename index_t>
static __device__ __forceinline__ index_t window_size(index_t o, const Axis<index_t>& axis,
                                                      bool padded) {
  index_t start = o * axis.stride - axis.padding;
  index_t margin = padded ? axis.padding : 0;
  return least(start + axis.kernel, axis.in + margin) - most(start, -margin);
}

// Neighbouring threads own neighbouring positions, a thread `per_thread` planes. `divisor` is that
// of all windows, or 0 where they differ.
template <typename scalar_t, int per_thread, typename index_t>
__global__ void avg_pool3d_backward(const scalar_t* __restrict__ grad_output,
                                    scalar_t* __restrict__ grad_input, int64_t planes, int64_t t_in,
                                    int64_t h_in, int64_t w_in, int64_t t_out, int64_t h_out,
                                    int64_t w_out, int64_t t_kernel, int64_t h_kernel,
                                    int64_t w_kernel, int64_t t_stride, int64_t h_stride,
                                    int64_t w_stride, int64_t t_padding, int64_t h_padding,
                                    int64_t w_padding, bool count_include_pad, int64_t divisor) {
  using acc_t = opmath_t<scalar_t>;
  Axis<index_t> t_axis(t_in, t_out, t_kernel, t_stride, t_padding);
  Axis<index_t> h_axis(h_in, h_out, h_kernel, h_stride, h_padding);
  Axis<index_t> w_axis(w_in, w_out, w_kernel, w_stride, w_padding);
  index_t positions = t_axis.in * h_axis.in * w_axis.in;
  index_t windows = t_axis.out * h_axis.out * w_axis.out;
  int64_t n = ceil_div(planes, per_thread) * positions;
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    index_t group = quotient(static_cast<index_t>(i), positions);
    index_t position = static_cast<index_t>(i) - group * positions;
    int64_t plane = static_cast<int64_t>(group) * per_thread;
    int count = static_cast<int>(min_index(planes - plane, per_thread));
    const scalar_t* source = grad_output + plane * windows;
    index_t row = quotient(position, w_axis.in);
    index_t frame = quotient(row, h_axis.in);
    Range<index_t> ts = covering(frame, t_axis);
    Range<index_t> hs = covering(row - frame * h_axis.in, h_axis);
    Range<index_t> ws = covering(position - row * w_axis.in, w_axis);
    bool short_lines = ws.end - ws.begin <= 2;
    acc_t results[per_thread];
    // One divisor divides the sum, which is cheapest. Where that sum is not finite, a second round
    // divides each addend instead, lest it be an overflow.
    for (bool divide_each = divisor == 0;; divide_each = true) {
      compensated_sum<acc_t> sums[per_thread] = {};
      // Windows in row-major order: t, then h, then w. Undivided, a long line along w is first
      // summed by itself and rounded as it goes, which is cheaper.
      for (index_t ot = ts.begin; ot < ts.end; ++ot) {
        index_t size_t_axis = window_size(ot, t_axis, count_include_pad);
        for (index_t oh = hs.begin; oh < hs.end; ++oh) {
          index_t size_th = size_t_axis * window_size(oh, h_axis, count_include_pad);
          const scalar_t* line = source + (ot * h_axis.out + oh) * w_axis.out;
          acc_t line_sums[per_thread] = {};
          for (index_t ow = ws.begin; ow < ws.end; ++ow) {
            // All loads before the first addition, which waits for its own.
            acc_t values[per_thread];
#pragma unroll
            for (int j = 0; j < per_thread; ++j) {
              values[j] = j < count ? to_opmath(line[j * windows + ow]) : acc_t(0);
            }
            if (divide_each) {
              index_t size = size_th * window_size(ow, w_axis, count_include_pad);
              acc_t share_of = static_cast<acc_t>(divisor != 0 ? divisor : size);
              acc_t reciprocal = div_rn(static_cast<acc_t>(1), share_of);
#pragma unroll
              for (int j = 0; j < per_thread; ++j)
                sums[j].add_share(values[j], share_of, reciprocal);
            } else if (short_lines) {
#pragma unroll
              for (int j = 0; j < per_thread; ++j) sums[j].add(values[j]);
            } else {
#pragma unroll
              for (int j = 0; j < per_thread; ++j) line_sums[j] = add_rn(line_sums[j], values[j]);
            }
          }
          if (!divide_each && !short_lines) {
#pragma unroll
            for (int j = 0; j < per_thread; ++j) sums[j].add(line_sums[j]);
          }
        }
      }
      bool finite = true;
#pragma unroll
      for (int j = 0; j < per_thread; ++j) {
        finite = finite && is_finite(sums[j].high);
        results[j] =
            divide_each ? sums[j].rounded() : sums[j].divided_by(static_cast<acc_t>(divisor));
      }
      if (divide_each || finite) break;
    }
    scalar_t* target = grad_input + plane * positions + position;
#pragma unroll
    for (int j = 0; j < per_thread; ++j) {
      if (j < count) target[j * positions] = from_opmath<scalar_t>(results[j]);
    }
  }
}
