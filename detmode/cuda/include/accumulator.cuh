// The reproducible accumulator: sums that do not depend on the order of their addends.
//
// Pass 1 takes, per destination, the largest exponent of its addends (integer atomicMax). Pass 2
// writes each addend as an integer on the grid that this exponent and the headroom fix, and adds
// the integers (integer atomicAdd). Integer addition is associative, so any order, any GPU and any
// launch shape give the same bits. The sum is rounded to the dtype once, at the end.
//
// A destination of dtype scalar_t has `components` keys of int32 and `components * limbs` limbs of
// int64, both zero at the start. Between the passes lies the end of a launch; of a block that keeps
// them in its shared memory, a barrier.
//
//   accumulator<scalar_t> totals(keys, sums, headroom);
//   launch 1: totals.observe(destination, addend);
//   launch 2: totals.add(destination, addend);
//   launch 3: if (totals.any(destination)) out[destination] = totals.finish(destination);
//
// `headroom` is ceil(log2(n + 1)) for n no less than the number of addends of any destination, the
// initial value included where it is one. It is at most 36; the same in launches 2 and 3.
//
// Against a sum of float64 or of exact rationals: an addend is rounded to 2^(headroom - 62) of the
// largest addend (float and 16-bit types) or to 2^(2 * headroom - 125) (double), then nothing is
// lost before the last rounding. NaN, infinities and signed zeros come out as from IEEE additions:
// addends of -0.0 alone give -0.0, so where ATen adds to zeros, 0.0 joins the addends.
#pragma once

#include "crowd.cuh"
#include "dtype.cuh"
#include "index.cuh"
#include "sum_component.cuh"

// Keys and sums in memory.
struct in_memory {
  static __device__ __forceinline__ void raise(int32_t* key, int32_t to) { raise_to(key, to); }
  static __device__ __forceinline__ void add(int64_t* limb, int64_t part) {
    if (part != 0) atomic_add(limb, part);
  }
};

// Keys and sums in a block's shared memory.
struct in_block {
  static __device__ __forceinline__ void raise(int32_t* key, int32_t to) {
    raise_in_block(key, to);
  }
  static __device__ __forceinline__ void add(int64_t* limb, int64_t part) {
    add_in_block(limb, part);
  }
};

// Complex numbers are two components with a key each, as their addition is.
template <typename scalar_t, typename space = in_memory>
class accumulator {
  using part = accumulator_detail::component<opmath_t<real_t<scalar_t>>>;

 public:
  static constexpr int components = is_same<scalar_t, real_t<scalar_t>>::value ? 1 : 2;
  static constexpr int limbs = part::limbs;
  // Addends come in opmath_t: a product with a weight is not rounded to 16 bits before it is added.
  using addend_t = opmath_t<scalar_t>;
  struct key_t {
    int32_t of[components];
  };

  // What a launch only reads is const there.
  __device__ __forceinline__ accumulator(const int32_t* keys, const int64_t* sums, int64_t headroom)
      : keys_(const_cast<int32_t*>(keys)), sums_(const_cast<int64_t*>(sums)), headroom_(headroom) {}

  // Of `destinations` in a block's dynamic shared memory; behind their sums lie their keys.
  static __device__ __forceinline__ accumulator in_shared(int64_t destinations, int64_t headroom) {
    int64_t* sums = dynamic_shared<int64_t>();
    int64_t* behind = sums + destinations * components * limbs;
    return accumulator(reinterpret_cast<int32_t*>(behind), sums, headroom);
  }
  __device__ __forceinline__ int32_t* behind_keys(int64_t destinations) const {
    return key_at(destinations, 0);
  }
  __device__ __forceinline__ void clear(int64_t destination) const {
    for (int c = 0; c < components; ++c) {
      *key_at(destination, c) = accumulator_detail::NO_ADDEND;
      for (int k = 0; k < limbs; ++k) limb_at(destination, c)[k] = 0;
    }
  }

  __device__ __forceinline__ void observe(int64_t destination, addend_t addend) const {
    raise(destination, key_of(addend));
  }
  // The same for sums that finish_from_zero finishes, in fewer instructions.
  __device__ __forceinline__ void observe_from_zero(int64_t destination, addend_t addend) const {
    for (int c = 0; c < components; ++c) {
      auto value = accumulator_detail::component_of(addend, c);
      space::raise(key_at(destination, c), part::key_among_zeros(value));
    }
  }
  __device__ __forceinline__ void add(int64_t destination, addend_t addend) const {
    add(key(destination), destination, addend);
  }
  // For a kernel that is launched twice: without sums it observes its addends.
  __device__ __forceinline__ void observe_or_add(int64_t destination, addend_t addend) const {
    if (sums_ == nullptr) {
      observe(destination, addend);
    } else {
      add(destination, addend);
    }
  }
  // The same for two addends of each thread, -1 where one has no destination. Where the second
  // one's destination is the first one's of the next thread, that thread adds both: half of the
  // atomics of a smooth image. `together` holds where all threads of a warp call it at once, for
  // all of them.
  __device__ __forceinline__ void observe_or_add_pair(const int64_t (&destinations)[2],
                                                      const addend_t (&addends)[2],
                                                      bool together) const {
    static_assert(components == 1, "pairs of real numbers");
    constexpr unsigned int everyone = 0xffffffffu;
    bool gives = false, takes = false;
    if (together) {
      int lane = static_cast<int>(threadIdx.x) % WARP;
      int64_t next = __shfl_down_sync(everyone, destinations[0], 1);
      gives = lane < WARP - 1 && destinations[1] >= 0 && destinations[1] == next;
      takes = __shfl_up_sync(everyone, gives ? 1 : 0, 1) != 0 && lane > 0;
    }
    bool has[2] = {destinations[0] >= 0, destinations[1] >= 0};
    bool adds[2] = {has[0], has[1] && !gives};
    if (sums_ == nullptr) {
      key_t keys[2] = {};
      for (int i = 0; i < 2; ++i) {
        if (has[i]) keys[i] = key_of(addends[i]);
      }
      if (together) {
        int32_t before = __shfl_up_sync(everyone, keys[1].of[0], 1);
        if (takes && before > keys[0].of[0]) keys[0].of[0] = before;
      }
      for (int i = 0; i < 2; ++i) {
        if (adds[i]) raise(destinations[i], keys[i]);
      }
      return;
    }
    int64_t parts[2][limbs] = {};
    for (int i = 0; i < 2; ++i) {
      if (has[i]) scale(*key_at(destinations[i], 0), destinations[i], 0, addends[i], parts[i]);
    }
    for (int k = 0; together && k < limbs; ++k) {
      int64_t before = __shfl_up_sync(everyone, parts[1][k], 1);
      if (takes) parts[0][k] += before;
    }
    for (int i = 0; i < 2; ++i) {
      for (int k = 0; adds[i] && k < limbs; ++k) {
        space::add(limb_at(destinations[i], 0) + k, parts[i][k]);
      }
    }
  }

  // In steps, so that the reads of several keys are in flight together. A key that was `seen` may
  // have been raised since.
  static __device__ __forceinline__ key_t key_of(addend_t addend) {
    key_t key;
    for (int c = 0; c < components; ++c) {
      key.of[c] = part::key_of(accumulator_detail::component_of(addend, c));
    }
    return key;
  }
  __device__ __forceinline__ key_t seen(int64_t destination) const {
    key_t key;
    for (int c = 0; c < components; ++c) key.of[c] = load_relaxed(key_at(destination, c));
    return key;
  }
  __device__ __forceinline__ void raise(int64_t destination, key_t key, key_t seen = {}) const {
    for (int c = 0; c < components; ++c) {
      if (seen.of[c] < key.of[c]) space::raise(key_at(destination, c), key.of[c]);
    }
  }
  __device__ __forceinline__ key_t key(int64_t destination) const {
    key_t key;
    for (int c = 0; c < components; ++c) key.of[c] = *key_at(destination, c);
    return key;
  }
  __device__ __forceinline__ void add(key_t key, int64_t destination, addend_t addend) const {
    for (int c = 0; c < components; ++c) {
      int64_t parts[limbs];
      if (!scale(key.of[c], destination, c, addend, parts)) continue;
      for (int k = 0; k < limbs; ++k) space::add(limb_at(destination, c) + k, parts[k]);
    }
  }
  // Adds the sum of a destination to that in memory, which has the same key.
  __device__ __forceinline__ void join(int64_t destination, int64_t* sums) const {
    for (int c = 0; c < components; ++c) {
      bool special = *key_at(destination, c) >= accumulator_detail::SPECIAL;
      for (int k = 0; k < limbs; ++k) {
        int64_t part = limb_at(destination, c)[k];
        int64_t* limb = sums + (destination * components + c) * limbs + k;
        if (special) {
          if (part != 0)
            atomicOr(reinterpret_cast<unsigned long long*>(limb), static_cast<uint64_t>(part));
        } else {
          in_memory::add(limb, part);
        }
      }
    }
  }
  // Where `together` holds, all threads of a warp call it at once (crowd.cuh).
  __device__ __forceinline__ void add_in_warp(key_t key, int64_t destination, addend_t addend,
                                              bool together) const {
    for (int c = 0; c < components; ++c) {
      int64_t parts[limbs] = {};
      scale(key.of[c], destination, c, addend, parts);
      ::add_in_warp(limb_at(destination, c), parts, together);
    }
  }

  // Whether the destination has met an addend; without one it keeps its bits.
  __device__ __forceinline__ bool any(int64_t destination) const {
    return *key_at(destination, 0) != accumulator_detail::NO_ADDEND;
  }
  __device__ __forceinline__ scalar_t finish(int64_t destination) const {
    return rounded<scalar_t>(destination);
  }
  // The sum in opmath_t, for a division (mean) before the rounding to scalar_t.
  __device__ __forceinline__ addend_t finish_opmath(int64_t destination) const {
    return rounded<addend_t>(destination);
  }
  // Where ATen adds to zeros, an element without an addend is 0.0, and so is one whose addends are
  // -0.0.
  __device__ __forceinline__ scalar_t finish_from_zero(int64_t destination) const {
    scalar_t sum = finish(destination);
    return to_opmath(sum) == 0 ? from_opmath<scalar_t>(0) : sum;
  }

 private:
  __device__ __forceinline__ int32_t* key_at(int64_t destination, int component) const {
    return keys_ + destination * components + component;
  }
  __device__ __forceinline__ int64_t* limb_at(int64_t destination, int component) const {
    return sums_ + (destination * components + component) * limbs;
  }
  __device__ __forceinline__ bool scale(int32_t key, int64_t destination, int component,
                                        addend_t addend, int64_t (&parts)[limbs]) const {
    return part::scale(key, limb_at(destination, component),
                       accumulator_detail::component_of(addend, component), headroom_, parts);
  }
  template <typename result_t>
  __device__ __forceinline__ result_t rounded(int64_t destination) const {
    auto component = [&](int c) {
      return part::template finish<real_t<result_t>>(*key_at(destination, c),
                                                     limb_at(destination, c), headroom_);
    };
    if constexpr (components == 1) {
      return component(0);
    } else {
      return result_t(component(0), component(1));
    }
  }

  int32_t* keys_;
  int64_t* sums_;
  int64_t headroom_;
};
