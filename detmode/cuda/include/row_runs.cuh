// Runs of sorted rows with one destination: what a thread holds of them, and how it is stored.
#pragma once

#include "compensated_sum.cuh"
#include "index.cuh"
#include "product.cuh"
#include "scaling.cuh"
#include "segment_reduce.cuh"

// What is reduced of one column of the rows of one destination: a sum in double, which has 29 bits
// to spare for float and 16-bit addends. Where it is a `mean`, the sum is divided when it is
// stored.
template <typename T, bool mean = false>
struct row_sum {
  static constexpr bool is_mean = mean;
  using scalar_t = T;
  using part_t = typename conditional<is_same<real_t<scalar_t>, double>::value, paired_sum<double>,
                                      plain_sum<double>>::type;
  part_t part;
  static __device__ __forceinline__ row_sum of(opmath_t<scalar_t> x) {
    return row_sum{part_t::of(static_cast<double>(x))};
  }
  static __device__ __forceinline__ row_sum read(scalar_t x, scaling alpha) {
    return of(addend(x, alpha));
  }
  static __device__ __forceinline__ row_sum nothing() { return row_sum{part_t::of(-0.0)}; }
  __device__ __forceinline__ row_sum plus(row_sum x) const { return row_sum{part.plus(x.part)}; }
  // With the initial value, or with 0.0, so that -0.0 is never the sum; `rows` is their number, by
  // which a mean is divided.
  __device__ __forceinline__ scalar_t onto(scalar_t self, bool include_self, int64_t rows) const {
    auto total = plus(of(include_self ? to_opmath(self) : opmath_t<scalar_t>(0))).part.total();
    return narrowed<scalar_t>(mean ? quotient(total, rows + (include_self ? 1 : 0)) : total);
  }
};
template <typename T>
using row_mean = row_sum<T, true>;
template <typename T, bool mean>
struct row_sum<complex<T>, mean> {
  static constexpr bool is_mean = mean;
  using scalar_t = complex<T>;
  using real_sum = row_sum<T, mean>;
  real_sum re, im;
  static __device__ __forceinline__ row_sum of(complex<T> x) {
    return row_sum{real_sum::of(x.re), real_sum::of(x.im)};
  }
  static __device__ __forceinline__ row_sum read(complex<T> x, scaling alpha) {
    return of(addend(x, alpha));
  }
  static __device__ __forceinline__ row_sum nothing() {
    return row_sum{real_sum::nothing(), real_sum::nothing()};
  }
  __device__ __forceinline__ row_sum plus(row_sum x) const {
    return row_sum{re.plus(x.re), im.plus(x.im)};
  }
  __device__ __forceinline__ complex<T> onto(complex<T> self, bool include_self,
                                             int64_t rows) const {
    return complex<T>(re.onto(self.re, include_self, rows), im.onto(self.im, include_self, rows));
  }
};

// What row_sum is for sums, for products: nothing is scaled or counted.
template <typename T>
struct row_product {
  static constexpr bool is_mean = false;
  using scalar_t = T;
  product_t<scalar_t> run;
  static __device__ __forceinline__ row_product read(scalar_t x, scaling) {
    return row_product{product_t<scalar_t>::of(x)};
  }
  static __device__ __forceinline__ row_product nothing() { return read(scalar_t(1), {}); }
  __device__ __forceinline__ row_product plus(row_product x) const {
    return row_product{run.times(x.run)};
  }
  __device__ __forceinline__ scalar_t onto(scalar_t self, bool include_self, int64_t) const {
    auto product = include_self ? product_t<scalar_t>::of(self).times(run) : run;
    return product.template result<scalar_t>();
  }
};

// `width` neighbouring columns, which one thread reads at once and reduces side by side.
template <typename row_t, int width>
struct neighbours {
  using pack_t = pack_of<typename row_t::scalar_t, width>;
  row_t lane[width];
  static __device__ __forceinline__ neighbours read(const pack_t& pack, scaling alpha) {
    neighbours runs;
    for (int k = 0; k < width; ++k) runs.lane[k] = row_t::read(pack.lane[k], alpha);
    return runs;
  }
  static __device__ __forceinline__ neighbours nothing() {
    neighbours runs;
    for (int k = 0; k < width; ++k) runs.lane[k] = row_t::nothing();
    return runs;
  }
  __device__ __forceinline__ neighbours plus(const neighbours& x) const {
    neighbours runs;
    for (int k = 0; k < width; ++k) runs.lane[k] = lane[k].plus(x.lane[k]);
    return runs;
  }
};

// The first of the columns from `column` on in a tensor that lies as [outer, rows, inner].
template <typename T>
static __device__ __forceinline__ T* column_of(T* tensor, int64_t column, int64_t rows,
                                               int64_t inner) {
  int64_t outer = column < inner ? 0 : quick_div(column, inner);
  return tensor + outer * rows * inner + (column - outer * inner);
}

// Puts a destination's runs onto its initial values.
template <typename row_t, int width>
struct row_store {
  using runs_t = neighbours<row_t, width>;
  using initial_t = typename runs_t::pack_t;
  typename row_t::scalar_t* first;  // the columns, at destination 0
  int64_t inner;
  bool include_self;
  __device__ __forceinline__ initial_t initial(int64_t key) const {
    initial_t values;
    for (int k = 0; k < width; ++k) values.lane[k] = first[key * inner + k];
    return values;
  }
  // `rows`: how many the runs have, which only a mean needs.
  __device__ __forceinline__ void put(int64_t key, const runs_t& runs, int64_t rows,
                                      const initial_t& values) const {
    for (int k = 0; k < width; ++k) {
      first[key * inner + k] = runs.lane[k].onto(values.lane[k], include_self, rows);
    }
  }
};

// The order is segment_reduce.cuh's: pieces of PIECE rows, first to last, then the pieces' carries
// in the same way. A thread takes one piece of `width` columns.
constexpr int PIECE = 64;

// What the pieces of rows carry of one group of columns.
template <typename runs_t>
struct row_carries {
  runs_t* first;
  int64_t groups, group;
  __device__ __forceinline__ runs_t& operator[](int64_t slot) const {
    return first[slot * groups + group];
  }
};

// What segment_piece asks of rows, but for how they are loaded.
template <typename row_t, int width, typename key_t>
struct keyed_rows {
  using value_t = neighbours<row_t, width>;
  const key_t* keys;
  row_store<row_t, width> out;
  row_carries<value_t> carries;
  __device__ __forceinline__ key_t key(int64_t row) const { return keys[row]; }
  __device__ __forceinline__ void store(key_t key, const value_t& runs, int64_t first,
                                        int64_t end) const {
    out.put(key, runs, end - first, out.initial(key));
  }
  __device__ __forceinline__ void carry(int64_t slot, key_t, const value_t& runs) const {
    carries[slot] = runs;
  }
};
