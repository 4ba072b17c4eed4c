// Assignment of rows by destination: put, scatter, index_copy, index_put, max_unpool.
//
// `source` lies as [outer, rows, inner], the destinations as [outer, size, inner]; an index names
// the destination of a row (one for all `outer`), or of each element. Of sources with one
// destination the last one in row-major order stays. What moves is bits: words of 1 to 16 bytes.
#include "dtype.cuh"
#include "owner.cuh"

// An integer maximum for each destination: any order gives the same. Where the index names rows,
// `rows` is their number and `inner` is 1.
__global__ void assign_elect(const int64_t* __restrict__ index, int64_t* __restrict__ owners,
                             int64_t n, int64_t rows, int64_t inner, int64_t size) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t row = quick_div(i, inner), outer = quick_div(row, rows);
    int64_t position = index[i];
    DETMODE_ASSERT(position >= 0 && position < size);
    elect_last(owners, (outer * size + position) * inner + (i - row * inner), i);
  }
}

// Each owner writes; nobody else writes there. Without `owners` no destination is named twice.
template <typename word_t>
__global__ void assign_owned(const int64_t* __restrict__ index, const int64_t* __restrict__ owners,
                             const word_t* __restrict__ source, word_t* __restrict__ out, int64_t n,
                             bool by_row, int64_t rows, int64_t inner, int64_t size) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t row = quick_div(i, inner), outer = quick_div(row, rows);
    int64_t place = by_row ? row - outer * rows : i;
    int64_t position = index[place];
    DETMODE_ASSERT(position >= 0 && position < size);
    int64_t destination = (outer * size + position) * inner + (i - row * inner);
    if (owners == nullptr || owners[by_row ? position : destination] == place) {
      out[destination] = source[i];
    }
  }
}

// The rows sorted by destination, stably: the last of a run of equal ones writes. `sorted` may come
// from narrow integers, so the bounds are those of `index`.
template <typename word_t>
__global__ void assign_sorted(const int64_t* __restrict__ index, const int64_t* __restrict__ sorted,
                              const int64_t* __restrict__ order, const word_t* __restrict__ source,
                              word_t* __restrict__ out, int64_t n, int64_t rows, int64_t inner,
                              int64_t size) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t row = quick_div(i, inner), outer = quick_div(row, rows);
    int64_t place = row - outer * rows, column = i - row * inner;
    DETMODE_ASSERT(index[place] >= 0 && index[place] < size);
    int64_t position = sorted[place];
    if (place + 1 < rows && sorted[place + 1] == position) continue;
    out[(outer * size + position) * inner + column] =
        source[(outer * rows + order[place]) * inner + column];
  }
}
