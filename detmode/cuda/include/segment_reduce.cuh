// Reductions of the runs of equal keys in a sorted sequence, in a fixed order and without a serial
// walk over a long run.
//
// The sequence is cut into pieces of `piece` elements at fixed positions, and a run into its parts
// in them. One thread walks one part (of one column) in order. Of a run that ends in its first
// piece, or a few elements into its second, this thread walks the second part too, joins the two
// and stores the run. The parts of longer runs are carried: the one that comes into piece p
// and the one that leaves it become elements 2 * p and 2 * p + 1 of a shorter sequence, which the
// next launch reduces in the same way. Where nothing is carried, that sequence has the key -1. The
// last sequence has one piece, whose runs are all complete. All lengths follow from n: nothing
// waits for the GPU.
//
//   lengths: n, then 2 * segment_shares<piece>(n), ... until one is at most `piece`, the last one.
//
// A thread takes the parts that begin in its share, `share` elements of a piece. Whatever the share
// is, parts are the same, and so are the bits.
#pragma once

#include "index.cuh"

// The elements of its second piece within which a run must end to be reduced by one thread.
constexpr int SEGMENT_REACH = 8;

template <int share>
static __device__ __forceinline__ int64_t segment_shares(int64_t n) {
  return ceil_div(n, share);
}

// Whether a run goes on at `border`, where a piece begins, and its parts on both sides are carried.
template <int piece, typename Key>
static __device__ __forceinline__ bool segment_carries(int64_t border, int64_t n, Key key) {
  if (border == 0 || border >= n) return false;
  auto own = key(border);
  if (own < 0 || key(border - 1) != own) return false;
  return (border > piece && key(border - 1 - piece) == own) ||
         (border + SEGMENT_REACH < n && key(border + SEGMENT_REACH) == own);
}

// The keys of what piece `p` carries: mark(slot, key).
template <int piece, typename Key, typename Mark>
static __device__ __forceinline__ void segment_marks(int64_t p, int64_t n, Key key, Mark mark) {
  for (int64_t side = 0; side < 2; ++side) {
    int64_t border = (p + side) * piece;
    mark(2 * p + side, segment_carries<piece>(border, n, key) ? key(border) : -1);
  }
}

// Reduces the runs that begin in share `s` of the `n` elements, or their parts.
//   key(i)                the key of element i, ascending; an integer, -1 for no element
//   place(i)              where element i lies; an integer
//   load(place, key, first)   the element there, as it lies in memory; loads alone, to be in flight
//                         together. `first`: a part begins with it. Not used where the key is -1
//   of(loaded)            its value
//   op(earlier, later)    called with the running value first, in the order of i
//   identity              op(x, identity) is x: -0.0 for a sum
//   store(key, value, loaded)   a complete run, and what was loaded for its first element
//   carry(slot, value)    a part of a run that a later launch finishes; not called when n <= piece
template <int piece, int share, typename value_t, typename Key, typename Place, typename Load,
          typename Of, typename Op, typename Store, typename Carry>
static __device__ __forceinline__ void segment_share(int64_t s, int64_t n, Key key, Place place,
                                                     Load load, Of of, Op op, value_t identity,
                                                     Store store, Carry carry) {
  // Elements whose loads do not wait for one another; the walk over their values is serial. Where
  // there are more threads, fewer registers each leave room for them.
  constexpr int batch = share < piece ? 4 : 8;
  static_assert(piece % share == 0 && share % batch == 0, "pieces of whole shares and batches");
  int64_t begin = s * share, end = min_index(begin + share, n);
  int64_t p = begin / piece, border = (p + 1) * piece;
  auto own = key(begin);
  auto skipped = own;
  bool goes_on = begin > 0 && key(begin - 1) == own;
  bool comes_in = goes_on && begin % piece == 0 && segment_carries<piece>(begin, n, key);
  bool skips = goes_on && !comes_in;
  if (skips && own >= 0 && key(end - 1) == own) return;
  bool walks = false, leads = false, joins = false;
  value_t run = identity, earlier = identity;
  using loaded_t = decltype(load(place(begin), own, true));
  loaded_t start;
  for (int64_t base = begin; base < n; base += batch) {
    if (base >= end && !(walks && key(base) == own)) break;
    if (base == border) {
      if (segment_carries<piece>(border, n, key)) {
        carry(leads ? 2 * p : 2 * p + 1, run);
        if (leads) carry(2 * p + 1, identity);
        return;
      }
      joins = true;
      earlier = run;
    }
    loaded_t loaded[batch];
    decltype(own) keys[batch];
    decltype(place(begin)) places[batch];
    bool taken[batch], first[batch];
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      int64_t i = min_index(base + b, n - 1);
      keys[b] = key(i);
      places[b] = place(i);
    }
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      bool others = base < end ? skips && keys[b] == skipped : keys[b] != own;
      taken[b] = base + b < n && keys[b] >= 0 && !others;
      first[b] = b > 0 ? keys[b] != keys[b - 1] : base == begin || keys[b] != own;
    }
    // What is not taken is loaded from where a neighbour is: a branch around each load would have
    // it wait for its own place.
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      if (!taken[b]) places[b] = places[b > 0 ? b - 1 : batch - 1];
      loaded[b] = load(places[b], keys[b], taken[b] && first[b]);
    }
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      if (!taken[b]) continue;
      if (first[b]) {
        if (leads) {
          carry(2 * p, run);
        } else if (walks) {
          store(own, run, start);
        }
        leads = comes_in && base + b == begin;
        walks = true;
        own = keys[b];
        start = loaded[b];
      }
      value_t value = of(loaded[b]);
      run = first[b] || (b == 0 && base == border) ? value : op(run, value);
    }
  }
  if (leads) {
    carry(2 * p, run);
  } else if (walks) {
    store(own, joins ? op(earlier, run) : run, start);
  }
}
