// Sizes or strides of a batch of images or volumes, as detmode.cuda.rows.extents gives them.
#pragma once

#include "types.cuh"

// Of images `d` is 1, or as a stride 0.
struct extents {
  int64_t n, c, d, h, w;
};
