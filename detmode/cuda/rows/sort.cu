// The stable sort of an index: the positions that it names in ascending order, and where in it each
// of them stands.
//
// A radix sort, the lowest digit first, of no more bits than the positions need. Up to TILE of them
// one block sorts by all digits. More are counted first, all digits in one launch; then each launch
// moves them by one digit: a block sorts its tile by it, and looks back for what is before the
// tile.
#include "look_back.cuh"
#include "scan.cuh"

// These are also in sort.py.
constexpr int THREADS = 1024;
constexpr int ITEMS = 8;
constexpr int TILE = THREADS * ITEMS;
constexpr int MOST_BITS = 9;

constexpr int MOST_PASSES = 7;  // of the 63 bits of a position
constexpr int DIGITS = 1 << MOST_BITS;
constexpr int WARPS = THREADS / 32;
static_assert(2 * DIGITS <= THREADS, "each digit has a thread, in half a block too");
static_assert(2 * WARPS * DIGITS <= 4 * TILE, "counts fit where the items are");

template <typename key_t>
static __device__ __forceinline__ int digit_of(key_t key, int64_t pass, int64_t width) {
  return static_cast<int>(key >> (pass * width)) & ((1 << width) - 1);
}

// How often each digit of each pass is there, into `counters`. Integer counts: any order gives the
// same.
__global__ void __launch_bounds__(THREADS)
    sort_count(const int64_t* __restrict__ index, int32_t* __restrict__ counters, int64_t n,
               int64_t size, int64_t width, int64_t passes, bool wraps) {
  constexpr int batch = 4;
  __shared__ int32_t counts[MOST_PASSES][DIGITS];
  for (int pass = 0; pass < passes; ++pass) {
    for (int d = threadIdx.x; d < DIGITS; d += blockDim.x) counts[pass][d] = 0;
  }
  __syncthreads();
  for (int64_t first = thread_index(); first < n; first += batch * thread_count()) {
    int64_t positions[batch];
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      int64_t i = min_index(first + b * thread_count(), n - 1);
      positions[b] = from_start(index[i], size, wraps);
    }
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      if (first + b * thread_count() >= n) break;
      for (int pass = 0; pass < passes; ++pass) {
        // The lanes of a warp that count the same add up in one instruction (ATOMS.POPC.INC).
        atomicAdd(&counts[pass][digit_of(positions[b], pass, width)], 1);
      }
    }
  }
  __syncthreads();
  for (int pass = 0; pass < passes; ++pass) {
    for (int d = threadIdx.x; d < DIGITS; d += blockDim.x) {
      if (counts[pass][d] > 0) atomic_add(counters + pass * DIGITS + d, counts[pass][d]);
    }
  }
}

// Where the positions with a digit begin in the sorted tile, and in all of them.
struct begins {
  int32_t in_tile, in_all;
};

// The sums over the threads before this one.
static __device__ __forceinline__ begins sums_before(begins counts) {
  __shared__ begins of_warp[WARPS];
  auto join = [](begins a, begins b) { return begins{a.in_tile + b.in_tile, a.in_all + b.in_all}; };
  int warp = threadIdx.x / 32;
  begins sums[1] = {counts};
  warp_scans(sums, join);
  if (threadIdx.x % 32 == 31) of_warp[warp] = sums[0];
  __syncthreads();
  begins before = {sums[0].in_tile - counts.in_tile, sums[0].in_all - counts.in_all};
  for (int w = 0; w < warp; ++w) before = join(of_warp[w], before);
  return before;
}

// The digits' width in bits, how many passes sort by one each, how many have, and the items of a
// thread.
struct digit_passes {
  int64_t width, passes, done, rounds;
};

// Sorts by the digit of one pass, or alone by those of all. The first launch reads `index`, which
// is checked here, where neighbouring threads read neighbours: no launch reads it again. Later ones
// read what the one before wrote.
//
// `counters`, null for a block alone: for each pass the counts, then for each the counter of its
// tiles, then for each the words of look_back.cuh, one for each tile and digit.
template <typename key_t>
__global__ void __launch_bounds__(THREADS)
    sort_tiles(const int64_t* __restrict__ index, const key_t* __restrict__ keys_read,
               const int32_t* __restrict__ order_read, key_t* __restrict__ keys,
               int32_t* __restrict__ order, int32_t* __restrict__ counters, int64_t n, int64_t size,
               digit_passes digits, bool wraps) {
  int64_t width = digits.width, passes = digits.passes, done = digits.done;
  __shared__ __align__(16) union {
    uint16_t counts[WARPS][DIGITS];
    int32_t words[TILE];
  } memory;
  __shared__ int32_t shift[DIGITS];
  bool alone = counters == nullptr;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  // While digits are counted, this one is the thread's.
  int digit = threadIdx.x;
  bool has_digit = digit < DIGITS;
  int32_t *counted = nullptr, *words = nullptr;
  int64_t tile = 0;
  if (!alone) {
    counted = counters + done * DIGITS + digit;
    words = counters + passes * (DIGITS + 1) + done * gridDim.x * DIGITS + digit;
    tile = draw_tile(counters + passes * DIGITS + done);
  }

  // A warp has neighbouring items, 32 a round: item `first` + 32 * r of the tile is this lane's.
  int rounds = static_cast<int>(digits.rounds), most = rounds * blockDim.x;
  int64_t before_tile = tile * most;
  int items = static_cast<int>(min_index(n - before_tile, most));
  int first = warp * rounds * 32 + lane;
  auto has = [&](int r) { return r < rounds && first + 32 * r < items; };
  key_t key[ITEMS];
  int32_t position[ITEMS];
  bool in_range = true;
#pragma unroll
  for (int r = 0; r < ITEMS; ++r) {
    if (!has(r)) continue;
    int64_t i = before_tile + first + 32 * r;
    if (index == nullptr) {
      key[r] = keys_read[i];
      position[r] = order_read[i];
    } else {
      int64_t named = from_start(index[i], size, wraps);
      in_range = in_range && named >= 0 && named < size;
      key[r] = static_cast<key_t>(named);
      position[r] = static_cast<int32_t>(i);
    }
  }
  DETMODE_ASSERT(in_range);

  int32_t total;
  begins begin;
  int64_t pass = done;
  do {
    // How many items of the warp have the digit and come before this lane's.
    int place[ITEMS];
    __syncthreads();
    using zeros_t = pack_of<int32_t, 4>;
    auto* zeros = reinterpret_cast<zeros_t*>(memory.counts[warp]);
#pragma unroll
    for (int i = 0; i < DIGITS / 8; i += 32) zeros[i + lane] = zeros_t{};
    __syncwarp();
#pragma unroll
    for (int r = 0; r < ITEMS; ++r) {
      if (r >= rounds || first - lane + 32 * r >= items) break;
      // What is behind the last item goes behind all of them.
      int d = has(r) ? digit_of(key[r], pass, width) : DIGITS - 1;
      unsigned int alike = 0xffffffffu;
#pragma unroll
      for (int bit = 0; bit < MOST_BITS; ++bit) {
        int set = d & (1 << bit);
        unsigned int those = __ballot_sync(0xffffffffu, set);
        alike &= set ? those : ~those;
      }
      int met = memory.counts[warp][d], before = __popc(alike & ((1u << lane) - 1));
      __syncwarp();
      if (before == 0) memory.counts[warp][d] = static_cast<uint16_t>(met + __popc(alike));
      __syncwarp();
      place[r] = met + before;
    }
    __syncthreads();

    total = 0;
    if (has_digit) {
      for (int w = 0; w < warps; ++w) total += memory.counts[w][digit];
      if (!alone) publish_count(words, DIGITS, tile, total);
    }
    begin = sums_before(begins{total, has_digit && !alone ? *counted : 0});
    if (has_digit) {
      int of_warp = begin.in_tile;
      for (int w = 0; w < warps; ++w) {
        int count = memory.counts[w][digit];
        memory.counts[w][digit] = static_cast<uint16_t>(of_warp);
        of_warp += count;
      }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ITEMS; ++r) {
      if (has(r)) place[r] += memory.counts[warp][digit_of(key[r], pass, width)];
    }

    // Each item goes to its place, and the thread goes on with what lies at its own.
    auto exchange = [&](int32_t (&word)[ITEMS]) {
      __syncthreads();
#pragma unroll
      for (int r = 0; r < ITEMS; ++r) {
        if (has(r)) memory.words[place[r]] = word[r];
      }
      __syncthreads();
#pragma unroll
      for (int r = 0; r < ITEMS; ++r) {
        if (has(r)) word[r] = memory.words[first + 32 * r];
      }
    };
    exchange(position);
    words_of<key_t> split[ITEMS];
#pragma unroll
    for (int r = 0; r < ITEMS; ++r) split[r].value = key[r];
#pragma unroll
    for (int w = 0; w < words_of<key_t>::count; ++w) {
      int32_t word[ITEMS];
#pragma unroll
      for (int r = 0; r < ITEMS; ++r) word[r] = split[r].word[w];
      exchange(word);
#pragma unroll
      for (int r = 0; r < ITEMS; ++r) split[r].word[w] = word[r];
    }
#pragma unroll
    for (int r = 0; r < ITEMS; ++r) key[r] = split[r].value;
  } while (alone && ++pass < passes);

  if (has_digit) {
    shift[digit] =
        alone ? 0 : begin.in_all - begin.in_tile + count_before(words, DIGITS, tile, total);
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < ITEMS; ++r) {
    if (!has(r)) continue;
    int to = first + 32 * r + shift[digit_of(key[r], done, width)];
    keys[to] = key[r];
    order[to] = position[r];
  }
}
