// Reductions of the runs of equal keys in a sorted sequence, in a fixed order and without a serial
// walk over a long run.
//
// The sequence is cut into pieces of `piece` elements at fixed positions. One thread walks one
// piece (of one column) in order. A run inside a piece is complete and is stored. The first and the
// last run of a piece may go on in its neighbours: they become elements 2 * p and 2 * p + 1 of a
// shorter sequence, sorted as well, that the next launch reduces in the same way. The last sequence
// has one piece, whose runs are all complete. All lengths follow from n: nothing waits for the GPU.
//
//   lengths: n, then 2 * segment_pieces<piece>(n), ... until one is at most `piece`, the last one.
#pragma once

#include "index.cuh"

template <int piece>
static __device__ __forceinline__ int64_t segment_pieces(int64_t n) {
  return ceil_div(n, piece);
}

// Walks piece `p` of the `n` elements.
//   key(i)                the key of element i, ascending; an integer
//   load(i)               element i as it lies in memory; loads alone, to be in flight together
//   of(loaded)            its value
//   op(earlier, later)    called with the running value first, in the order of i
//   identity              op(x, identity) is x: -0.0 for a sum
//   store(key, value)     a complete run
//   carry(slot, key, value)   a run that the next launch finishes; not called when n <= piece
template <int piece, typename value_t, typename Key, typename Load, typename Of, typename Op,
          typename Store, typename Carry>
static __device__ __forceinline__ void segment_piece(int64_t p, int64_t n, Key key, Load load,
                                                     Of of, Op op, value_t identity, Store store,
                                                     Carry carry) {
  static_assert(piece > 2, "a piece of two elements carries as many as it reads");
  // Loads of one batch do not wait for one another; the walk over their values is serial.
  constexpr int batch = 8;
  static_assert(piece % batch == 0, "a piece has whole batches");
  int64_t begin = p * piece;
  int64_t end = min_index(begin + piece, n);
  bool last_launch = n <= piece;
  bool first_run = true;
  auto run_key = key(begin);
  value_t run = identity;
  bool run_empty = true;
  for (int64_t base = begin; base < end; base += batch) {
    decltype(load(begin)) loaded[batch];
    decltype(run_key) keys[batch];
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      int64_t i = min_index(base + b, end - 1);
      keys[b] = key(i);
      loaded[b] = load(i);
    }
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      if (base + b >= end) break;
      if (keys[b] != run_key) {
        if (first_run && !last_launch) {
          carry(2 * p, run_key, run);
        } else {
          store(run_key, run);
        }
        first_run = false;
        run_key = keys[b];
        run_empty = true;
      }
      value_t value = of(loaded[b]);
      run = run_empty ? value : op(run, value);
      run_empty = false;
    }
  }
  if (last_launch) {
    store(run_key, run);
  } else if (first_run) {
    carry(2 * p, run_key, run);
    carry(2 * p + 1, run_key, identity);
  } else {
    carry(2 * p + 1, run_key, run);
  }
}
