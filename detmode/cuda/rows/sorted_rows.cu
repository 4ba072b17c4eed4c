// Sums and products of rows by destination: the rows sorted by destination (sort.cu), reduced piece
// by piece (sorted_rows or wide_rows), and then the pieces' carries (sorted_carries).
#include "block_reduce.cuh"
#include "row_runs.cuh"
#include "row_shape.cuh"

// Sorted rows, in one group of columns.
template <typename row_t, int width, typename key_t>
struct sorted_columns : keyed_rows<row_t, width, key_t> {
  using runs_t = neighbours<row_t, width>;
  using pack_t = typename runs_t::pack_t;
  const int32_t* order;
  const typename row_t::scalar_t* source;
  scaling alpha;
  __device__ __forceinline__ pack_t load(int64_t row) const {
    return *reinterpret_cast<const pack_t*>(source + order[row] * this->out.inner);
  }
  __device__ __forceinline__ runs_t value(const pack_t& pack) const {
    return runs_t::read(pack, alpha);
  }
};

// The first launch of row_runs.cuh's order: the rows themselves. `order` is the stable sort of the
// index, `keys` its values.
template <typename row_t, int width, typename key_t>
__global__ void sorted_rows(const key_t* __restrict__ keys, const int32_t* __restrict__ order,
                            const typename row_t::scalar_t* __restrict__ source,
                            typename row_t::scalar_t* __restrict__ out,
                            double* __restrict__ carries, row_shape shape, bool include_self,
                            scaling alpha) {
  auto* carried = reinterpret_cast<neighbours<row_t, width>*>(carries);
  int64_t rows = shape.rows, inner = shape.inner;
  int64_t groups = shape.outer * inner / width, all = segment_pieces<PIECE>(rows) * groups;
  for (int64_t i = thread_index(); i < all; i += thread_count()) {
    int64_t piece = quick_div(i, groups), group = i - piece * groups, column = group * width;
    auto* from = column_of(source, column, rows, inner);
    auto* to = column_of(out, column, shape.size, inner);
    row_store<row_t, width> store{to, inner, include_self};
    keyed_rows<row_t, width, key_t> keyed{keys, store, {carried, groups, group}};
    sorted_columns<row_t, width, key_t> columns{keyed, order, from, alpha};
    segment_piece<PIECE>(piece, rows, columns);
  }
}

// The first launch for wide rows. A thread takes a share of a piece and 16 bytes of columns. Of two
// blocks on a multiprocessor one loads while the other adds.
constexpr int SHARE = 8;

// One store of 16 bytes. Of lanes that it has computed, the compiler makes one for each word.
template <typename T>
static __device__ __forceinline__ void store_at_once(T* to, const T& value) {
  static_assert(sizeof(T) == 16, "16 bytes");
#ifdef __CUDA_ARCH__
  words_of<T> words;
  words.value = value;
  const int32_t* word = words.word;
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(global_address(to)), "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
               : "memory");
#else
  *to = value;
#endif
}

// Wide rows, in one group of columns.
template <typename row_t, int width>
struct wide_columns {
  using value_t = neighbours<row_t, width>;
  using pack_t = typename value_t::pack_t;
  // Held as words: of two lanes in one, the compiler would take each apart as soon as it is loaded.
  using words_t = words_of<pack_t>;
  // A destination's initial values are loaded with its first row, not after the last one.
  struct row_and_initial {
    words_t row, initial;
  };
  const int32_t* order;
  const char* source;
  char* out;
  uint32_t stride;  // the bytes of a row
  bool include_self;
  scaling alpha;
  row_carries<value_t> carries;
  // A product of 32 bits by 32 is one instruction.
  __device__ __forceinline__ int64_t offset(int32_t row) const {
    return static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(row)) * stride);
  }
  static __device__ __forceinline__ words_t words_at(const char* address) {
    using loaded_t = pack_of<int32_t, words_t::count>;
    loaded_t loaded = *reinterpret_cast<const loaded_t*>(address);
    words_t words;
    for (int w = 0; w < words_t::count; ++w) words.word[w] = loaded.lane[w];
    return words;
  }
  __device__ __forceinline__ int32_t place(uint32_t row) const { return order[row]; }
  __device__ __forceinline__ row_and_initial load(int32_t place, int32_t key, bool begins) const {
    row_and_initial loaded;
    loaded.row = words_at(source + offset(place));
    if (begins) loaded.initial = words_at(out + offset(key));
    return loaded;
  }
  __device__ __forceinline__ value_t value(const row_and_initial& loaded) const {
    return value_t::read(loaded.row.value, alpha);
  }
  __device__ __forceinline__ void store(int32_t key, const value_t& runs,
                                        const row_and_initial& loaded) const {
    pack_t sums;
    for (int k = 0; k < width; ++k) {
      sums.lane[k] = runs.lane[k].onto(loaded.initial.value.lane[k], include_self, 0);
    }
    store_at_once(reinterpret_cast<pack_t*>(out + offset(key)), sums);
  }
  __device__ __forceinline__ void carry(int64_t slot, const value_t& runs) const {
    carries[slot] = runs;
  }
};

template <typename row_t, int width, typename key_t>
__global__ void __launch_bounds__(256, 2)
    wide_rows(const key_t* __restrict__ keys, const int32_t* __restrict__ order,
              const typename row_t::scalar_t* __restrict__ source,
              typename row_t::scalar_t* __restrict__ out, double* __restrict__ carries,
              row_shape shape, bool include_self, scaling alpha) {
  auto* carried = reinterpret_cast<neighbours<row_t, width>*>(carries);
  int64_t rows = shape.rows, inner = shape.inner;
  int64_t groups = shape.outer * inner / width, all = ceil_div(rows, SHARE) * groups;
  for (int64_t i = thread_index(); i < all; i += thread_count()) {
    int64_t s = quick_div(i, groups), group = i - s * groups, column = group * width;
    auto* from = reinterpret_cast<const char*>(column_of(source, column, rows, inner));
    auto* to = reinterpret_cast<char*>(column_of(out, column, shape.size, inner));
    auto stride = static_cast<uint32_t>(inner * sizeof(typename row_t::scalar_t));
    wide_columns<row_t, width> columns{
        order, from, to, stride, include_self, alpha, {carried, groups, group}};
    segment_share<PIECE, SHARE>(static_cast<uint32_t>(s), static_cast<uint32_t>(rows), keys,
                                columns);
  }
}

// The row that a carry begins or ends at: slot 2 * p holds the first run of piece p of the level
// below, and slot 2 * p + 1 its last one. Of 64 carries half are of 32 pieces, so pieces have
// 64 * 32^(level - 1) rows. What would be behind the last carry is the last row.
static __device__ __forceinline__ int64_t row_of_carry(int64_t slot, int64_t level, int64_t rows) {
  static_assert(PIECE == 64, "rows of a piece are a power of two");
  int64_t is_last = slot & 1, piece = slot >> 1;
  return min_index(((piece + is_last) << (5 * level + 1)) - is_last, rows - 1);
}

// The carries of a level, in one group of columns.
template <typename row_t, int width, typename key_t, bool wide>
struct carried_columns {
  using value_t = neighbours<row_t, width>;
  using initial_t = typename row_store<row_t, width>::initial_t;
  const key_t* keys;
  int64_t level, rows;
  row_store<row_t, width> out;
  row_carries<value_t> below, carries;
  // Of wide rows -1 where nothing is carried.
  __device__ __forceinline__ key_t key(int64_t slot) const {
    if (!wide) return keys[row_of_carry(slot, level, rows)];
    int64_t lowest = row_of_carry(slot, level - 1, 2 * segment_pieces<PIECE>(rows));
    int64_t border = (lowest + 1) / 2 * PIECE;
    return segment_carries<PIECE>(border, rows, keys) ? keys[border] : key_t(-1);
  }
  __device__ __forceinline__ bool is_part(key_t destination) const {
    return !wide || destination >= 0;
  }
  __device__ __forceinline__ const value_t& value(int64_t slot) const { return below[slot]; }
  __device__ __forceinline__ initial_t initial(key_t destination) const {
    return out.initial(destination);
  }
  // The first place in `keys` from `low` on that holds `bound` or more; at most `high`.
  __device__ __forceinline__ int64_t place_of(int64_t bound, int64_t low, int64_t high) const {
    while (low < high) {
      int64_t middle = (low + high) / 2;
      bool below_bound = keys[middle] < bound;
      low = below_bound ? middle + 1 : low;
      high = below_bound ? high : middle;
    }
    return low;
  }
  // The rows of a mean: those of its first carry begin in that one's piece, and those of its last
  // one end in that one's.
  __device__ __forceinline__ int64_t rows_of(key_t destination, int64_t first, int64_t end) const {
    if (!row_t::is_mean) return 0;
    auto row = [&](int64_t slot) { return row_of_carry(slot, level, rows); };
    int64_t from = place_of(destination, row(first & ~1), row(first)), last = end - 1;
    int64_t bound = static_cast<int64_t>(destination) + 1;
    return place_of(bound, row(last) + 1, row(last | 1) + 1) - from;
  }
  __device__ __forceinline__ void store(key_t destination, const value_t& runs,
                                        const initial_t& initial, int64_t first,
                                        int64_t end) const {
    out.put(destination, runs, rows_of(destination, first, end), initial);
  }
  __device__ __forceinline__ void carry(int64_t slot, key_t, const value_t& runs) const {
    carries[slot] = runs;
  }
};

// The launches after it reduce the carries level by level, until one piece holds them all. Those of
// a level lie behind those of the level below. `owned` is how many groups of columns a block has to
// itself, in which it goes on through all levels from `level` on; 0: the launch is one level, of
// all groups.
template <typename row_t, int width, typename key_t, bool wide = false>
__global__ void __launch_bounds__(512)
    sorted_carries(const key_t* __restrict__ keys, typename row_t::scalar_t* __restrict__ out,
                   double* __restrict__ carries, row_shape shape, bool include_self, int64_t level,
                   int64_t owned) {
  using runs_t = neighbours<row_t, width>;
  using columns_t = carried_columns<row_t, width, key_t, wide>;
  runs_t* read = reinterpret_cast<runs_t*>(carries);
  int64_t all = shape.outer * shape.inner / width, n = 2 * segment_pieces<PIECE>(shape.rows);
  for (int64_t below = 1; below < level; ++below) {
    read += n * all;
    n = 2 * segment_pieces<PIECE>(n);
  }
  int64_t first_group = blockIdx.x * owned;
  int64_t groups = owned > 0 ? min_index(owned, all - first_group) : all;
  int64_t begin = owned > 0 ? threadIdx.x : thread_index();
  int64_t step = owned > 0 ? blockDim.x : thread_count();
  for (;; ++level) {
    runs_t* carried = read + n * all;
    int32_t slots = static_cast<int32_t>(n);
    // A thread for each border of pieces, at which mostly one run begins: before it, to end behind.
    for (int64_t i = begin; i < (n / 2 + 1) * groups; i += step) {
      int64_t border = quick_div(i, groups), group = first_group + (i - border * groups);
      auto* to = column_of(out, group * width, shape.size, shape.inner);
      row_store<row_t, width> store{to, shape.inner, include_self};
      row_carries<runs_t> below{read, all, group}, above{carried, all, group};
      columns_t columns{keys, level, shape.rows, store, below, above};
      int32_t behind = 2 * static_cast<int32_t>(border);
#pragma unroll 1
      for (int32_t slot = max(behind - 1, 0); slot <= min(behind, slots - 1); ++slot) {
        segment_run<PIECE>(slot, slots, columns);
      }
    }
    if (owned == 0 || n <= PIECE) return;
    __syncthreads();
    read = carried;
    n = 2 * segment_pieces<PIECE>(n);
  }
}
