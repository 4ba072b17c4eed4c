// Rows of a tensor and the destinations that an index names for them.
#pragma once

#include "index.cuh"

// `source` lies as [outer, rows, inner], the destinations as [outer, size, inner]: what Rows of
// detmode.cuda.rows.shapes says.
struct row_shape {
  int64_t outer, rows, inner, size, wraps;
};
static __device__ __forceinline__ int64_t destinations_of(const row_shape& shape) {
  return shape.outer * shape.size * shape.inner;
}

// What an index says at `place`, from the start; a negative one counts from the end where the shape
// `wraps`.
static __device__ __forceinline__ int64_t position_at(const int64_t* index, int64_t place,
                                                      const row_shape& shape) {
  return from_start(index[place], shape.size, shape.wraps != 0);
}

// An element of `source`: which element of the index names its destination, and what that would be
// at position 0.
struct named {
  int64_t place, first;
};

// The element i of `source`. An index names the destination of a row (one for all `outer`), or of
// each element.
static __device__ __forceinline__ named named_by(int64_t i, bool by_row, const row_shape& shape) {
  // Most shapes need one division at most.
  int64_t row = shape.inner == 1 ? i : quick_div(i, shape.inner);
  int64_t outer = shape.outer == 1 ? 0 : quick_div(row, shape.rows);
  return {by_row ? row - outer * shape.rows : i,
          outer * shape.size * shape.inner + (i - row * shape.inner)};
}
// Its destination, at the position that the index names.
static __device__ __forceinline__ int64_t destination_of(const named& element, int64_t position,
                                                         const row_shape& shape) {
  DETMODE_ASSERT(position >= 0 && position < shape.size);
  return element.first + position * shape.inner;
}

// Both at once, with the position.
struct placed {
  int64_t place, position, destination;
};
static __device__ __forceinline__ placed placed_by(const int64_t* index, int64_t i, bool by_row,
                                                   const row_shape& shape) {
  named element = named_by(i, by_row, shape);
  int64_t position = position_at(index, element.place, shape);
  return {element.place, position, destination_of(element, position, shape)};
}
