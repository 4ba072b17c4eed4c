// Products of a sparse matrix and a dense one: rows of the dense one, each times an entry, added up
// for the row of the entry.
#include "row_runs.cuh"
#include "row_shape.cuh"

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

// The first launch of row_runs.cuh's order: the entries, sorted by row, in the order in which they
// are stored. `keys` holds their rows; where `order` is not null, it is the stable sort that gave
// them, and `columns` and `values` are not sorted. `dense` is [size, shape.inner].
template <typename scalar_t, int width, typename key_t>
__global__ void sparse_rows(const key_t* __restrict__ keys, const int32_t* __restrict__ order,
                            const int64_t* __restrict__ columns,
                            const scalar_t* __restrict__ values, const scalar_t* __restrict__ dense,
                            scalar_t* __restrict__ out, double* __restrict__ carries,
                            row_shape shape, int64_t size, bool include_self, scaling alpha) {
  using row_t = row_sum<scalar_t>;
  using runs_t = neighbours<row_t, width>;
  using pack_t = pack_of<scalar_t, width>;
  struct entry_and_row {
    scalar_t entry;
    pack_t row;
  };
  runs_t* carried = reinterpret_cast<runs_t*>(carries);
  int64_t entries = shape.rows, inner = shape.inner, groups = inner / width;
  int64_t all = segment_pieces<PIECE>(entries) * groups;
  for (int64_t i = thread_index(); i < all; i += thread_count()) {
    int64_t piece = quick_div(i, groups), group = i - piece * groups, first = group * width;
    segment_piece<PIECE>(
        piece, entries, [&](int64_t entry) { return keys[entry]; },
        [&](int64_t entry) {
          int64_t place = order == nullptr ? entry : order[entry], column = columns[place];
          DETMODE_ASSERT(column >= 0 && column < size);
          DETMODE_ASSERT(keys[entry] >= 0 && keys[entry] < shape.size);
          return entry_and_row{values[place],
                               *reinterpret_cast<const pack_t*>(dense + column * inner + first)};
        },
        [&](const entry_and_row& loaded) {
          auto entry = factor<scalar_t>::of(loaded.entry, alpha);
          runs_t runs;
          for (int k = 0; k < width; ++k) runs.lane[k] = entry.times(loaded.row.lane[k]);
          return runs;
        },
        [](const runs_t& earlier, const runs_t& later) { return earlier.plus(later); },
        runs_t::nothing(),
        row_store<row_t, width, key_t>{out + first, nullptr, 0, 0, inner, include_self},
        [&](int64_t slot, key_t, const runs_t& runs) { carried[slot * groups + group] = runs; });
  }
}
