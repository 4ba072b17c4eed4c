// Sums of single elements by destination, exact but for one rounding at the end, in one pass over
// the addends: extent, begin, add, finish.
//
// A destination has bins, integers of 64 bits, for as many exponents each as `width` says: the
// first for the largest exponent of all addends and initial values and those right below it, and so
// on down to the smallest one. An addend is its significand, shifted to its place in one bin, which
// takes it by one integer addition. Nothing is dropped, so neither the order of the addends nor the
// exponents that the bins begin with show in a sum.
#include "block_reduce.cuh"
#include "crowd.cuh"
#include "scaling.cuh"
#include "sum_component.cuh"

// These are also in exponent_bins.py.
constexpr int THREADS = 256;
constexpr int TOGETHER = 4;

// A destination has fewer than 2^24 addends, its initial value among them.
constexpr int COUNT_BITS = 24;

template <typename scalar_t>
struct bins_of {
  using F = format<scalar_t>;
  static constexpr int special = 2 * F::bias + 1;  // the exponent of infinities and NaN
  static constexpr int width = F::precision <= 8 ? 32 : 16;
  static constexpr int most = (special - 1 + width - 1) / width;
  // The sum of a bin, and all that is carried to it.
  static_assert(COUNT_BITS + F::precision + width - 1 <= 63, "a bin overflows");
};

// A number as significand * 2^exponent, but for what its dtype adds to all exponents. Denormals
// have the exponent of the smallest normal number; zeros have no significand.
struct number {
  int32_t exponent;
  uint32_t significand;
  bool negative;
};
template <typename scalar_t>
static __device__ __forceinline__ number number_of(scalar_t value) {
  using F = format<scalar_t>;
  uint32_t word = F::to_bits(value), one = uint32_t(1) << (F::precision - 1);
  int32_t exponent = static_cast<int32_t>(word >> (F::precision - 1)) & bins_of<scalar_t>::special;
  uint32_t fraction = word & (one - 1);
  bool negative = word >> (accumulator_detail::bits_of<scalar_t> - 1) != 0;
  return {max(exponent, 1), exponent != 0 ? fraction | one : fraction, negative};
}

// What a destination notes beside its bins.
constexpr int64_t SAW_NAN = accumulator_detail::SAW_NAN;
constexpr int64_t SAW_INFINITY = accumulator_detail::SAW_POSITIVE_INFINITY;
constexpr int64_t SAW_NEGATIVE_INFINITY = accumulator_detail::SAW_NEGATIVE_INFINITY;
constexpr int64_t SAW_SPECIAL = SAW_NAN | SAW_INFINITY | SAW_NEGATIVE_INFINITY;
constexpr int64_t SAW_POSITIVE = 8;  // 0.0 too

template <typename scalar_t>
static __device__ __forceinline__ int64_t note_of(number x) {
  if (x.exponent != bins_of<scalar_t>::special) return 0;
  constexpr uint32_t infinity = uint32_t(1) << (format<scalar_t>::precision - 1);
  return x.significand != infinity ? SAW_NAN : x.negative ? SAW_NEGATIVE_INFINITY : SAW_INFINITY;
}
static __device__ __forceinline__ void take_note(int64_t* notes, int64_t note) {
  if (note == 0 || (load_relaxed(notes) & note) == note) return;
  atomicOr(reinterpret_cast<unsigned long long*>(notes), static_cast<unsigned long long>(note));
}

// Of all addends and initial values: the exponents of those that are finite and not zero, and
// whether destinations take notes.
constexpr int32_t MARK_SPECIAL = 1;        // an infinity or NaN is among them
constexpr int32_t MARK_NEGATIVE_ZERO = 2;  // -0.0 is an initial value, and may be a sum
struct extent {
  int32_t highest, lowest, marks;
};
constexpr extent NOTHING = {0, 0x7fffffff, 0};

static __device__ __forceinline__ extent joined(extent a, extent b) {
  return {max(a.highest, b.highest), min(a.lowest, b.lowest), a.marks | b.marks};
}
template <typename scalar_t>
static __device__ __forceinline__ extent extent_of(number x) {
  if (x.significand == 0) return NOTHING;
  if (x.exponent == bins_of<scalar_t>::special) return {0, NOTHING.lowest, MARK_SPECIAL};
  return {x.exponent, x.exponent, 0};
}

// The bins of all destinations lie behind their notes, the first ones first.
template <typename scalar_t>
class exponent_bins {
  using sizes = bins_of<scalar_t>;

 public:
  __device__ __forceinline__ exponent_bins(int64_t* memory, int64_t size, extent all)
      : memory_(memory), size_(size), highest_(all.highest), takes_notes_(all.marks != 0) {
    count_ = all.highest == 0 ? 0 : (all.highest - all.lowest) / sizes::width + 1;
  }
  __device__ __forceinline__ int64_t* notes(int64_t destination) const {
    return memory_ + destination;
  }
  __device__ __forceinline__ int64_t* bin(int64_t destination, int index) const {
    return memory_ + (1 + index) * size_ + destination;
  }

  // The bin of a finite number, and what it adds there; nothing to the first one for others.
  struct place {
    int bin;
    int64_t part;
  };
  __device__ __forceinline__ place of(number x) const {
    if (x.significand == 0 || x.exponent == sizes::special) return {0, 0};
    int below = highest_ - x.exponent, bin = below / sizes::width;
    int64_t part = static_cast<int64_t>(x.significand)
                   << (sizes::width - 1 - (below - bin * sizes::width));
    return {bin, x.negative ? -part : part};
  }

  __device__ __forceinline__ void begin(int64_t destination, number self) const {
    place initial = of(self);
    for (int b = 0; b < count_; ++b) *bin(destination, b) = b == initial.bin ? initial.part : 0;
    if (takes_notes_) *notes(destination) = note_of<scalar_t>(self);
  }

  struct integer {
    int64_t high;
    uint64_t low;
    int exponent;
  };
  // The sum of all bins, as an integer of less than 2^97 times a power of two. Of more than 64 bits
  // the last one also stands for what is below.
  __device__ __forceinline__ integer sum(int64_t destination) const {
    constexpr int width = sizes::width;
    constexpr int64_t digit = (int64_t(1) << width) - 1;
    int64_t limb[sizes::most];
#pragma unroll
    for (int b = 0; b < sizes::most; ++b) limb[b] = b < count_ ? *bin(destination, b) : 0;
    // Digits that are not negative, but for the first one, by carries from the last one on.
#pragma unroll
    for (int b = sizes::most - 1; b > 0; --b) {
      if (b >= count_) continue;
      limb[b - 1] += limb[b] >> width;
      limb[b] &= digit;
    }
    int64_t high = limb[0] >> 63;
    uint64_t low = static_cast<uint64_t>(limb[0]);
    int last = 0;
    bool below = false;
#pragma unroll
    for (int b = 1; b < sizes::most; ++b) {
      if (b >= count_) break;
      if (high == 0 || high == -1) {
        high = static_cast<int64_t>(static_cast<uint64_t>(high) << width | low >> (64 - width));
        low = low << width | static_cast<uint64_t>(limb[b]);
        last = b;
      } else {
        below = below || limb[b] != 0;
      }
    }
    int exponent = highest_ - ((last + 1) * width - 1) - format<scalar_t>::bias -
                   (format<scalar_t>::precision - 1);
    return {high, low | (below ? 1 : 0), exponent};
  }

 private:
  int64_t* memory_;
  int64_t size_;
  int32_t highest_, count_;
  bool takes_notes_;
};

// Each block's extent of its share of the addends and initial values.
template <typename scalar_t>
__global__ void __launch_bounds__(THREADS)
    bins_extent(const scalar_t* __restrict__ source, const scalar_t* __restrict__ self,
                int32_t* __restrict__ extents, int64_t n, int64_t size, scaling alpha) {
  constexpr int batch = 8;
  extent all = NOTHING;
  for (int64_t first = thread_index(); first < n; first += batch * thread_count()) {
    scalar_t values[batch];
#pragma unroll
    for (int k = 0; k < batch; ++k) {
      values[k] = source[min_index(first + k * thread_count(), n - 1)];
    }
#pragma unroll
    for (int k = 0; k < batch; ++k) {
      scalar_t value = from_opmath<scalar_t>(addend(values[k], alpha));
      all = joined(all, extent_of<scalar_t>(number_of(value)));
    }
  }
#pragma unroll 1
  for (int64_t i = thread_index(); i < size; i += thread_count()) {
    number initial = number_of(self[i]);
    all = joined(all, extent_of<scalar_t>(initial));
    if (initial.significand == 0 && initial.negative) all.marks |= MARK_NEGATIVE_ZERO;
  }
  all = block_reduce<THREADS>(all, joined, NOTHING);
  if (threadIdx.x == 0) reinterpret_cast<extent*>(extents)[blockIdx.x] = all;
}

// The extent of all, which each block finds for itself and the first one writes behind the others,
// and the bins with the initial values.
template <typename scalar_t>
__global__ void __launch_bounds__(THREADS)
    bins_begin(const scalar_t* __restrict__ self, int32_t* __restrict__ extents,
               int64_t* __restrict__ bins, int64_t size, int64_t parts) {
  extent* of_blocks = reinterpret_cast<extent*>(extents);
  __shared__ extent whole;
  extent all = NOTHING;
#pragma unroll 1
  for (int64_t p = threadIdx.x; p < parts; p += THREADS) all = joined(all, of_blocks[p]);
  all = block_reduce<THREADS>(all, joined, NOTHING);
  if (threadIdx.x == 0) {
    whole = all;
    if (blockIdx.x == 0) of_blocks[parts] = all;
  }
  __syncthreads();
  exponent_bins<scalar_t> totals(bins, size, whole);
#pragma unroll 1
  for (int64_t i = thread_index(); i < size; i += thread_count()) {
    totals.begin(i, number_of(self[i]));
  }
}

template <typename scalar_t>
__global__ void __launch_bounds__(THREADS)
    bins_add(const int64_t* __restrict__ index, const scalar_t* __restrict__ source,
             const int32_t* __restrict__ extents, int64_t* __restrict__ bins, int64_t n,
             int64_t size, bool wraps, int64_t parts, scaling alpha) {
  extent all = reinterpret_cast<const extent*>(extents)[parts];
  exponent_bins<scalar_t> totals(bins, size, all);
  int lane = static_cast<int>(threadIdx.x) % WARP;
  // A warp goes on until none of its threads has an element.
  for (int64_t first = thread_index(); first - lane < n; first += TOGETHER * thread_count()) {
    int64_t positions[TOGETHER];
    scalar_t values[TOGETHER];
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k) {
      int64_t i = min_index(first + k * thread_count(), n - 1);
      positions[k] = from_start(index[i], size, wraps);
      values[k] = source[i];
    }
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k) {
      int64_t i = first + k * thread_count();
      if (i - lane >= n) break;
      DETMODE_ASSERT(positions[k] >= 0 && positions[k] < size);
      number x = number_of(from_opmath<scalar_t>(addend(values[k], alpha)));
      auto place = totals.of(x);
      // The last element is nothing when it comes again, but for what it notes.
      int64_t part[1] = {i < n ? place.part : 0};
      add_in_warp(totals.bin(positions[k], place.bin), part, true);
      if (all.marks != 0) {
        int64_t note = note_of<scalar_t>(x);
        if ((all.marks & MARK_NEGATIVE_ZERO) && !x.negative) note |= SAW_POSITIVE;
        take_note(totals.notes(positions[k]), note);
      }
    }
  }
}

// A destination without addends keeps its bits: the sum of one number is that number. A NaN stays
// as it is, and so does -0.0 where all addends are: without a positive one, or 0.0, others would
// not have brought it back to zero. Other sums that are zero are 0.0.
template <typename scalar_t>
__global__ void __launch_bounds__(THREADS)
    bins_finish(const int32_t* __restrict__ extents, const int64_t* __restrict__ bins,
                scalar_t* __restrict__ out, int64_t size, int64_t parts) {
  using namespace accumulator_detail;
  extent all = reinterpret_cast<const extent*>(extents)[parts];
  exponent_bins<scalar_t> totals(const_cast<int64_t*>(bins), size, all);
  for (int64_t i = thread_index(); i < size; i += thread_count()) {
    int64_t note = all.marks != 0 ? *totals.notes(i) : 0, special = note & SAW_SPECIAL;
    if (special != 0) {
      if (is_nan(out[i])) continue;
      out[i] = component<opmath_t<scalar_t>>::template finish<scalar_t>(SPECIAL, &special, 0);
      continue;
    }
    auto sum = totals.sum(i);
    uint64_t high = static_cast<uint64_t>(sum.high), low = sum.low;
    bool negative = sum.high < 0;
    if (negative) {
      low = 0 - low;
      high = ~high + (low == 0 ? 1 : 0);
    }
    bool positive = (note & SAW_POSITIVE) != 0;
    if ((high | low) == 0 && !positive && to_opmath(out[i]) == 0) continue;
    out[i] = round_to<scalar_t>(negative, high, low, sum.exponent);
  }
}
