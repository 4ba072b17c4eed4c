// Backward of 3-D average pooling: one thread owns grad_input elements and gathers from the windows
// that cover them. No two threads write one element, so there are no atomics.
#include "compensated_sum.cuh"
#include "dtype.cuh"
#include "index.cuh"

// One axis of the pooling. Window `o` starts at o * stride - padding.
struct Axis {
  int64_t in;
  int64_t out;
  int64_t kernel;
  int64_t stride;
  int64_t padding;
};

// Outputs [begin, end) of one axis.
struct Range {
  int64_t begin;
  int64_t end;
};

// The outputs whose windows cover input `i`: o * stride - padding <= i < o * stride - padding +
// kernel. Empty where the stride is wider than the window.
static __device__ __forceinline__ Range covering(int64_t i, const Axis& axis) {
  int64_t shifted = i + axis.padding;
  int64_t begin = shifted < axis.kernel ? 0 : quick_div(shifted - axis.kernel, axis.stride) + 1;
  int64_t end = min_index(quick_div(shifted, axis.stride) + 1, axis.out);
  return {begin, end};
}

// What window `o` counts on this axis: its positions in the input, or with `padded` those in the
// padding too. What reaches beyond the padding (ceil_mode) never counts.
static __device__ __forceinline__ int64_t window_size(int64_t o, const Axis& axis, bool padded) {
  int64_t start = o * axis.stride - axis.padding;
  int64_t margin = padded ? axis.padding : 0;
  return min_index(start + axis.kernel, axis.in + margin) - max_index(start, -margin);
}

// Neighbouring threads own neighbouring positions, a thread `per_thread` planes. `divisor` is that
// of all windows, or 0 where they differ.
template <typename scalar_t, int per_thread>
__global__ void avg_pool3d_backward(const scalar_t* __restrict__ grad_output,
                                    scalar_t* __restrict__ grad_input, int64_t planes, int64_t t_in,
                                    int64_t h_in, int64_t w_in, int64_t t_out, int64_t h_out,
                                    int64_t w_out, int64_t t_kernel, int64_t h_kernel,
                                    int64_t w_kernel, int64_t t_stride, int64_t h_stride,
                                    int64_t w_stride, int64_t t_padding, int64_t h_padding,
                                    int64_t w_padding, bool count_include_pad, int64_t divisor) {
  using acc_t = opmath_t<scalar_t>;
  Axis t_axis = {t_in, t_out, t_kernel, t_stride, t_padding};
  Axis h_axis = {h_in, h_out, h_kernel, h_stride, h_padding};
  Axis w_axis = {w_in, w_out, w_kernel, w_stride, w_padding};
  int64_t positions = t_in * h_in * w_in;
  int64_t windows = t_out * h_out * w_out;
  int64_t n = ceil_div(planes, per_thread) * positions;
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t group = quick_div(i, positions);
    int64_t position = i - group * positions;
    int64_t plane = group * per_thread;
    int64_t count = min_index(planes - plane, per_thread);
    int64_t row = quick_div(position, w_in);
    int64_t frame = quick_div(row, h_in);
    Range ts = covering(frame, t_axis);
    Range hs = covering(row - frame * h_in, h_axis);
    Range ws = covering(position - row * w_in, w_axis);
    bool short_lines = ws.end - ws.begin <= 2;
    acc_t results[per_thread];
    // One divisor divides the sum, which is cheapest. Where that sum is not finite, a second round
    // divides each addend instead, lest it be an overflow.
    for (bool divide_each = divisor == 0;; divide_each = true) {
      compensated_sum<acc_t> sums[per_thread] = {};
      // Windows in row-major order: t, then h, then w. Undivided, a long line along w is first
      // summed by itself and rounded as it goes, which is cheaper.
      for (int64_t ot = ts.begin; ot < ts.end; ++ot) {
        int64_t size_t_axis = window_size(ot, t_axis, count_include_pad);
        for (int64_t oh = hs.begin; oh < hs.end; ++oh) {
          int64_t size_th = size_t_axis * window_size(oh, h_axis, count_include_pad);
          const scalar_t* line = grad_output + plane * windows + (ot * h_out + oh) * w_out;
          acc_t line_sums[per_thread] = {};
          for (int64_t ow = ws.begin; ow < ws.end; ++ow) {
            acc_t share_of = 1;
            acc_t reciprocal = 1;
            if (divide_each) {
              int64_t size = size_th * window_size(ow, w_axis, count_include_pad);
              share_of = static_cast<acc_t>(divisor != 0 ? divisor : size);
              reciprocal = div_rn(static_cast<acc_t>(1), share_of);
            }
#pragma unroll
            for (int j = 0; j < per_thread; ++j) {
              if (j < count) {
                acc_t value = to_opmath(line[j * windows + ow]);
                if (divide_each) {
                  sums[j].add_share(value, share_of, reciprocal);
                } else if (short_lines) {
                  sums[j].add(value);
                } else {
                  line_sums[j] = add_rn(line_sums[j], value);
                }
              }
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
