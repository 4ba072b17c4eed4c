// Sums and products of few rows by destination, in one launch.
#include "row_runs.cuh"
#include "row_shape.cuh"

// Rows of one piece, in the order of `sorted_rows` and so with its bits, without a sort: each
// thread reads the index, and that of a destination's first row adds up its others. Who writes has
// checked all of the index.
template <typename row_t, int width>
__global__ void few_rows(const int64_t* __restrict__ index,
                         const typename row_t::scalar_t* __restrict__ source,
                         typename row_t::scalar_t* __restrict__ out, bool by_row, row_shape shape,
                         bool include_self, scaling alpha) {
  using runs_t = neighbours<row_t, width>;
  using pack_t = typename runs_t::pack_t;
  constexpr int batch = 8;
  int64_t outers = shape.outer, rows = shape.rows, inner = shape.inner, size = shape.size;
  // Of one row, an element meets none of those with other columns.
  bool meets = !by_row && rows > 1;
  if (meets) {
    // Every element is a row.
    rows *= outers * inner;
    size *= outers * inner;
    outers = inner = 1;
  }
  int64_t groups = outers * inner / width;
  for (int64_t i = thread_index(); i < rows * groups; i += thread_count()) {
    int64_t row = quick_div(i, groups), column = (i - row * groups) * width;
    auto* first = column_of(source, column, rows, inner);
    auto key = [&](int64_t j) {
      if (meets) return placed_by(index, j, false, shape).destination;
      return position_at(index, by_row ? j : column, shape);
    };
    int64_t destination = key(row), met = 0;
    bool in_range = true, leads = true;
    runs_t runs = runs_t::nothing();
    for (int64_t base = 0; base < rows && leads; base += batch) {
      pack_t loaded[batch];
      bool same[batch];
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        int64_t j = min_index(base + b, rows - 1), key_of_j = key(j);
        in_range = in_range && key_of_j >= 0 && key_of_j < size;
        same[b] = base + b < rows && key_of_j == destination;
        leads = leads && !(same[b] && j < row);
        if (same[b]) loaded[b] = *reinterpret_cast<const pack_t*>(first + j * inner);
      }
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        if (!same[b]) continue;
        runs_t value = runs_t::read(loaded[b], alpha);
        runs = met == 0 ? value : runs.plus(value);
        ++met;
      }
    }
    if (!leads) continue;
    DETMODE_ASSERT(in_range);
    row_store<row_t, width> store{column_of(out, column, size, inner), inner, include_self};
    store.put(destination, runs, met, store.initial(destination));
  }
}
