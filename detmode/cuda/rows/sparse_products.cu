// Products of a sparse matrix and a dense one: rows of the dense one, each times an entry, added up
// for the row of the entry.
#include "row_runs.cuh"

// The product of an entry, times alpha, and an element. That of two floats is exact in double; of
// that of two doubles the second part is what rounding takes.
static __device__ __forceinline__ void multiply(double entry, double x,
                                                plain_sum<double>& product) {
  product.value = mul_rn(entry, x);
}
static __device__ __forceinline__ void multiply(double entry, double x,
                                                paired_sum<double>& product) {
  product.high = mul_rn(entry, x);
  product.low = fma_rn(entry, x, -product.high);
}

// An entry in double, times alpha where there is one.
template <typename T>
struct factor {
  double value;
  static __device__ __forceinline__ factor of(T entry, scaling alpha) {
    double value = static_cast<double>(to_opmath(entry));
    return factor{alpha.scaled ? mul_rn(value, alpha.re) : value};
  }
  __device__ __forceinline__ row_sum<T> times(T element) const {
    row_sum<T> product;
    multiply(value, static_cast<double>(to_opmath(element)), product.part);
    return product;
  }
};
template <typename T>
struct factor<complex<T>> {
  factor<T> re, im, minus_im;
  static __device__ __forceinline__ factor of(complex<T> entry, scaling alpha) {
    complex<double> value(entry.re, entry.im);
    if (alpha.scaled) value = value * complex<double>(alpha.re, alpha.im);
    return factor{{value.re}, {value.im}, {-value.im}};
  }
  // Real products first, as the accumulators of both parts take them.
  __device__ __forceinline__ row_sum<complex<T>> times(complex<T> x) const {
    return row_sum<complex<T>>{re.times(x.re).plus(minus_im.times(x.im)),
                               re.times(x.im).plus(im.times(x.re))};
  }
};

// The sparse matrix has `rows` and `size` columns; the dense one is [size, inner].
struct sparse_shape {
  int64_t entries, rows, size, inner;
};

// Entries of the sparse matrix, and one group of columns of the dense one.
template <typename scalar_t, int width, typename key_t>
struct entries_by_columns : keyed_rows<row_sum<scalar_t>, width, key_t> {
  using runs_t = neighbours<row_sum<scalar_t>, width>;
  using pack_t = typename runs_t::pack_t;
  struct entry_and_row {
    scalar_t entry;
    pack_t row;
  };
  const int32_t* order;
  const int64_t* columns;
  const scalar_t* values;
  const scalar_t* dense;
  sparse_shape shape;
  scaling alpha;
  __device__ __forceinline__ entry_and_row load(int64_t entry) const {
    int64_t place = order == nullptr ? entry : order[entry], column = columns[place];
    DETMODE_ASSERT(column >= 0 && column < shape.size);
    DETMODE_ASSERT(this->key(entry) >= 0 && this->key(entry) < shape.rows);
    return {values[place], *reinterpret_cast<const pack_t*>(dense + column * shape.inner)};
  }
  __device__ __forceinline__ runs_t value(const entry_and_row& loaded) const {
    auto entry = factor<scalar_t>::of(loaded.entry, alpha);
    runs_t runs;
    for (int k = 0; k < width; ++k) runs.lane[k] = entry.times(loaded.row.lane[k]);
    return runs;
  }
};

// The first launch of row_runs.cuh's order: the entries, sorted by row, in the order in which they
// are stored. `keys` holds their rows; where `order` is not null, it is the stable sort that gave
// them, and `columns` and `values` are not sorted.
template <typename scalar_t, int width, typename key_t>
__global__ void sparse_rows(const key_t* __restrict__ keys, const int32_t* __restrict__ order,
                            const int64_t* __restrict__ columns,
                            const scalar_t* __restrict__ values, const scalar_t* __restrict__ dense,
                            scalar_t* __restrict__ out, double* __restrict__ carries,
                            sparse_shape shape, bool include_self, scaling alpha) {
  auto* carried = reinterpret_cast<neighbours<row_sum<scalar_t>, width>*>(carries);
  int64_t entries = shape.entries, inner = shape.inner, groups = inner / width;
  int64_t all = segment_pieces<PIECE>(entries) * groups;
  for (int64_t i = thread_index(); i < all; i += thread_count()) {
    int64_t piece = quick_div(i, groups), group = i - piece * groups, first = group * width;
    auto* to = out + first;
    row_store<row_sum<scalar_t>, width> store{to, inner, include_self};
    keyed_rows<row_sum<scalar_t>, width, key_t> keyed{keys, store, {carried, groups, group}};
    entries_by_columns<scalar_t, width, key_t> by_columns{keyed,         order, columns, values,
                                                          dense + first, shape, alpha};
    segment_piece<PIECE>(piece, entries, by_columns);
  }
}
