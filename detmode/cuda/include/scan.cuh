// An inclusive scan of one row in a fixed order, in launches that wait for nothing.
//
// The row is cut into tiles of `threads * rows * vec` elements, one for each block. The order: a
// thread's `vec` neighbouring elements, the lanes of a warp, its `rows`, the warps; and over the
// tiles a tree in which each node has 32 children. It depends on the number of elements alone. The
// launches: scan_total for what each tile but the last adds up to; scan_nodes for each level of
// nodes, from below; and scan_tile, which joins what is before its tile. So the elements are read
// twice. A block that waits for the totals of others reads them once, and takes longer: beside it
// hundreds of blocks ask the few lines of memory in which the latest totals are.
#pragma once

#include "block_reduce.cuh"
#include "index.cuh"

constexpr int SCAN_CHILDREN = 32;
constexpr int SCAN_LEVELS = 7;  // of a tree over as many tiles as a grid has blocks

template <typename T>
static __device__ __forceinline__ T shuffle_up(T value, int delta) {
  return shuffled(value, [=](int32_t word) {
    return __shfl_up_sync(0xffffffffu, word, static_cast<unsigned int>(delta));
  });
}
template <typename T>
static __device__ __forceinline__ T shuffle_from(T value, int lane) {
  return shuffled(value, [=](int32_t word) { return __shfl_sync(0xffffffffu, word, lane); });
}

// The inclusive scans of the warp's 32 values of each row, side by side: one loop over the
// distances, because its body is long.
template <int rows, typename T, typename Op>
static __device__ __forceinline__ void warp_scans(T (&values)[rows], Op op) {
  int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int delta = 1; delta < 32; delta *= 2) {
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      T earlier = shuffle_up(values[row], delta);
      if (lane >= delta) values[row] = op(earlier, values[row]);
    }
  }
}

// The warp's 32 values of each row, joined in the order of warp_scans, and these row by row.
template <int rows, typename T, typename Op>
static __device__ __forceinline__ T warp_total(T (&values)[rows], Op op) {
  static_assert((rows & (rows - 1)) == 0 && rows <= 32, "lanes share the rows evenly");
  int lane = static_cast<int>(threadIdx.x) % 32, delta = 1;
  // Of neighbours one goes on with the odd rows, the other with the even ones: in the end a lane
  // has a single row, that of its number.
#pragma unroll
  for (int half = rows / 2; half > 0; half /= 2, delta *= 2) {
    bool later = (lane & delta) != 0;
#pragma unroll
    for (int row = 0; row < half; ++row) {
      T even = values[2 * row], odd = values[2 * row + 1];
      T theirs = shuffled(later ? even : odd,
                          [=](int32_t word) { return __shfl_xor_sync(0xffffffffu, word, delta); });
      values[row] = op(later ? theirs : even, later ? odd : theirs);
    }
  }
  T value = values[0];
#pragma unroll
  for (; delta < 32; delta *= 2) {
    value = op(value, shuffled(value, [=](int32_t word) {
                 return __shfl_down_sync(0xffffffffu, word, static_cast<unsigned int>(delta));
               }));
  }
  T total = shuffle_from(value, 0);
#pragma unroll
  for (int row = 1; row < rows; ++row) total = op(total, shuffle_from(value, row));
  return total;
}

// The elements of a tile that one thread has: a pack of `vec` neighbours in each of its rows.
// `full`: all of the tile's elements are there, which then need no comparison each.
template <typename scan_t, int threads, int rows, int vec, bool full>
struct scan_part {
  using input_t = typename scan_t::input_t;
  using state_t = typename scan_t::state_t;
  using pack_t = pack_of<input_t, vec>;
  pack_t values[rows];
  int64_t begin, n;

  static __device__ __forceinline__ scan_part read(const input_t* input, int64_t n, int64_t stride,
                                                   int64_t tile) {
    int64_t warps = threads / 32, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    scan_part part;
    part.begin = ((tile * warps + warp) * rows * 32 + lane) * vec;
    part.n = n;
    bool packed = stride == 1 && reinterpret_cast<uint64_t>(input) % sizeof(pack_t) == 0;
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      int64_t first = part.place(row);
      if (packed && part.count(row) == vec) {
        part.values[row] = *reinterpret_cast<const pack_t*>(input + first);
      } else {
#pragma unroll
        for (int k = 0; k < vec; ++k) {
          if (k < part.count(row)) part.values[row].lane[k] = input[(first + k) * stride];
        }
      }
    }
    return part;
  }
  __device__ __forceinline__ int64_t place(int row) const { return begin + row * 32 * vec; }
  // How many of a row's elements there are.
  __device__ __forceinline__ int count(int row) const {
    if (full) return vec;
    return static_cast<int>(clamp_index(n - place(row), 0, vec));
  }
  // Each row's elements, joined.
  __device__ __forceinline__ void join_rows(state_t (&joined)[rows]) const {
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      joined[row] = scan_t::identity();
#pragma unroll
      for (int k = 0; k < vec; ++k) {
        if (k >= count(row)) continue;
        auto element = scan_t::of(values[row].lane[k]);
        joined[row] = k == 0 ? state_t(element) : scan_t::join(joined[row], element);
      }
    }
  }
  __device__ __forceinline__ void write(input_t* output) const {
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      int64_t first = place(row);
      if (count(row) == vec) {
        *reinterpret_cast<pack_t*>(output + first) = values[row];
      } else {
#pragma unroll
        for (int k = 0; k < vec; ++k) {
          if (k < count(row)) output[first + k] = values[row].lane[k];
        }
      }
    }
  }
};

// The siblings before the tile's node on each level, joined, into `siblings`, a level of the tree
// for each warp in turn. Returns the number of levels.
template <typename scan_t, int warps>
static __device__ __forceinline__ int scan_siblings(int64_t tile, int64_t tiles,
                                                    const typename scan_t::state_t* totals,
                                                    typename scan_t::state_t* siblings) {
  using state_t = typename scan_t::state_t;
  auto join = [](state_t earlier, state_t later) { return scan_t::join(earlier, later); };
  int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int level = 0;
  int64_t nodes = tiles - 1, base = 0;
  for (int64_t node = tile; node > 0; node /= SCAN_CHILDREN, ++level) {
    if (level % warps == warp) {
      int child = static_cast<int>(node % SCAN_CHILDREN);
      state_t sibling = lane < child ? totals[base + node - child + lane] : scan_t::identity();
      sibling = warp_reduce(sibling, join);
      if (lane == 0) siblings[level] = sibling;
    }
    base += nodes;
    nodes /= SCAN_CHILDREN;
  }
  return level;
}

template <typename scan_t, int threads, int rows, int vec, bool full>
static __device__ __forceinline__ void scan_tile_of(const typename scan_t::input_t* input,
                                                    typename scan_t::input_t* output,
                                                    const typename scan_t::state_t* totals,
                                                    int64_t n, int64_t stride, int64_t tile,
                                                    typename scan_t::state_t* of_warp) {
  using state_t = typename scan_t::state_t;
  constexpr int warps = threads / 32;
  auto join = [](state_t earlier, state_t later) { return scan_t::join(earlier, later); };
  int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  auto part = scan_part<scan_t, threads, rows, vec, full>::read(input, n, stride, tile);
  state_t* siblings = of_warp + warps;
  int levels = scan_siblings<scan_t, warps>(tile, gridDim.x, totals, siblings);

  // What comes before this thread in each row of its warp, and the warp's total.
  state_t before[rows];
  part.join_rows(before);
  warp_scans(before, join);
  state_t total = scan_t::identity();
#pragma unroll
  for (int row = 0; row < rows; ++row) {
    state_t whole = shuffle_from(before[row], 31);
    before[row] = shuffle_up(before[row], 1);
    if (lane == 0) before[row] = scan_t::identity();
    if (row > 0) before[row] = join(total, before[row]);
    total = row == 0 ? whole : join(total, whole);
  }
  if (lane == 0) of_warp[warp] = total;
  __syncthreads();

  state_t before_tile = scan_t::identity(), before_warp = scan_t::identity();
  for (int level = 0; level < levels; ++level) before_tile = join(siblings[level], before_tile);
  for (int w = 0; w < warp; ++w) before_warp = join(before_warp, of_warp[w]);
  before_warp = join(before_tile, before_warp);
#pragma unroll
  for (int row = 0; row < rows; ++row) {
    state_t running = join(before_warp, before[row]);
#pragma unroll
    for (int k = 0; k < vec; ++k) {
      if (k >= part.count(row)) continue;
      running = scan_t::join(running, scan_t::of(part.values[row].lane[k]));
      part.values[row].lane[k] = scan_t::result(running);
    }
  }
  part.write(output);
}

// The launches of a scan of the `n` elements of `input`, `stride` apart, into `output`; the first
// with a block of `threads` threads for each tile but the last, before which all lie, and the last
// for each tile. `totals`: the states of those tiles and of the nodes over whole 32 of them, level
// by level; not read where there is one tile, which needs the last launch alone.
//
// scan_t:
//   input_t, state_t            what is read and written; what is joined, of whole 32-bit words
//   of(x)                       the state of one element, or what becomes it and joins as `later`
//   identity()                  join(identity, x) and join(x, identity) are x
//   join(earlier, later)        called with the operands in the order of the row
//   result(state)               the output that the state stands for
template <typename scan_t, int threads, int rows, int vec>
static __device__ __forceinline__ void scan_total(const typename scan_t::input_t* input,
                                                  typename scan_t::state_t* totals,
                                                  int64_t stride) {
  using state_t = typename scan_t::state_t;
  constexpr int warps = threads / 32;
  auto join = [](state_t earlier, state_t later) { return scan_t::join(earlier, later); };
  // Bytes, because a shared variable must not have a constructor.
  __shared__ __align__(16) unsigned char storage[warps * sizeof(state_t)];
  state_t* of_warp = reinterpret_cast<state_t*>(storage);
  int64_t tile = blockIdx.x, end = (tile + 1) * threads * rows * vec;
  state_t joined[rows];
  scan_part<scan_t, threads, rows, vec, true>::read(input, end, stride, tile).join_rows(joined);
  state_t total = warp_total(joined, join);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = total;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < warps; ++w) total = join(total, of_warp[w]);
  totals[tile] = total;
}

// Joins the children of each node of a level; there are `children` at `totals`, and the nodes over
// whole 32 of them lie behind them. A warp takes a node.
template <typename scan_t>
static __device__ __forceinline__ void scan_nodes(typename scan_t::state_t* totals,
                                                  int64_t children) {
  using state_t = typename scan_t::state_t;
  auto join = [](state_t earlier, state_t later) { return scan_t::join(earlier, later); };
  int lane = static_cast<int>(threadIdx.x) % 32;
  int64_t nodes = children / SCAN_CHILDREN;
  for (int64_t node = thread_index() / 32; node < nodes; node += thread_count() / 32) {
    state_t child = totals[node * SCAN_CHILDREN + lane];
    // As a tile joins the siblings before it: the last child to the others.
    state_t last = shuffle_from(child, SCAN_CHILDREN - 1);
    if (lane == SCAN_CHILDREN - 1) child = scan_t::identity();
    state_t others = warp_reduce(child, join);
    if (lane == 0) totals[children + node] = join(others, last);
  }
}

template <typename scan_t, int threads, int rows, int vec>
static __device__ __forceinline__ void scan_tile(const typename scan_t::input_t* input,
                                                 typename scan_t::input_t* output,
                                                 const typename scan_t::state_t* totals, int64_t n,
                                                 int64_t stride) {
  using state_t = typename scan_t::state_t;
  static_assert(threads % 32 == 0 && threads <= 1024, "whole warps, at most 1024 threads");
  __shared__ __align__(16) unsigned char storage[(threads / 32 + SCAN_LEVELS) * sizeof(state_t)];
  state_t* of_warp = reinterpret_cast<state_t*>(storage);
  // The last tiles first: they were read last, so that the cache may have them.
  int64_t tile = int64_t(gridDim.x) - 1 - blockIdx.x;
  if ((tile + 1) * threads * rows * vec <= n) {
    scan_tile_of<scan_t, threads, rows, vec, true>(input, output, totals, n, stride, tile, of_warp);
  } else {
    scan_tile_of<scan_t, threads, rows, vec, false>(input, output, totals, n, stride, tile,
                                                    of_warp);
  }
}
