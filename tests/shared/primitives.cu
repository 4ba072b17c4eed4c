// Launches of the primitives in detmode/cuda/include, for their tests.
#include "accumulator.cuh"
#include "block_reduce.cuh"
#include "compensated_sum.cuh"
#include "crowd.cuh"
#include "dtype.cuh"
#include "index_type.cuh"
#include "look_back.cuh"
#include "segment_reduce.cuh"

template <typename scalar_t>
struct sum_op {
  __device__ __forceinline__ scalar_t operator()(scalar_t earlier, scalar_t later) const {
    return earlier + later;
  }
  // Adding -0.0 keeps every value, a -0.0 too; adding +0.0 would not.
  static __device__ __forceinline__ scalar_t identity() { return -scalar_t(0); }
};

struct Concatenation {
  int first, last;
  bool ordered;
};

// Whether block_reduce shows its operands in the order of the threads.
template <int threads>
__global__ void reduce_in_order(int64_t* __restrict__ output) {
  Concatenation own = {static_cast<int>(threadIdx.x), static_cast<int>(threadIdx.x), true};
  Concatenation nothing = {-1, -1, true};
  auto join = [](Concatenation earlier, Concatenation later) {
    if (later.first < 0) return earlier;
    Concatenation joined = {earlier.first, later.last,
                            earlier.ordered && later.ordered && earlier.last + 1 == later.first};
    return joined;
  };
  static_assert(sizeof(Concatenation) == 12, "whole words");
  Concatenation all = block_reduce<threads>(own, join, nothing);
  if (threadIdx.x == 0) output[0] = all.ordered && all.first == 0 ? all.last : -1;
}

template <typename scalar_t>
struct segment_sums {
  struct value_t {
    scalar_t sum;
    __device__ __forceinline__ value_t plus(value_t later) const {
      return {sum_op<scalar_t>()(sum, later.sum)};
    }
    static __device__ __forceinline__ value_t nothing() { return {sum_op<scalar_t>::identity()}; }
  };
  const int64_t* keys;
  const scalar_t* values;
  int64_t* carry_keys;
  scalar_t* carry_values;
  scalar_t* output;
  int64_t column, columns;
  __device__ __forceinline__ int64_t key(int64_t j) const { return keys[j]; }
  __device__ __forceinline__ value_t load(int64_t j) const {
    return {values[j * columns + column]};
  }
  __device__ __forceinline__ value_t value(value_t loaded) const { return loaded; }
  __device__ __forceinline__ void store(int64_t key, value_t value, int64_t, int64_t) const {
    output[key * columns + column] = value.sum;
  }
  // For segment_run, whose store takes what belongs to the destination.
  __device__ __forceinline__ bool is_part(int64_t) const { return true; }
  __device__ __forceinline__ value_t value(int64_t j) const { return load(j); }
  __device__ __forceinline__ int64_t initial(int64_t key) const { return key; }
  __device__ __forceinline__ void store(int64_t key, value_t value, int64_t initial, int64_t first,
                                        int64_t end) const {
    DETMODE_ASSERT(initial == key && keys[first] == key && keys[end - 1] == key);
    store(key, value, first, end);
  }
  __device__ __forceinline__ void carry(int64_t slot, int64_t key, value_t value) const {
    if (column == 0) carry_keys[slot] = key;
    carry_values[slot * columns + column] = value.sum;
  }
};

template <typename scalar_t, int piece>
__global__ void segment_sum(const int64_t* __restrict__ keys, const scalar_t* __restrict__ values,
                            int64_t* __restrict__ carry_keys, scalar_t* __restrict__ carry_values,
                            scalar_t* __restrict__ output, int64_t n, int64_t columns) {
  int64_t work = segment_pieces<piece>(n) * columns;
  for (int64_t i = thread_index(); i < work; i += thread_count()) {
    segment_piece<piece>(i / columns, n,
                         segment_sums<scalar_t>{keys, values, carry_keys, carry_values, output,
                                                i % columns, columns});
  }
}

// What the pieces carry, by a thread for each of them.
template <typename scalar_t, int piece>
__global__ void segment_runs(const int64_t* __restrict__ keys, const scalar_t* __restrict__ values,
                             int64_t* __restrict__ carry_keys, scalar_t* __restrict__ carry_values,
                             scalar_t* __restrict__ output, int64_t n, int64_t columns) {
  for (int64_t i = thread_index(); i < n * columns; i += thread_count()) {
    segment_run<piece>(static_cast<int32_t>(i / columns), static_cast<int32_t>(n),
                       segment_sums<scalar_t>{keys, values, carry_keys, carry_values, output,
                                              i % columns, columns});
  }
}

// to_opmath and from_opmath there and back, and through opmath.
template <typename scalar_t>
__global__ void from_float(const float* __restrict__ input, scalar_t* __restrict__ output,
                           int64_t n) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    output[i] = from_opmath<scalar_t>(input[i]);
  }
}
template <typename scalar_t>
__global__ void to_float(const scalar_t* __restrict__ input, float* __restrict__ output,
                         int64_t n) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) output[i] = to_opmath(input[i]);
}

__global__ void quick_divisions(const int64_t* __restrict__ values, int64_t* __restrict__ output,
                                int64_t n, int64_t divisor) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    output[i] = quick_div(values[i], divisor);
  }
}
__global__ void divisions(const int64_t* __restrict__ values, int64_t* __restrict__ output,
                          int64_t n, int64_t divisor) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    output[i] = ceil_div(values[i], divisor);
  }
}

template <typename scalar_t>
__global__ void extremes(scalar_t* __restrict__ output) {
  if (thread_index() > 0) return;
  output[0] = limits<scalar_t>::lowest();
  output[1] = limits<scalar_t>::highest();
}

// Products and sums that each round once, so that no compiler fuses them.
template <typename scalar_t>
__global__ void rounding(const scalar_t* __restrict__ input, scalar_t* __restrict__ output,
                         int64_t n) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    scalar_t a = input[3 * i], b = input[3 * i + 1], c = input[3 * i + 2];
    output[3 * i] = add_rn(mul_rn(a, b), c);
    output[3 * i + 1] = fma_rn(a, b, c);
    output[3 * i + 2] = div_rn(sub_rn(a, b), c);
  }
}

// values[i] / divisors[i].
template <typename index_t>
__global__ void quotients(const int64_t* __restrict__ values, const int64_t* __restrict__ divisors,
                          const int64_t* __restrict__ magic, int64_t* __restrict__ output,
                          int64_t n) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    divisor<index_t> by(divisors[i], magic[i]);
    output[i] = by.quotient(static_cast<index_t>(values[i]));
  }
}

// The sums high[i] + low[i] divided by divisors[i], with divisions and with a reciprocal.
template <typename acc_t>
__global__ void divided_sums(const acc_t* __restrict__ high, const acc_t* __restrict__ low,
                             const acc_t* __restrict__ divisors,
                             const double* __restrict__ reciprocals, acc_t* __restrict__ divided,
                             acc_t* __restrict__ quickly, bool* __restrict__ quick, int64_t n) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    compensated_sum<acc_t> sum = {high[i], low[i]};
    divided[i] = sum.divided_by(divisors[i]);
    quickly[i] = sum.divided_by(divisors[i], static_cast<acc_t>(reciprocals[i]));
    quick[i] = sum.divides_quickly();
  }
}

template <typename acc_t>
__global__ void compensated(const acc_t* __restrict__ values, acc_t* __restrict__ total,
                            acc_t* __restrict__ shares, int64_t n, double divisor) {
  compensated_sum<acc_t> sum = {}, sum_of_shares = {};
  acc_t by = static_cast<acc_t>(divisor);
  acc_t reciprocal = div_rn(static_cast<acc_t>(1), by);
  for (int64_t i = 0; i < n; ++i) {
    sum.add(values[i]);
    sum_of_shares.add_share(values[i], by, reciprocal);
  }
  total[0] = sum.rounded();
  shares[0] = sum_of_shares.rounded();
  shares[1] = sum.divided_by(by);
}

// Each thread adds a pair at its target; those of a warp may add theirs among themselves.
__global__ void sums_in_warps(const int64_t* __restrict__ targets,
                              const int64_t* __restrict__ pairs, int64_t* __restrict__ sums,
                              int64_t n, bool together) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t pair[2] = {pairs[2 * i], pairs[2 * i + 1]};
    add_in_warp(sums + 2 * targets[i], pair, together);
  }
}

__global__ void look_back(int32_t* __restrict__ words, int64_t* __restrict__ found, int64_t tile,
                          int64_t count) {
  publish_count(words, 1, tile, static_cast<int32_t>(count));
  *found = count_before(words, 1, tile, static_cast<int32_t>(count));
}

__global__ void scaled_two_ways(const float* __restrict__ addends,
                                const int64_t* __restrict__ powers, int64_t* __restrict__ in_double,
                                int64_t* __restrict__ by_shift, int64_t n) {
  using part = accumulator_detail::component<float>;
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    uint64_t word = part::F::to_bits(addends[i]);
    int exponent = part::exponent_of(word);
    uint64_t fraction = part::fraction_of(word);
    uint64_t significand = exponent != 0 ? fraction | (uint64_t(1) << 23) : fraction;
    int shift = static_cast<int>(powers[i]) + (exponent != 0 ? exponent : 1) - part::F::bias - 23;
    in_double[i] = part::scaled_in_double(addends[i], powers[i]);
    by_shift[i] =
        part::scaled_by_shift(static_cast<uint32_t>(significand), part::negative(word), shift);
  }
}

__global__ void shifted_right(const int64_t* __restrict__ values,
                              const int64_t* __restrict__ shifts, int64_t* __restrict__ output,
                              int64_t n) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    output[i] = static_cast<int64_t>(accumulator_detail::shift_right_rn(
        static_cast<uint64_t>(values[i]), static_cast<int>(shifts[i])));
  }
}
