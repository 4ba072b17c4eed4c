// Sums and products of rows by destination: index_add, index_put(accumulate=True), index_reduce,
// scatter_add, scatter_reduce.
//
// Two ways lead to sums: integers added in any order, in memory (observe, admit_self, accumulate,
// finish) or in shared memory (strips), and rows sorted by destination and added up piece by piece
// (sorted_rows or wide_rows, sorted_carries; few_rows where there is one piece). Products go the
// second way.
#include "accumulator.cuh"
#include "block_reduce.cuh"
#include "product.cuh"
#include "row_runs.cuh"
#include "row_shape.cuh"

// keys = keys * size + index: the row-major position of several indices, one index a launch.
// Where nothing is `before` it, the first index writes them. A negative index counts from the end
// where `wraps`.
__global__ void index_put_linearize(const int64_t* __restrict__ index, int64_t* __restrict__ keys,
                                    int64_t n, int64_t size, bool before, bool wraps) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t position = from_start(index[i], size, wraps);
    DETMODE_ASSERT(position >= 0 && position < size);
    keys[i] = before ? keys[i] * size + position : position;
  }
}

// The elements of a block: neighbours, in turns of one for each thread. Other blocks are elsewhere
// meanwhile, so that keys have mostly been raised when the next turn's addends ask for them.
struct share_of_block {
  int64_t begin, end;
  static __device__ __forceinline__ share_of_block of(int64_t n) {
    int64_t turns = quick_div(n - 1, thread_count()) + 1, size = turns * blockDim.x;
    return {blockIdx.x * size, min_index((blockIdx.x + 1) * size, n)};
  }
};

// Elements that a thread takes at once, a turn apart: each waits for its index and then for its
// destination's key, all of them together.
template <typename scalar_t, int together>
struct elements {
  int64_t destinations[together];
  opmath_t<scalar_t> addends[together];
  // From `first` on; where there are no more before the `end`, the last one again.
  static __device__ __forceinline__ elements read(const int64_t* index, const scalar_t* source,
                                                  int64_t first, int64_t end, bool by_row,
                                                  const row_shape& shape, scaling alpha) {
    named places[together];
    int64_t positions[together];
    scalar_t values[together];
    elements found;
#pragma unroll
    for (int k = 0; k < together; ++k) {
      int64_t i = min_index(first + k * blockDim.x, end - 1);
      places[k] = named_by(i, by_row, shape);
      positions[k] = index[places[k].place];
      values[k] = source[i];
    }
#pragma unroll
    for (int k = 0; k < together; ++k) {
      int64_t position = from_start(positions[k], shape.size, shape.wraps != 0);
      found.destinations[k] = destination_of(places[k], position, shape);
      found.addends[k] = addend(values[k], alpha);
    }
    return found;
  }
};

// Integer maxima: any order gives the same.
template <typename scalar_t, int together>
__global__ void index_add_observe(const int64_t* __restrict__ index,
                                  const scalar_t* __restrict__ source, int32_t* __restrict__ keys,
                                  int64_t n, bool by_row, row_shape shape, scaling alpha) {
  using sum_t = accumulator<scalar_t>;
  sum_t totals(keys, nullptr, 0);
  share_of_block share = share_of_block::of(n);
  for (int64_t i = share.begin + threadIdx.x; i < share.end; i += together * blockDim.x) {
    auto read =
        elements<scalar_t, together>::read(index, source, i, share.end, by_row, shape, alpha);
    typename sum_t::key_t seen[together];
#pragma unroll
    for (int k = 0; k < together; ++k) seen[k] = totals.seen(read.destinations[k]);
    // The last element changes no maximum when it comes again.
#pragma unroll
    for (int k = 0; k < together; ++k) {
      totals.raise(read.destinations[k], sum_t::key_of(read.addends[k]), seen[k]);
    }
  }
}

// The initial value joins the addends of each destination that has one. Where it does not count,
// 0.0 does, as in ATen, so that -0.0 is never the sum.
template <typename scalar_t>
__global__ void index_add_admit_self(const scalar_t* __restrict__ self, int32_t* __restrict__ keys,
                                     int64_t* __restrict__ sums, int64_t n, bool include_self,
                                     int64_t headroom) {
  accumulator<scalar_t> totals(keys, sums, headroom);
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    if (!totals.any(i)) continue;
    auto value = include_self ? to_opmath(self[i]) : opmath_t<scalar_t>(0);
    totals.observe(i, value);
    totals.add(i, value);
  }
}

// Integer additions: any order and grouping gives the same. Threads of one warp meet where no more
// than CROWDED_COLUMNS lie side by side.
template <typename scalar_t, bool crowded, int together>
__global__ void index_add_accumulate(const int64_t* __restrict__ index,
                                     const scalar_t* __restrict__ source,
                                     const int32_t* __restrict__ keys, int64_t* __restrict__ sums,
                                     int64_t* __restrict__ counts, int64_t n, bool by_row,
                                     row_shape shape, scaling alpha, int64_t headroom) {
  using sum_t = accumulator<scalar_t>;
  sum_t totals(keys, sums, headroom);
  int64_t in_whole_warps = n / WARP * WARP;
  share_of_block share = share_of_block::of(n);
  for (int64_t i = share.begin + threadIdx.x; i < share.end; i += together * blockDim.x) {
    auto read =
        elements<scalar_t, together>::read(index, source, i, share.end, by_row, shape, alpha);
    typename sum_t::key_t largest[together];
#pragma unroll
    for (int k = 0; k < together; ++k) largest[k] = totals.key(read.destinations[k]);
#pragma unroll
    for (int k = 0; k < together; ++k) {
      int64_t place = i + k * blockDim.x, destination = read.destinations[k];
      if (place >= share.end) break;
      bool met = crowded && place < in_whole_warps;
      totals.add_in_warp(largest[k], destination, read.addends[k], met);
      if (counts != nullptr) {
        int64_t one[1] = {1};
        add_in_warp(counts + destination, one, met);
      }
    }
  }
}

// The sum divided by the number of its addends, of which the initial value may be one.
template <typename scalar_t, typename space>
static __device__ __forceinline__ scalar_t finished_mean(const accumulator<scalar_t, space>& totals,
                                                         int64_t i, int64_t count,
                                                         bool include_self) {
  return from_opmath<scalar_t>(quotient(totals.finish_opmath(i), count + (include_self ? 1 : 0)));
}

template <typename scalar_t>
__global__ void index_add_finish(const int32_t* __restrict__ keys, const int64_t* __restrict__ sums,
                                 const int64_t* __restrict__ counts, scalar_t* __restrict__ out,
                                 int64_t n, bool include_self, int64_t headroom) {
  accumulator<scalar_t> totals(keys, sums, headroom);
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    if (!totals.any(i)) continue;
    out[i] =
        counts == nullptr ? totals.finish(i) : finished_mean(totals, i, counts[i], include_self);
  }
}

// All four at once, for elements, each with a place in the index, of planes of `shape.size`
// destinations side by side. A block owns a strip of a plane, whose keys and sums are in its shared
// memory, and behind them the counts for a mean.
template <typename scalar_t>
__global__ void __launch_bounds__(1024)
    index_add_strips(const int64_t* __restrict__ index, const scalar_t* __restrict__ source,
                     scalar_t* __restrict__ out, int64_t strip, int64_t strips, row_shape shape,
                     bool include_self, bool mean, scaling alpha, int64_t headroom) {
  constexpr int TOGETHER = 4;
  auto totals = accumulator<scalar_t, in_block>::in_shared(strip, headroom);
  int32_t* counts = totals.behind_keys(strip);
  int32_t rows = static_cast<int32_t>(shape.rows), threads = blockDim.x;
  int64_t parts = shape.outer * strips;
  for (int64_t part = blockIdx.x; part < parts; part += gridDim.x) {
    int64_t plane = quick_div(part, strips), first = (part - plane * strips) * strip;
    int32_t owned = static_cast<int32_t>(min_index(strip, shape.size - first));
    for (int32_t i = threadIdx.x; i < owned; i += threads) totals.clear(i);
    for (int32_t i = threadIdx.x; mean && i < owned; i += threads) counts[i] = 0;
    __syncthreads();
    const int64_t* places = index + plane * shape.rows;
    const scalar_t* source_of_plane = source + plane * shape.rows;
    scalar_t* out_of_strip = out + plane * shape.size + first;
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
      for (int32_t row = threadIdx.x; row < rows; row += TOGETHER * threads) {
        int64_t positions[TOGETHER];
        scalar_t values[TOGETHER];
#pragma unroll
        for (int k = 0; k < TOGETHER; ++k) {
          int32_t place = min(row + k * threads, rows - 1);
          positions[k] = position_at(places, place, shape);
          values[k] = source_of_plane[place];
        }
#pragma unroll
        for (int k = 0; k < TOGETHER; ++k) {
          if (row + k * threads >= rows) break;
          DETMODE_ASSERT(positions[k] >= 0 && positions[k] < shape.size);
          int64_t in_strip = positions[k] - first;
          if (in_strip < 0 || in_strip >= owned) continue;
          auto value = addend(values[k], alpha);
          if (pass == 0) {
            totals.observe(in_strip, value);
          } else {
            totals.add(in_strip, value);
            if (mean) atomicAdd(counts + in_strip, 1);
          }
        }
      }
      __syncthreads();
      if (pass == 1) break;
      for (int32_t i = threadIdx.x; i < owned; i += threads) {
        if (!totals.any(i)) continue;
        auto value = include_self ? to_opmath(out_of_strip[i]) : opmath_t<scalar_t>(0);
        totals.observe(i, value);
        totals.add(i, value);
      }
      __syncthreads();
    }
    for (int32_t i = threadIdx.x; i < owned; i += threads) {
      if (!totals.any(i)) continue;
      out_of_strip[i] = mean ? finished_mean(totals, i, counts[i], include_self) : totals.finish(i);
    }
    __syncthreads();
  }
}

// What row_sum is for sums, for products: nothing is scaled or counted.
template <typename T>
struct row_product {
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

// The first launch of row_runs.cuh's order: the rows themselves. `order` is the stable sort of the
// index, `keys` its values.
template <typename row_t, int width, typename key_t>
__global__ void sorted_rows(const key_t* __restrict__ keys, const int32_t* __restrict__ order,
                            const typename row_t::scalar_t* __restrict__ source,
                            typename row_t::scalar_t* __restrict__ out,
                            double* __restrict__ carries, row_shape shape, bool include_self,
                            bool mean, scaling alpha) {
  using runs_t = neighbours<row_t, width>;
  using pack_t = pack_of<typename row_t::scalar_t, width>;
  runs_t* carried = reinterpret_cast<runs_t*>(carries);
  int64_t rows = shape.rows, inner = shape.inner;
  int64_t groups = shape.outer * inner / width, all = segment_pieces<PIECE>(rows) * groups;
  for (int64_t i = thread_index(); i < all; i += thread_count()) {
    int64_t piece = quick_div(i, groups), group = i - piece * groups, column = group * width;
    auto* first = column_of(source, column, rows, inner);
    segment_piece<PIECE>(
        piece, rows, [&](int64_t row) { return keys[row]; },
        [&](int64_t row) { return *reinterpret_cast<const pack_t*>(first + order[row] * inner); },
        [&](const pack_t& pack) {
          runs_t runs;
          for (int k = 0; k < width; ++k) runs.lane[k] = row_t::read(pack.lane[k], alpha);
          return runs;
        },
        [](const runs_t& earlier, const runs_t& later) { return earlier.plus(later); },
        runs_t::nothing(),
        // A run that is complete here lies in this piece.
        row_store<row_t, width, key_t>{column_of(out, column, shape.size, inner),
                                       mean ? keys : nullptr, piece * PIECE,
                                       min_index(rows, (piece + 1) * PIECE), inner, include_self},
        [&](int64_t slot, key_t, const runs_t& runs) { carried[slot * groups + group] = runs; });
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

template <typename row_t, int width, typename key_t>
__global__ void __launch_bounds__(256, 2)
    wide_rows(const key_t* __restrict__ keys, const int32_t* __restrict__ order,
              const typename row_t::scalar_t* __restrict__ source,
              typename row_t::scalar_t* __restrict__ out, double* __restrict__ carries,
              row_shape shape, bool include_self, scaling alpha) {
  using runs_t = neighbours<row_t, width>;
  using pack_t = pack_of<typename row_t::scalar_t, width>;
  // A destination's initial values are loaded with its first row, not after the last one.
  struct row_and_initial {
    pack_t row, initial;
  };
  runs_t* carried = reinterpret_cast<runs_t*>(carries);
  int64_t rows = shape.rows, inner = shape.inner;
  int64_t groups = shape.outer * inner / width, all = ceil_div(rows, SHARE) * groups;
  for (int64_t i = thread_index(); i < all; i += thread_count()) {
    int64_t s = quick_div(i, groups), group = i - s * groups, column = group * width;
    auto* first = column_of(source, column, rows, inner);
    auto* to = column_of(out, column, shape.size, inner);
    auto target = [&](int64_t key) { return reinterpret_cast<pack_t*>(to + key * inner); };
    segment_share<PIECE, SHARE>(
        s, rows, [&](int64_t row) { return keys[row]; }, [&](int64_t row) { return order[row]; },
        [&](int64_t place, int64_t key, bool begins) {
          row_and_initial loaded;
          loaded.row = *reinterpret_cast<const pack_t*>(first + place * inner);
          if (begins) loaded.initial = *target(key);
          return loaded;
        },
        [&](const row_and_initial& loaded) {
          runs_t runs;
          for (int k = 0; k < width; ++k) {
            runs.lane[k] = row_t::read(loaded.row.lane[k], alpha);
          }
          return runs;
        },
        [](const runs_t& earlier, const runs_t& later) { return earlier.plus(later); },
        runs_t::nothing(),
        [&](int64_t key, const runs_t& runs, const row_and_initial& loaded) {
          pack_t sums;
          for (int k = 0; k < width; ++k) {
            sums.lane[k] = runs.lane[k].onto(loaded.initial.lane[k], include_self, 1);
          }
          store_at_once(target(key), sums);
        },
        [&](int64_t slot, const runs_t& runs) { carried[slot * groups + group] = runs; });
  }
}

// The row that a carry begins or ends at: slot 2 * p holds the first run of piece p of the level
// below, and slot 2 * p + 1 its last one. What would be behind the last carry is the last row.
static __device__ __forceinline__ int64_t row_of_carry(int64_t slot, int64_t level, int64_t rows) {
#pragma unroll 1
  for (; level > 0; --level) slot = slot / 2 * PIECE + slot % 2 * (PIECE - 1);
  return min_index(slot, rows - 1);
}

// The key of a carry of wide rows; -1 where nothing is carried.
template <typename key_t>
static __device__ __forceinline__ key_t key_of_carry(const key_t* keys, int64_t slot, int64_t level,
                                                     int64_t rows) {
  int64_t lowest = row_of_carry(slot, level - 1, 2 * segment_pieces<PIECE>(rows));
  int64_t border = (lowest + 1) / 2 * PIECE;
  auto key = [&](int64_t row) { return keys[row]; };
  return segment_carries<PIECE>(border, rows, key) ? keys[border] : key_t(-1);
}

// The launches after it reduce the carries level by level, until one piece holds them all. Those of
// a level lie behind those of the level below. `owned` is how many groups of columns a block has to
// itself, in which it goes on through all levels from `level` on; 0: the launch is one level, of
// all groups.
template <typename row_t, int width, typename key_t, bool wide = false>
__global__ void sorted_carries(const key_t* __restrict__ keys,
                               typename row_t::scalar_t* __restrict__ out,
                               double* __restrict__ carries, row_shape shape, bool include_self,
                               bool mean, int64_t level, int64_t owned) {
  using runs_t = neighbours<row_t, width>;
  using store_t = row_store<row_t, width, key_t>;
  // A destination's initial values are loaded with its carries: few threads walk here, and each
  // would wait for them at the end of every run.
  struct runs_and_initial {
    runs_t runs;
    typename store_t::initial_t initial;
  };
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
    auto key = [&](int64_t slot) {
      return wide ? key_of_carry(keys, slot, level, shape.rows)
                  : keys[row_of_carry(slot, level, shape.rows)];
    };
    for (int64_t i = begin; i < segment_pieces<PIECE>(n) * groups; i += step) {
      int64_t piece = quick_div(i, groups), group = first_group + (i - piece * groups);
      store_t store{column_of(out, group * width, shape.size, shape.inner),
                    mean ? keys : nullptr,
                    0,
                    shape.rows,
                    shape.inner,
                    include_self};
      segment_piece<PIECE>(
          piece, n, key,
          [&](int64_t slot) {
            // What is not carried is read as well, so that no read waits for the key. Its
            // destination is another thread's.
            key_t own = key(slot);
            runs_and_initial loaded{read[slot * all + group], {}};
            if (!wide || own >= 0) {
              loaded.initial = store.initial(own);
            } else {
              loaded.runs = runs_t::nothing();
            }
            return loaded;
          },
          [](const runs_and_initial& loaded) { return loaded.runs; },
          [](const runs_t& earlier, const runs_t& later) { return earlier.plus(later); },
          runs_t::nothing(),
          [&](key_t own, const runs_t& runs, const runs_and_initial& loaded) {
            if (!wide || own >= 0) store.put(own, runs, store.rows_of(own), loaded.initial);
          },
          [&](int64_t slot, key_t own, const runs_t& runs) {
            if (!wide || own >= 0) carried[slot * all + group] = runs;
          });
    }
    if (owned == 0 || n <= PIECE) return;
    __syncthreads();
    read = carried;
    n = 2 * segment_pieces<PIECE>(n);
  }
}

// Rows of one piece, in the order of `sorted_rows` and so with its bits, without a sort: each
// thread reads the index, and that of a destination's first row adds up its others. Who writes has
// checked all of the index.
template <typename row_t, int width>
__global__ void few_rows(const int64_t* __restrict__ index,
                         const typename row_t::scalar_t* __restrict__ source,
                         typename row_t::scalar_t* __restrict__ out, bool by_row, row_shape shape,
                         bool include_self, bool mean, scaling alpha) {
  using runs_t = neighbours<row_t, width>;
  using pack_t = pack_of<typename row_t::scalar_t, width>;
  constexpr int batch = 8;
  int64_t outers = shape.outer, rows = shape.rows, inner = shape.inner, size = shape.size;
  if (!by_row) {
    // Every element is a row.
    rows *= outers * inner;
    size *= outers * inner;
    outers = inner = 1;
  }
  int64_t groups = outers * inner / width;
  for (int64_t i = thread_index(); i < rows * groups; i += thread_count()) {
    int64_t row = quick_div(i, groups), column = (i - row * groups) * width;
    auto* first = column_of(source, column, rows, inner);
    auto key = [&](int64_t j) {
      return by_row ? position_at(index, j, shape) : placed_by(index, j, false, shape).destination;
    };
    int64_t own = key(row), met = 0;
    bool in_range = true, leads = true;
    runs_t runs = runs_t::nothing();
    for (int64_t base = 0; base < rows && leads; base += batch) {
      pack_t loaded[batch];
      bool same[batch];
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        int64_t j = min_index(base + b, rows - 1), other = key(j);
        in_range = in_range && other >= 0 && other < size;
        same[b] = base + b < rows && other == own;
        leads = leads && !(same[b] && j < row);
        if (same[b]) loaded[b] = *reinterpret_cast<const pack_t*>(first + j * inner);
      }
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        if (!same[b]) continue;
        runs_t value;
        for (int k = 0; k < width; ++k) {
          value.lane[k] = row_t::read(loaded[b].lane[k], alpha);
        }
        runs = met == 0 ? value : runs.plus(value);
        ++met;
      }
    }
    if (!leads) continue;
    DETMODE_ASSERT(in_range);
    row_store<row_t, width, int64_t> store{
        column_of(out, column, size, inner), nullptr, 0, 0, inner, include_self};
    store.put(own, runs, mean ? met : 0, store.initial(own));
  }
}
