// An inclusive scan of one row in a fixed order, in one launch that reads and writes each element
// once.
//
// The row is cut into tiles of `threads * rows * vec` elements, one for each block. The order: a
// thread's `vec` neighbouring elements, the lanes of a warp, its `rows`, the warps; and over the
// tiles a tree in which each node has 32 children. It depends on the number of elements alone,
// neither on the GPU nor on which block is done first: a tile waits for the totals that its place
// in the tree asks for, and never takes what happens to be there instead.
#pragma once

#include "block_reduce.cuh"
#include "look_back.cuh"

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

// A node's total goes from the block that has it to those that wait for it, each 32-bit word with
// its own mark above it: whoever reads the mark has the word, without a fence.
template <typename T>
static __device__ __forceinline__ void scan_publish(int64_t* totals, int64_t node, T total) {
  words_of<T> words;
  words.value = total;
  int64_t* to = totals + node * words_of<T>::count;
#pragma unroll
  for (int w = 0; w < words_of<T>::count; ++w) {
    HOST_ASSERT(load_relaxed(to + w) == 0);
    store_relaxed(to + w, int64_t(1) << 32 | static_cast<uint32_t>(words.word[w]));
  }
}
template <typename T>
static __device__ __forceinline__ T scan_await(const int64_t* totals, int64_t node) {
  words_of<T> words;
  const int64_t* from = totals + node * words_of<T>::count;
  bool there;
  do {
    there = true;
#pragma unroll
    for (int w = 0; w < words_of<T>::count; ++w) {
      int64_t word = load_relaxed(from + w);
      there = there && word != 0;
      words.word[w] = static_cast<int32_t>(word);
    }
    HOST_ASSERT(there);
  } while (!there);
  return words.value;
}

// What all tiles before `tile` add up to, in the threads of the first warp; all call. `total` is
// the tile's own, `siblings` shared memory for a state of each level. The warps wait for the levels
// side by side: for each, the siblings before this node. The last child of a node knows the node's
// total and publishes it.
template <typename scan_t, int warps>
static __device__ __forceinline__ typename scan_t::state_t scan_before_tile(
    int64_t tile, int64_t tiles, typename scan_t::state_t total, int64_t* totals,
    typename scan_t::state_t* siblings) {
  using state_t = typename scan_t::state_t;
  auto join = [](state_t earlier, state_t later) { return scan_t::join(earlier, later); };
  int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == 0) scan_publish(totals, tile, total);
  int level = 0;
  for (int64_t node = tile, nodes = tiles, base = 0; node > 0; node /= SCAN_CHILDREN, ++level) {
    if (level % warps == warp) {
      int child = static_cast<int>(node % SCAN_CHILDREN);
      state_t sibling = scan_t::identity();
      if (lane < child) sibling = scan_await<state_t>(totals, base + node - child + lane);
      __syncwarp();
      sibling = warp_reduce(sibling, join);
      if (lane == 0) siblings[level] = sibling;
    }
    base += nodes;
    nodes /= SCAN_CHILDREN;
  }
  __syncthreads();
  state_t before = scan_t::identity();
  if (warp > 0) return before;
  bool complete = true;
  level = 0;
  for (int64_t node = tile, nodes = tiles, base = 0; node > 0; node /= SCAN_CHILDREN, ++level) {
    before = join(siblings[level], before);
    total = join(siblings[level], total);
    complete = complete && node % SCAN_CHILDREN == SCAN_CHILDREN - 1;
    base += nodes;
    nodes /= SCAN_CHILDREN;
    if (complete && lane == 0) scan_publish(totals, base + node / SCAN_CHILDREN, total);
  }
  return before;
}

// Scans one tile. `full`: all of its elements are there, which then need no comparison each.
// `of_warp`: shared memory for a state of each warp, one more, and one of each level.
template <typename scan_t, int threads, int rows, int vec, bool full>
static __device__ __forceinline__ void scan_drawn_tile(const typename scan_t::input_t* input,
                                                       typename scan_t::input_t* output,
                                                       int64_t* totals, int64_t n, int64_t stride,
                                                       int64_t tile,
                                                       typename scan_t::state_t* of_warp) {
  using state_t = typename scan_t::state_t;
  using pack_t = pack_of<typename scan_t::input_t, vec>;
  constexpr int warps = threads / 32;
  auto join = [](state_t earlier, state_t later) { return scan_t::join(earlier, later); };
  int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int64_t tiles = gridDim.x;
  int64_t begin = ((tile * warps + warp) * rows * 32 + lane) * vec;
  bool packed = stride == 1 && reinterpret_cast<uint64_t>(input) % sizeof(pack_t) == 0;

  // How many of a row's elements this thread has.
  auto count = [&](int row) {
    if (full) return vec;
    return static_cast<int>(clamp_index(n - begin - row * 32 * vec, 0, vec));
  };
  pack_t values[rows];
#pragma unroll
  for (int row = 0; row < rows; ++row) {
    int64_t first = begin + row * 32 * vec;
    if (packed && count(row) == vec) {
      values[row] = *reinterpret_cast<const pack_t*>(input + first);
    } else {
#pragma unroll
      for (int k = 0; k < vec; ++k) {
        if (k < count(row)) values[row].lane[k] = input[(first + k) * stride];
      }
    }
  }

  // What comes before this thread in each row of its warp, and the warp's total.
  state_t before[rows];
#pragma unroll
  for (int row = 0; row < rows; ++row) {
    before[row] = scan_t::identity();
#pragma unroll
    for (int k = 0; k < vec; ++k) {
      if (k >= count(row)) continue;
      state_t element = scan_t::of(values[row].lane[k]);
      before[row] = k == 0 ? element : join(before[row], element);
    }
  }
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
  state_t earlier = scan_t::identity();
  for (int w = 0; w < warp; ++w) earlier = join(earlier, of_warp[w]);
  if (tiles > 1) {
    state_t all = of_warp[0];
    if (warp == 0) {
      for (int w = 1; w < warps; ++w) all = join(all, of_warp[w]);
    }
    state_t before_tile =
        scan_before_tile<scan_t, warps>(tile, tiles, all, totals, of_warp + warps + 1);
    if (threadIdx.x == 0) of_warp[warps] = before_tile;
    __syncthreads();
    earlier = join(of_warp[warps], earlier);
  }

#pragma unroll
  for (int row = 0; row < rows; ++row) {
    int64_t first = begin + row * 32 * vec;
    state_t running = join(earlier, before[row]);
#pragma unroll
    for (int k = 0; k < vec; ++k) {
      if (k >= count(row)) continue;
      running = join(running, scan_t::of(values[row].lane[k]));
      values[row].lane[k] = scan_t::result(running);
    }
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

// Scans the `n` elements of `input`, `stride` apart, into `output`. One block of `threads` threads
// for each tile. `totals`: for each node of the tree its state, 8 bytes for each 4, and the counter
// behind them, all 0; not read where there is one tile.
//
// scan_t:
//   input_t, state_t            what is read and written; what is joined, of whole 32-bit words
//   of(x)                       the state of one element
//   identity()                  join(identity, x) and join(x, identity) are x
//   join(earlier, later)        called with the operands in the order of the row
//   result(state)               the output that the state stands for
template <typename scan_t, int threads, int rows, int vec>
static __device__ __forceinline__ void scan_tile(const typename scan_t::input_t* input,
                                                 typename scan_t::input_t* output, int64_t* totals,
                                                 int64_t nodes, int64_t n, int64_t stride) {
  using state_t = typename scan_t::state_t;
  static_assert(threads % 32 == 0 && threads <= 1024, "whole warps, at most 1024 threads");
  constexpr int warps = threads / 32;
  // Bytes, because a shared variable must not have a constructor.
  __shared__ __align__(16) unsigned char storage[(warps + 1 + SCAN_LEVELS) * sizeof(state_t)];
  state_t* of_warp = reinterpret_cast<state_t*>(storage);
  int64_t* counter = totals + nodes * words_of<state_t>::count;
  int64_t tile = gridDim.x > 1 ? draw_tile(reinterpret_cast<int32_t*>(counter)) : 0;
  if ((tile + 1) * threads * rows * vec <= n) {
    scan_drawn_tile<scan_t, threads, rows, vec, true>(input, output, totals, n, stride, tile,
                                                      of_warp);
  } else {
    scan_drawn_tile<scan_t, threads, rows, vec, false>(input, output, totals, n, stride, tile,
                                                       of_warp);
  }
}
