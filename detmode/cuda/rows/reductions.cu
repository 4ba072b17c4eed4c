// Products, maxima and minima of rows by destination: index_reduce, and scatter's reductions.
#include "ordered.cuh"
#include "product.cuh"
#include "row_shape.cuh"
#include "segment_reduce.cuh"

// Multiplies what a destination holds by the product of its rows, or replaces it.
template <typename scalar_t>
struct product_store {
  scalar_t* out;
  int64_t column, inner, size;
  bool include_self;
  __device__ __forceinline__ void operator()(int64_t key, product_t<scalar_t> product) const {
    int64_t outer = quick_div(column, inner);
    scalar_t* target = out + (outer * size + key) * inner + (column - outer * inner);
    if (include_self) product = product_t<scalar_t>::of(*target).times(product);
    *target = product.template result<scalar_t>();
  }
};

// The order of multiplications is segment_reduce.cuh's: pieces of PIECE rows, first to last, then
// the pieces' carries in the same way, then what the destination held. A thread takes one piece of
// one column.
constexpr int PIECE = 64;

// The first launch: the rows themselves. `order` is the stable sort of `index`, `keys` its values.
template <typename scalar_t>
__global__ void index_reduce_multiply_rows(
    const int64_t* __restrict__ index, const int64_t* __restrict__ keys,
    const int64_t* __restrict__ order, const scalar_t* __restrict__ source,
    scalar_t* __restrict__ out, int64_t* __restrict__ carry_keys, int64_t* __restrict__ carries,
    row_shape shape, bool include_self) {
  using run_t = product_t<scalar_t>;
  run_t* carried = reinterpret_cast<run_t*>(carries);
  int64_t rows = shape.rows, inner = shape.inner, size = shape.size;
  int64_t columns = shape.outer * inner, all = segment_pieces<PIECE>(rows) * columns;
  for (int64_t i = thread_index(); i < all; i += thread_count()) {
    int64_t piece = quick_div(i, columns), column = i - piece * columns;
    int64_t outer = quick_div(column, inner);
    const scalar_t* first = source + outer * rows * inner + (column - outer * inner);
    segment_piece<PIECE>(
        piece, rows,
        [&](int64_t row) {
          int64_t key = keys[row];
          // The sort saw a narrower dtype: an index out of range must not pass for another.
          DETMODE_ASSERT(key >= 0 && key < size && (column != 0 || index[order[row]] == key));
          return key;
        },
        [&](int64_t row) { return run_t::of(first[order[row] * inner]); },
        [](const run_t& earlier, const run_t& later) { return earlier.times(later); },
        run_t::of(scalar_t(1)), product_store<scalar_t>{out, column, inner, size, include_self},
        [&](int64_t slot, int64_t key, const run_t& run) {
          if (column == 0) carry_keys[slot] = key;
          carried[slot * columns + column] = run;
        });
  }
}

// The launches after it: `n` carries, until one piece holds them all.
template <typename scalar_t>
__global__ void index_reduce_multiply_carries(const int64_t* __restrict__ keys,
                                              const int64_t* __restrict__ carries_read,
                                              scalar_t* __restrict__ out,
                                              int64_t* __restrict__ carry_keys,
                                              int64_t* __restrict__ carries, int64_t n,
                                              row_shape shape, bool include_self) {
  using run_t = product_t<scalar_t>;
  const run_t* read = reinterpret_cast<const run_t*>(carries_read);
  run_t* carried = reinterpret_cast<run_t*>(carries);
  int64_t columns = shape.outer * shape.inner, all = segment_pieces<PIECE>(n) * columns;
  for (int64_t i = thread_index(); i < all; i += thread_count()) {
    int64_t piece = quick_div(i, columns), column = i - piece * columns;
    segment_piece<PIECE>(
        piece, n, [&](int64_t slot) { return keys[slot]; },
        [&](int64_t slot) { return read[slot * columns + column]; },
        [](const run_t& earlier, const run_t& later) { return earlier.times(later); },
        run_t::of(scalar_t(1)),
        product_store<scalar_t>{out, column, shape.inner, shape.size, include_self},
        [&](int64_t slot, int64_t key, const run_t& run) {
          if (column == 0) carry_keys[slot] = key;
          carried[slot * columns + column] = run;
        });
  }
}

// Integer maxima of keys: any order gives the same.
template <typename scalar_t>
__global__ void index_reduce_observe(const int64_t* __restrict__ index,
                                     const scalar_t* __restrict__ source,
                                     typename extremum<scalar_t>::key_t* __restrict__ keys,
                                     int64_t n, bool by_row, row_shape shape, bool largest) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t destination = placed_by(index, i, by_row, shape).destination;
    extremum<scalar_t>::observe(keys, destination, source[i], largest);
  }
}

// What a destination holds stays, to the bit, unless an observed value is beyond it.
template <typename scalar_t>
__global__ void index_reduce_finish(const typename extremum<scalar_t>::key_t* __restrict__ keys,
                                    scalar_t* __restrict__ out, int64_t n, bool include_self,
                                    bool largest) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    if (!extremum<scalar_t>::any(keys, i)) continue;
    if (include_self && extremum<scalar_t>::key_of(out[i], largest) >= keys[i]) continue;
    out[i] = extremum<scalar_t>::finish(keys, i, largest);
  }
}
