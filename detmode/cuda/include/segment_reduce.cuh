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

// Walks piece `p` of the `n` elements, of which `runs` says:
//   key(i)                the key of element i, ascending; an integer
//   load(i)               element i as it lies in memory; loads alone, to be in flight together
//   value(loaded)         its value
//   store(key, value, first, end)   takes a complete run, the elements from `first` on before `end`
//   carry(slot, key, value)   takes a run that the next launch finishes; not called when n <= piece
// A value_t has earlier.plus(later), called in the order of i, and nothing(), which x.plus() leaves
// as x: -0.0 for a sum.
template <int piece, typename Runs>
static __device__ __forceinline__ void segment_piece(int64_t p, int64_t n, const Runs& runs) {
  using value_t = typename Runs::value_t;
  static_assert(piece > 2, "a piece of two elements carries as many as it reads");
  // Loads of one batch do not wait for one another; the walk over their values is serial.
  constexpr int batch = 8;
  static_assert(piece % batch == 0, "a piece has whole batches");
  int64_t begin = p * piece;
  int64_t end = min_index(begin + piece, n);
  bool last_launch = n <= piece;
  bool first_run = true;
  auto run_key = runs.key(begin);
  const value_t nothing = value_t::nothing();
  value_t run = nothing;
  bool run_empty = true;
  int64_t first = begin;
  for (int64_t base = begin; base < end; base += batch) {
    decltype(runs.load(begin)) loaded[batch];
    decltype(run_key) keys[batch];
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      int64_t i = min_index(base + b, end - 1);
      keys[b] = runs.key(i);
      loaded[b] = runs.load(i);
    }
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      if (base + b >= end) break;
      if (keys[b] != run_key) {
        if (first_run && !last_launch) {
          runs.carry(2 * p, run_key, run);
        } else {
          runs.store(run_key, run, first, base + b);
        }
        first_run = false;
        first = base + b;
        run_key = keys[b];
        run_empty = true;
      }
      value_t value = runs.value(loaded[b]);
      run = run_empty ? value : run.plus(value);
      run_empty = false;
    }
  }
  if (last_launch) {
    runs.store(run_key, run, first, end);
  } else if (first_run) {
    runs.carry(2 * p, run_key, run);
    runs.carry(2 * p + 1, run_key, nothing);
  } else {
    runs.carry(2 * p + 1, run_key, run);
  }
}

// The same by a thread for each element `i`, which takes the run of its piece that begins there, if
// one does. For sequences so short that few threads would walk over pieces, one run after another;
// here all runs are read at once. What differs:
//   is_part(key)          whether elements with this key are reduced at all
//   value(i)              element i, a load as key(i)
//   initial(key)          what the run's store needs of its destination, a load as well
//   store(key, value, initial, first, end)   takes that, too
template <int piece, typename Runs>
static __device__ __forceinline__ void segment_run(int32_t i, int32_t n, const Runs& runs) {
  using value_t = typename Runs::value_t;
  constexpr int batch = 4;
  int32_t p = i / piece, begin = p * piece, end = min(begin + piece, n);
  auto run_key = runs.key(i);
  auto has_key = [&](int32_t place) { return runs.key(place) == run_key; };
  if (!runs.is_part(run_key) || (i > begin && has_key(i - 1))) return;
  // Where the run ends is known before a value is loaded, so that none waits for a key of its own.
  // Most runs have two elements, one of each piece below, or three with a `nothing`.
  bool has_second = has_key(min(i + 1, end - 1)) & (i + 1 < end);
  bool has_third = has_key(min(i + 2, end - 1));
  int32_t behind = has_second ? i + 2 : i + 1, others_end = has_third ? end : behind;
  while (behind < others_end) {
    int32_t middle = (behind + others_end) / 2;
    bool goes_on = has_key(middle);
    behind = goes_on ? middle + 1 : behind;
    others_end = goes_on ? others_end : middle;
  }
  auto initial = runs.initial(run_key);
  value_t run = runs.value(i);
#pragma unroll 1
  for (int32_t base = i + 1; base < behind; base += batch) {
    value_t values[batch];
#pragma unroll
    for (int b = 0; b < batch; ++b) values[b] = runs.value(min(base + b, behind - 1));
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      if (base + b < behind) run = run.plus(values[b]);
    }
  }
  bool comes_in = i == begin, leaves = behind == end;
  if (n <= piece || !(comes_in || leaves)) {
    runs.store(run_key, run, initial, i, behind);
    return;
  }
  if (comes_in) runs.carry(2 * p, run_key, run);
  if (leaves) runs.carry(2 * p + 1, run_key, comes_in ? value_t::nothing() : run);
}

// The same as segment_piece for elements so wide that all threads of a warp walk over the same
// ones: a thread takes the parts of runs that begin in its share, `share` elements of a piece. A
// part is what lies of a run in one piece. The runs' bits are the same, but fewer are carried: of a
// run that ends in its first piece, or a few elements into its second, one thread walks the second
// part too, joins the two and stores the run. Of a longer run, the part that comes into piece p
// becomes element 2 * p of the shorter sequence, and the part that leaves it element 2 * p + 1. The
// others are nothing.

// The elements of its second piece within which a run must end to be reduced by one thread.
constexpr int SEGMENT_REACH = 8;

// Whether a run goes on at `border`, where a piece begins, and its parts on both sides are carried.
template <int piece, typename key_t>
static __device__ __forceinline__ bool segment_carries(int64_t border, int64_t n,
                                                       const key_t* keys) {
  // All keys are loaded, in flight together, whatever the others say.
  auto key = [&](int64_t i) { return keys[clamp_index(i, 0, n - 1)]; };
  auto run_key = key(border);
  bool goes_on = key(border - 1) == run_key, border_is_inside = border > 0 && border < n;
  bool comes_far = key(border - 1 - piece) == run_key && border > piece;
  bool goes_far = key(border + SEGMENT_REACH) == run_key && border + SEGMENT_REACH < n;
  return border_is_inside && goes_on && (comes_far || goes_far);
}

// Reduces the parts that begin in share `s` of the `n` elements with these keys. What differs from
// segment_piece:
//   place(i)              where element i lies; an integer
//   load(place, key, first)   the element there; `first`: a part begins with it
//   store(key, value, loaded)   takes a complete run, and what was loaded for its first element
//   carry(slot, value)    takes a part of a run that a later launch finishes
template <int piece, int share, typename key_t, typename Runs>
static __device__ __forceinline__ void segment_share(uint32_t s, uint32_t n, const key_t* keys,
                                                     const Runs& runs) {
  using value_t = typename Runs::value_t;
  // Half of a piece's: the registers leave room for more threads.
  constexpr int batch = 4;
  static_assert(piece % share == 0 && share % batch == 0 && SEGMENT_REACH < piece,
                "pieces of whole shares, shares of whole batches");
  uint32_t begin = s * share, end = min(begin + share, n);
  uint32_t p = begin / piece, border = (p + 1) * piece;
  // Keys and places of the batch to come: read before what is loaded of this one is used.
  key_t next_key[batch];
  decltype(runs.place(begin)) next_places[batch];
  auto read_ahead = [&](uint32_t base) {
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      uint32_t i = min(base + b, n - 1);
      next_key[b] = keys[i];
      next_places[b] = runs.place(i);
    }
  };
  read_ahead(begin);
  key_t run_key = next_key[0], skipped = run_key;
  bool goes_on = begin > 0 && keys[begin - 1] == run_key;
  bool comes_in = goes_on && begin % piece == 0 && segment_carries<piece>(begin, n, keys);
  bool skips = goes_on && !comes_in;
  if (skips && keys[end - 1] == run_key) return;
  bool walks = false, leads = false, joins = false;
  const value_t nothing = value_t::nothing();
  value_t run = nothing, earlier = nothing;
  decltype(runs.load(runs.place(begin), run_key, true)) start;
  for (uint32_t base = begin; base < n; base += batch) {
    if (base >= end && !(walks && next_key[0] == run_key)) break;
    if (base == border) {
      if (segment_carries<piece>(border, n, keys)) {
        runs.carry(leads ? 2 * p : 2 * p + 1, run);
        if (leads) runs.carry(2 * p + 1, nothing);
        return;
      }
      joins = true;
      earlier = run;
    }
    decltype(start) loaded[batch];
    key_t key[batch];
    decltype(runs.place(begin)) places[batch];
    bool taken[batch], first[batch];
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      key[b] = next_key[b];
      places[b] = next_places[b];
    }
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      bool is_left = base < end ? skips && key[b] == skipped : key[b] != run_key;
      taken[b] = base + b < n && !is_left;
      first[b] = b > 0 ? key[b] != key[b - 1] : base == begin || key[b] != run_key;
    }
    // What is not taken is loaded from where a neighbour is: a branch around each load would have
    // it wait for its own place.
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      if (!taken[b]) places[b] = places[b > 0 ? b - 1 : batch - 1];
      loaded[b] = runs.load(places[b], key[b], taken[b] && first[b]);
    }
    read_ahead(base + batch);
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      if (!taken[b]) continue;
      if (first[b]) {
        if (leads) {
          runs.carry(2 * p, run);
        } else if (walks) {
          runs.store(run_key, run, start);
        }
        leads = comes_in && base + b == begin;
        walks = true;
        run_key = key[b];
        start = loaded[b];
      }
      value_t value = runs.value(loaded[b]);
      run = first[b] || (b == 0 && base == border) ? value : run.plus(value);
    }
  }
  if (leads) {
    runs.carry(2 * p, run);
  } else if (walks) {
    runs.store(run_key, joins ? earlier.plus(run) : run, start);
  }
}
