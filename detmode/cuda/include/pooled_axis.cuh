// One axis of a pooling, and the windows that hold a position of its input.
#pragma once

#include "index_type.cuh"

// The windows of an axis, whatever its size: window `o` reaches from o * stride - padding over
// `whole` strides and `part` positions more, fewer than a stride (detmode.cuda.rows.pooling).
struct pooling_window {
  int64_t stride, stride_magic, padding;
  int64_t dilation, step;
  int64_t whole, part;
};

// An axis of `out` windows.
template <typename index_t>
struct pooled_axis {
  index_t out;
  index_t padding;
  divisor<index_t> stride;
  index_t whole;
  index_t part;
  __device__ __forceinline__ pooled_axis(const pooling_window& window, int64_t windows)
      : out(static_cast<index_t>(windows)),
        padding(static_cast<index_t>(window.padding)),
        stride(window.stride, window.stride_magic),
        whole(static_cast<index_t>(window.whole)),
        part(static_cast<index_t>(window.part)) {}
  // The windows that hold position `i`: as many as whole strides, up to the last that begins before
  // it, and one more where the position is in the part. Empty between windows.
  __device__ __forceinline__ index_range<index_t> covering(index_t i) const {
    index_t shifted = i + padding;
    index_t last = stride.quotient(shifted);
    index_t count = whole + (shifted - last * stride.value < part ? 1 : 0);
    return {most<index_t>(last + 1 - count, 0), least<index_t>(last + 1, out)};
  }
};
