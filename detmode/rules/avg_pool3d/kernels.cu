// Backward of 3-D average pooling: one thread owns grad_input elements and gathers from the windows
// that cover them. No two threads write one element, so there are no atomics.
#include "chosen_windows.cuh"
#include "compensated_sum.cuh"
#include "dtype.cuh"
#include "planes.cuh"
#include "pooled_axis.cuh"

template <typename index_t>
struct Axis {
  index_t in;
  index_t kernel;
  pooled_axis<index_t> windows;
  __device__ __forceinline__ Axis(const pooling_window& window, int64_t size, int64_t out)
      : in(static_cast<index_t>(size)),
        kernel(static_cast<index_t>(window.whole * window.stride + window.part)),
        windows(window, out) {}
};

// What window `o` counts on this axis: its positions in the input, or with `padded` those in the
// padding too. What reaches beyond the padding (ceil_mode) never counts.
template <typename index_t>
static __device__ __forceinline__ index_t window_size(index_t o, const Axis<index_t>& axis,
                                                      bool padded) {
  index_t padding = axis.windows.padding;
  index_t start = o * axis.windows.stride.value - padding;
  index_t margin = padded ? padding : 0;
  return least(start + axis.kernel, axis.in + margin) - most(start, -margin);
}

// Neighbouring threads own neighbouring positions, a thread `per_thread` planes. `shared_divisor`
// is that of all windows, or 0 where they differ; `reciprocal` is its reciprocal where the sum may
// be divided by that, otherwise 0. Planes are the `outer` of `shape`.
template <typename scalar_t, int per_thread, typename index_t>
__global__ void avg_pool3d_backward(const scalar_t* __restrict__ grad_output,
                                    scalar_t* __restrict__ grad_input, pooled_shape shape,
                                    pooling_window t, pooling_window h, pooling_window w,
                                    bool count_include_pad, int64_t shared_divisor,
                                    double reciprocal) {
  using acc_t = opmath_t<scalar_t>;
  Axis<index_t> t_axis(t, shape.t_in, shape.t_out), h_axis(h, shape.h_in, shape.h_out),
      w_axis(w, shape.w_in, shape.w_out);
  divisor<index_t> positions(shape.t_in * shape.h_in * shape.w_in, shape.positions_magic);
  divisor<index_t> height(shape.h_in, shape.h_magic), width(shape.w_in, shape.w_magic);
  index_t windows = static_cast<index_t>(shape.t_out * shape.h_out * shape.w_out);
  acc_t share_of_all = static_cast<acc_t>(shared_divisor);
  acc_t reciprocal_of_all = static_cast<acc_t>(reciprocal);
  for (int64_t i = thread_index(); i < shape.threads; i += thread_count()) {
    index_t group = positions.quotient(static_cast<index_t>(i));
    index_t position = static_cast<index_t>(i) - group * positions.value;
    index_t plane = group * per_thread;
    index_t count = static_cast<index_t>(shape.outer) - plane;
    const scalar_t* source = grad_output + plane * windows;
    index_t row = width.quotient(position);
    index_t frame = height.quotient(row);
    index_range<index_t> ts = t_axis.windows.covering(frame);
    index_range<index_t> hs = h_axis.windows.covering(row - frame * height.value);
    index_range<index_t> ws = w_axis.windows.covering(position - row * width.value);
    bool short_lines = ws.end - ws.begin <= 2;
    acc_t results[per_thread];
    // One divisor divides the sum, which is cheapest. Where that sum is not finite, a second round
    // divides each addend instead, in case only the sum overflowed; other planes keep their
    // results.
    bool again = false;
    for (bool divide_each = shared_divisor == 0;; divide_each = again = true) {
      compensated_sum<acc_t> sums[per_thread] = {};
      acc_t values[per_thread];
      // Windows in row-major order: t, then h, then w.
      for (index_t ot = ts.begin; ot < ts.end; ++ot) {
        for (index_t oh = hs.begin; oh < hs.end; ++oh) {
          const scalar_t* line = source + (ot * h_axis.windows.out + oh) * w_axis.windows.out;
          if (divide_each) {
            index_t size_th = window_size(ot, t_axis, count_include_pad) *
                              window_size(oh, h_axis, count_include_pad);
            for (index_t ow = ws.begin; ow < ws.end; ++ow) {
              load_planes(line + ow, windows, count, acc_t(0), values);
              index_t size = size_th * window_size(ow, w_axis, count_include_pad);
              acc_t share_of = static_cast<acc_t>(shared_divisor != 0 ? shared_divisor : size);
              acc_t one_share = div_rn(static_cast<acc_t>(1), share_of);
#pragma unroll
              for (int j = 0; j < per_thread; ++j)
                sums[j].add_share(values[j], share_of, one_share);
            }
          } else if (short_lines) {
            for (index_t ow = ws.begin; ow < ws.end; ++ow) {
              load_planes(line + ow, windows, count, acc_t(0), values);
#pragma unroll
              for (int j = 0; j < per_thread; ++j) sums[j].add(values[j]);
            }
          } else {
            // Summed by itself and rounded as it goes, which is cheaper.
            acc_t line_sums[per_thread] = {};
            for (index_t ow = ws.begin; ow < ws.end; ++ow) {
              load_planes(line + ow, windows, count, acc_t(0), values);
#pragma unroll
              for (int j = 0; j < per_thread; ++j) line_sums[j] = add_rn(line_sums[j], values[j]);
            }
#pragma unroll
            for (int j = 0; j < per_thread; ++j) sums[j].add(line_sums[j]);
          }
        }
      }
      bool quick = reciprocal_of_all != 0 && !divide_each, finite = true;
#pragma unroll
      for (int j = 0; j < per_thread; ++j) quick &= sums[j].divides_quickly();
      if (quick) {
#pragma unroll
        for (int j = 0; j < per_thread; ++j) {
          results[j] = sums[j].divided_by(share_of_all, reciprocal_of_all);
        }
        break;
      }
#pragma unroll
      for (int j = 0; j < per_thread; ++j) {
        finite = finite && is_finite(sums[j].high);
        if (again && is_finite(results[j])) continue;
        results[j] = divide_each ? sums[j].rounded() : sums[j].divided_by(share_of_all);
      }
      if (divide_each || finite) break;
    }
    store_planes(grad_input + plane * positions.value + position, positions.value, count, results);
  }
}
