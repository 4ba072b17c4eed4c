// One axis of a pooling, and the windows that hold a position of its input.
#pragma once

#include "index_type.cuh"

// As the launcher describes it: `size` inputs, `out` windows, and what follows from the kernel's
// size (detmode.cuda.rows.pooling).
struct pooling {
  int64_t size, size_magic, out;
  int64_t stride, stride_magic, padding;
  int64_t dilation, step;
  int64_t whole, part;
};

// Window `o` reaches from o * stride - padding over `whole` strides and `part` positions more,
// fewer than a stride.
template <typename index_t>
struct pooled_axis {
  index_t out;
  index_t padding;
  divisor<index_t> stride;
  index_t whole;
  index_t part;
  __device__ __forceinline__ pooled_axis(const pooling& axis)
      : out(static_cast<index_t>(axis.out)),
        padding(static_cast<index_t>(axis.padding)),
        stride(axis.stride, axis.stride_magic),
        whole(static_cast<index_t>(axis.whole)),
        part(static_cast<index_t>(axis.part)) {}
  // The windows that hold position `i`: as many as whole strides, up to the last that begins before
  // it, and one more where the position is in the part. Empty between windows.
  __device__ __forceinline__ index_range<index_t> covering(index_t i) const {
    index_t shifted = i + padding;
    index_t last = stride.quotient(shifted);
    index_t count = whole + (shifted - last * stride.value < part ? 1 : 0);
    return {most<index_t>(last + 1 - count, 0), least<index_t>(last + 1, out)};
  }
};
