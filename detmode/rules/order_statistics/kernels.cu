// The value of a rank in each slice, and the smallest index that holds it.
//
// Values are compared as radix keys, whole numbers in the same order. A selection fixes the key of
// the answer digit by digit, from the top: it counts the keys that agree with what is fixed so far,
// by their next digit. Counts and minima of integers do not depend on the order of threads.
#include "index.cuh"
#include "ordered.cuh"

constexpr int64_t MEDIAN = 0, NANMEDIAN = 1;

// The rank that is asked for, from 0, in a slice of n elements of which `nans` are NaN. For
// anything but a median it is k - 1.
static __device__ __forceinline__ int64_t rank_of(int64_t kind, int64_t k, int64_t n,
                                                  int64_t nans) {
  if (kind == MEDIAN) return nans > 0 ? n - 1 : (n - 1) / 2;
  if (kind == NANMEDIAN) return nans == n ? 0 : (n - nans - 1) / 2;
  return k - 1;
}

// What a slice answers with: the value of `key`, or the very NaN that stands at the index.
template <typename scalar_t>
static __device__ __forceinline__ scalar_t answer(typename radix_key<scalar_t>::type key,
                                                  scalar_t at_index) {
  return radix_key<scalar_t>::nan(key) ? at_index : radix_key<scalar_t>::value_of(key);
}

// Short slices: a thread each, which keeps the n <= capacity keys in registers and takes digits of
// one bit. `input` lies as [outer, n, inner], the results as [outer, inner].
template <typename scalar_t, int capacity>
__global__ void select_in_thread(const scalar_t* __restrict__ input, scalar_t* __restrict__ values,
                                 int64_t* __restrict__ indices, int64_t slices, int64_t n,
                                 int64_t inner, int64_t kind, int64_t k) {
  using key = radix_key<scalar_t>;
  using key_t = typename key::type;
  for (int64_t slice = thread_index(); slice < slices; slice += thread_count()) {
    int64_t outer = quick_div(slice, inner);
    const scalar_t* first = input + outer * n * inner + (slice - outer * inner);
    const scalar_t* next = first;
    // What is not there stands behind everything, and so changes no rank that is asked for.
    key_t keys[capacity];
    int count = static_cast<int>(n), nans = 0;
#pragma unroll
    for (int i = 0; i < capacity; ++i) {
      keys[i] = static_cast<key_t>(~key_t(0));
      if (i < count) {
        keys[i] = key::of(*next);
        nans += key::nan(keys[i]) ? 1 : 0;
        next += inner;
      }
    }
    int left = static_cast<int>(rank_of(kind, k, n, nans));
    key_t fixed = 0;
#pragma unroll 1
    for (int bit = key::bits - 1; bit >= 0; --bit) {
      int below = 0;
#pragma unroll
      for (int i = 0; i < capacity; ++i) below += keys[i] >> bit == fixed >> bit ? 1 : 0;
      if (left >= below) {
        left -= below;
        fixed = static_cast<key_t>(fixed | key_t(1) << bit);
      }
    }
    int index = 0;
#pragma unroll
    for (int i = capacity - 1; i >= 0; --i) {
      if (key::merged(keys[i]) == key::merged(fixed)) index = i;
    }
    values[slice] = answer<scalar_t>(fixed, first[index * inner]);
    indices[slice] = index;
  }
}

// Digits of 8 bits. Neighbouring lanes count in different copies: the top digits of floats are few,
// and atomics on one address queue up.
constexpr int DIGITS = 256;
constexpr int COPIES = 4;

// Where a digit's copies begin. A lane of choose_digit reads eight digits; with a pack of padding
// behind them the lanes' reads of 16 bytes meet in no bank.
static __device__ __forceinline__ int counts_of(int digit) {
  return (digit + (digit >> 3)) * COPIES;
}
constexpr int COUNTS = (DIGITS + DIGITS / 8) * COPIES;

// Counts by digit what agrees with `fixed` in the bits `above` the digit at `shift`.
template <typename key_t>
static __device__ __forceinline__ void count_digit(uint32_t* counts, key_t key, key_t fixed,
                                                   key_t above, int shift) {
  if (((key ^ fixed) & above) != 0) return;
  int digit = static_cast<int>(key >> shift) & (DIGITS - 1);
  atomicAdd(counts + counts_of(digit) + static_cast<int>(threadIdx.x) % COPIES, 1u);
}

// One warp: the digit in which the key of rank `left` lies, and its rank within that digit.
// `count(digit)` tells how many keys have it. Every lane gets the result, and may write what
// another has counted.
template <typename Count>
static __device__ __forceinline__ int choose_digit(Count count, int64_t& left) {
  constexpr int per_lane = DIGITS / 32;
  int lane = static_cast<int>(threadIdx.x) % 32;
  int64_t counts[per_lane], sum = 0;
#pragma unroll
  for (int d = 0; d < per_lane; ++d) {
    counts[d] = count(lane * per_lane + d);
    sum += counts[d];
  }
  int64_t up_to = sum;
  for (int delta = 1; delta < 32; delta *= 2) {
    int64_t before = __shfl_up_sync(0xffffffffu, up_to, delta);
    if (lane >= delta) up_to += before;
  }
  // The first lane whose digits reach beyond the rank; one does.
  unsigned int reach = __ballot_sync(0xffffffffu, up_to > left);
  int chosen = __ffs(static_cast<int>(reach)) - 1;
  int64_t rest = left - (up_to - sum);
  int digit = lane * per_lane;
#pragma unroll
  for (int d = 0; d < per_lane - 1; ++d) {
    if (digit == lane * per_lane + d && rest >= counts[d]) {
      rest -= counts[d];
      ++digit;
    }
  }
  // Shuffles and votes do not order memory.
  __syncwarp();
  left = __shfl_sync(0xffffffffu, rest, chosen);
  return __shfl_sync(0xffffffffu, digit, chosen);
}

static __device__ __forceinline__ uint32_t total_of(const uint32_t* counts, int digit) {
  uint32_t total = 0;
  for (int copy = 0; copy < COPIES; ++copy) total += counts[counts_of(digit) + copy];
  return total;
}

// Rows of n < 2^31 elements: a block each. Where `cached`, the keys stay in shared memory and the
// row is read once; otherwise once for each digit, and once for the index. Without the bounds the
// compiler may take more registers than a block of 1024 threads can have.
template <typename scalar_t>
__global__ void __launch_bounds__(1024)
    select_in_block(const scalar_t* __restrict__ input, scalar_t* __restrict__ values,
                    int64_t* __restrict__ indices, int64_t rows, int64_t n, int64_t kind, int64_t k,
                    bool cached) {
  using key = radix_key<scalar_t>;
  using key_t = typename key::type;
  __shared__ uint32_t counts[COUNTS];
  __shared__ uint32_t nans;
  __shared__ int64_t rank;
  __shared__ int chosen, smallest;
  key_t* cache = dynamic_shared<key_t>();
  int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const scalar_t* first = input + row * n;
    key_t fixed = 0, above = 0;
    for (int shift = key::bits - 8; shift >= 0; shift -= 8) {
      bool reads = above == 0;
      // What was counted before is used up: the last row's index, the last digit.
      __syncthreads();
      for (int i = thread; i < COUNTS; i += threads) counts[i] = 0;
      if (thread == 0 && reads) {
        nans = 0;
        smallest = static_cast<int>(n);
      }
      __syncthreads();
      for (int64_t i = thread; i < n; i += threads) {
        // A thread writes and reads its own elements of the cache only.
        key_t element = cached && !reads ? cache[i] : key::of(first[i]);
        if (cached && reads) cache[i] = element;
        if (reads && key::nan(element)) atomicAdd(&nans, 1u);
        count_digit(counts, element, fixed, above, shift);
      }
      __syncthreads();
      if (thread < 32) {
        int64_t left = reads ? rank_of(kind, k, n, nans) : rank;
        int digit = choose_digit([&](int d) { return total_of(counts, d); }, left);
        if (thread == 0) {
          chosen = digit;
          rank = left;
        }
      }
      __syncthreads();
      fixed = static_cast<key_t>(fixed | static_cast<key_t>(chosen) << shift);
      above = static_cast<key_t>(above | static_cast<key_t>(DIGITS - 1) << shift);
    }
    for (int64_t i = thread; i < n; i += threads) {
      if (key::merged(cached ? cache[i] : key::of(first[i])) != key::merged(fixed)) continue;
      // Of 32 bits: in shared memory a GPU has no such atomic of 64, but a loop.
      atomic_min(&smallest, static_cast<int>(i));
      break;
    }
    __syncthreads();
    if (thread == 0) {
      values[row] = answer<scalar_t>(fixed, first[smallest]);
      indices[row] = smallest;
    }
  }
}

// Few long rows: `chunks` blocks each, and a launch for each step. Per row, `prefix` is the key's
// fixed digits, `left` the rank among the keys that agree with them, `counts` the DIGITS counts and
// the number of NaNs; all start at zero.
constexpr int SLOTS = DIGITS + 1;
// Elements that a thread reads at once: their loads do not wait for one another.
constexpr int BATCH = 4;

template <typename scalar_t>
__global__ void select_count(const scalar_t* __restrict__ input, const int64_t* __restrict__ prefix,
                             int64_t* __restrict__ counts, int64_t n, int64_t chunks,
                             int64_t shift) {
  using key = radix_key<scalar_t>;
  using key_t = typename key::type;
  __shared__ uint32_t block_counts[COUNTS];
  __shared__ uint32_t nans;
  int64_t row = blockIdx.x / chunks, chunk = blockIdx.x - row * chunks;
  int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int i = thread; i < COUNTS; i += threads) block_counts[i] = 0;
  if (thread == 0) nans = 0;
  __syncthreads();
  key_t fixed = static_cast<key_t>(prefix[row]);
  bool reads = shift + 8 == key::bits;
  // Shifted in two steps: by all its bits a word must not be shifted.
  key_t above = static_cast<key_t>(~uint64_t(0) << shift << 8);
  int64_t step = chunks * threads;
  for (int64_t i = chunk * threads + thread; i < n; i += BATCH * step) {
    key_t elements[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      elements[b] = key::of(input[row * n + min_index(i + b * step, n - 1)]);
    }
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      if (i + b * step >= n) break;
      if (reads && key::nan(elements[b])) atomicAdd(&nans, 1u);
      count_digit(block_counts, elements[b], fixed, above, static_cast<int>(shift));
    }
  }
  __syncthreads();
  for (int d = thread; d < DIGITS; d += threads) {
    int64_t total = total_of(block_counts, d);
    if (total > 0) atomic_add(counts + row * SLOTS + d, total);
  }
  if (thread == 0 && nans > 0) atomic_add(counts + row * SLOTS + DIGITS, int64_t(nans));
}

// One warp for each row: fixes a digit, and clears the counts for the next one.
template <typename scalar_t>
__global__ void select_digit(int64_t* __restrict__ counts, int64_t* __restrict__ prefix,
                             int64_t* __restrict__ left, int64_t n, int64_t kind, int64_t k,
                             int64_t shift) {
  using key = radix_key<scalar_t>;
  int64_t row = blockIdx.x;
  int64_t* row_counts = counts + row * SLOTS;
  int64_t rank = shift + 8 == key::bits ? rank_of(kind, k, n, row_counts[DIGITS]) : left[row];
  int digit = choose_digit([&](int d) { return row_counts[d]; }, rank);
  for (int d = static_cast<int>(threadIdx.x); d < DIGITS; d += 32) row_counts[d] = 0;
  if (threadIdx.x == 0) {
    prefix[row] |= static_cast<int64_t>(static_cast<uint64_t>(digit) << shift);
    left[row] = rank;
  }
}

// `indices` start at n.
template <typename scalar_t>
__global__ void select_index(const scalar_t* __restrict__ input, const int64_t* __restrict__ prefix,
                             int64_t* __restrict__ indices, int64_t n, int64_t chunks) {
  using key = radix_key<scalar_t>;
  int64_t row = blockIdx.x / chunks, chunk = blockIdx.x - row * chunks;
  auto wanted = key::merged(static_cast<typename key::type>(prefix[row]));
  int64_t step = chunks * blockDim.x;
  for (int64_t i = chunk * blockDim.x + threadIdx.x; i < n; i += BATCH * step) {
    // A stale read only costs a step: what comes is larger still.
    if (i >= load_relaxed(indices + row)) break;
    int64_t match = n;
#pragma unroll
    for (int b = BATCH - 1; b >= 0; --b) {
      int64_t at = min_index(i + b * step, n - 1);
      if (key::merged(key::of(input[row * n + at])) == wanted) match = at;
    }
    if (match == n) continue;
    atomic_min(indices + row, match);
    break;
  }
}

template <typename scalar_t>
__global__ void select_value(const scalar_t* __restrict__ input, const int64_t* __restrict__ prefix,
                             const int64_t* __restrict__ indices, scalar_t* __restrict__ values,
                             int64_t rows, int64_t n) {
  for (int64_t row = thread_index(); row < rows; row += thread_count()) {
    auto wanted = static_cast<typename radix_key<scalar_t>::type>(prefix[row]);
    values[row] = answer<scalar_t>(wanted, input[row * n + indices[row]]);
  }
}
