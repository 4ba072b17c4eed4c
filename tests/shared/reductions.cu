// Launches of product.cuh and ordered.cuh, for their tests.
#include "index.cuh"
#include "ordered.cuh"
#include "product.cuh"

// Each row's product: its first `split` factors, then the others, then the two.
template <typename scalar_t>
__global__ void row_product(const scalar_t* __restrict__ values, scalar_t* __restrict__ output,
                            int64_t rows, int64_t columns, int64_t split) {
  using product = product_t<scalar_t>;
  for (int64_t row = thread_index(); row < rows; row += thread_count()) {
    const scalar_t* value = values + row * columns;
    product first = product::of(value[0]), second = product::of(scalar_t(1));
    for (int64_t i = 1; i < split; ++i) first = first.times(product::of(value[i]));
    for (int64_t i = split; i < columns; ++i) second = second.times(product::of(value[i]));
    output[row] = first.times(second).template result<scalar_t>();
  }
}

template <typename scalar_t>
__global__ void extremum_observe(const int64_t* __restrict__ index,
                                 const scalar_t* __restrict__ values,
                                 typename extremum<scalar_t>::key_t* __restrict__ keys, int64_t n,
                                 bool largest) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    extremum<scalar_t>::observe(keys, index[i], values[i], largest);
  }
}

template <typename scalar_t>
__global__ void extremum_finish(const typename extremum<scalar_t>::key_t* __restrict__ keys,
                                scalar_t* __restrict__ output, int64_t n, bool largest) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    if (extremum<scalar_t>::any(keys, i)) {
      output[i] = extremum<scalar_t>::finish(keys, i, largest);
    }
  }
}

// The key of each value, less the smallest int64, so that keys compare as int64; what the key gives
// back; whether it is a NaN's; and the key with zeros merged.
template <typename scalar_t>
__global__ void radix_keys(const scalar_t* __restrict__ input, int64_t* __restrict__ keys,
                           scalar_t* __restrict__ back, bool* __restrict__ nans,
                           int64_t* __restrict__ merged, int64_t n) {
  constexpr uint64_t smallest = uint64_t(1) << 63;
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    auto key = radix_key<scalar_t>::of(input[i]);
    keys[i] = static_cast<int64_t>(static_cast<uint64_t>(key) ^ smallest);
    back[i] = radix_key<scalar_t>::value_of(key);
    nans[i] = radix_key<scalar_t>::nan(key);
    merged[i] =
        static_cast<int64_t>(static_cast<uint64_t>(radix_key<scalar_t>::merged(key)) ^ smallest);
  }
}
