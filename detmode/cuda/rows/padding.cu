// Backward of replication and of reflection padding: one thread owns an element of grad_input in
// neighbouring planes and gathers the outputs that copied it. Where replication copied it often,
// the thread's warp gathers. No two threads write one element, so there are no atomics.
#include "block_reduce.cuh"
#include "compensated_sum.cuh"
#include "dtype.cuh"
#include "index_type.cuh"
#include "planes.cuh"

// More copies than these are gathered by a warp.
static constexpr int ALONE = 64;
static constexpr int LANES = 32;

// One axis. Output `o` lies at o - padding in the input; a negative padding crops.
struct padded_axis {
  int64_t size, out, padding;
};

// The same in the type of positions.
template <typename index_t>
struct Axis {
  index_t in;
  index_t out;
  index_t padding;
  __device__ __forceinline__ Axis(const padded_axis& axis)
      : in(static_cast<index_t>(axis.size)),
        out(static_cast<index_t>(axis.out)),
        padding(static_cast<index_t>(axis.padding)) {}
};

// Candidates [begin, end) for the outputs that copied one input position.
template <typename index_t>
struct Range {
  index_t begin;
  index_t end;
};

// Replication: input `i` was copied to a run of outputs, and each candidate is one of them. All
// outputs before the first input position copied that one, all after the last the last.
template <bool reflect, typename index_t>
static __device__ __forceinline__ Range<index_t> candidates(index_t i, const Axis<index_t>& axis) {
  if (reflect) return {0, 3};
  index_t begin = i == 0 ? 0 : most<index_t>(i + axis.padding, 0);
  index_t end = i == axis.in - 1 ? axis.out : least<index_t>(i + axis.padding + 1, axis.out);
  return {begin, most(begin, end)};
}

// The output of candidate `k`, or -1 where it is none. Reflection: the image before the input, the
// position itself and the image behind the input, which ascend; the ends are their own images.
template <bool reflect, typename index_t>
static __device__ __forceinline__ index_t output_of(index_t k, index_t i,
                                                    const Axis<index_t>& axis) {
  if (!reflect) return k;
  if ((k == 0 && i == 0) || (k == 2 && i == axis.in - 1)) return -1;
  index_t o = axis.padding + (k == 0 ? -i : k == 1 ? i : 2 * (axis.in - 1) - i);
  return o < axis.out ? most<index_t>(o, -1) : -1;
}

// The sum of one element; a complex one has two.
template <typename scalar_t>
struct Sum {
  compensated_sum<opmath_t<scalar_t>> total;
  __device__ __forceinline__ void add(opmath_t<scalar_t> value) { total.add(value); }
  __device__ __forceinline__ void add(const Sum& later) { total.add(later.total); }
  __device__ __forceinline__ opmath_t<scalar_t> rounded() const { return total.rounded(); }
};
template <typename T>
struct Sum<complex<T>> {
  Sum<T> re;
  Sum<T> im;
  __device__ __forceinline__ void add(complex<T> value) {
    re.add(value.re);
    im.add(value.im);
  }
  __device__ __forceinline__ void add(const Sum& later) {
    re.add(later.re);
    im.add(later.im);
  }
  __device__ __forceinline__ complex<T> rounded() const {
    return complex<T>(re.rounded(), im.rounded());
  }
};

template <typename scalar_t>
struct Joined {
  __device__ __forceinline__ Sum<scalar_t> operator()(Sum<scalar_t> earlier,
                                                      Sum<scalar_t> later) const {
    earlier.add(later);
    return earlier;
  }
};

// A position in the planes of grad_input, and what may have copied it.
template <bool reflect, typename index_t>
struct Element {
  index_t positions[3];
  Range<index_t> ranges[3];
  __device__ __forceinline__ Element(index_t position, const Axis<index_t> (&axes)[3]) {
    index_t row = quotient(position, axes[2].in), frame = quotient(row, axes[1].in);
    positions[0] = frame;
    positions[1] = row - frame * axes[1].in;
    positions[2] = position - row * axes[2].in;
#pragma unroll
    for (int a = 0; a < 3; ++a) ranges[a] = candidates<reflect>(positions[a], axes[a]);
  }
  __device__ __forceinline__ index_t length(int a) const { return ranges[a].end - ranges[a].begin; }
  __device__ __forceinline__ bool many() const {
    return !reflect && length(0) * length(1) * length(2) > ALONE;
  }
};

// `count` neighbouring planes of grad_output, `hop` elements apart.
template <typename scalar_t, typename index_t>
struct Planes {
  const scalar_t* first;
  index_t hop, count;
};

// Adds the output at `place` of each plane to the sum of the plane; zeros where there is no plane.
template <int per_thread, typename scalar_t, typename index_t>
static __device__ __forceinline__ void add_at(const Planes<scalar_t, index_t>& planes,
                                              index_t place, Sum<scalar_t> (&sums)[per_thread]) {
  opmath_t<scalar_t> values[per_thread];
  load_planes(planes.first + place, planes.hop, planes.count, opmath_t<scalar_t>(0), values);
#pragma unroll
  for (int j = 0; j < per_thread; ++j) sums[j].add(values[j]);
}

// Outputs in row-major order: d, then h, then w.
template <bool reflect, int per_thread, typename scalar_t, typename index_t>
static __device__ __forceinline__ void gather_alone(const Planes<scalar_t, index_t>& planes,
                                                    const Element<reflect, index_t>& element,
                                                    const Axis<index_t> (&axes)[3],
                                                    Sum<scalar_t> (&sums)[per_thread]) {
#pragma unroll 1
  for (index_t kd = element.ranges[0].begin; kd < element.ranges[0].end; ++kd) {
    index_t d = output_of<reflect>(kd, element.positions[0], axes[0]);
    if (d < 0) continue;
#pragma unroll 1
    for (index_t kh = element.ranges[1].begin; kh < element.ranges[1].end; ++kh) {
      index_t h = output_of<reflect>(kh, element.positions[1], axes[1]);
      if (h < 0) continue;
      index_t line = (d * axes[1].out + h) * axes[2].out;
      for (index_t kw = element.ranges[2].begin; kw < element.ranges[2].end; ++kw) {
        index_t w = output_of<reflect>(kw, element.positions[2], axes[2]);
        if (w >= 0) add_at(planes, line + w, sums);
      }
    }
  }
}

// Outputs in row-major order, numbered from 0: a lane adds every 32nd, from its own number on; then
// the lanes' sums are joined, neighbours first. Lane 0 has the sums.
template <int per_thread, typename scalar_t, typename index_t>
static __device__ __forceinline__ void gather_together(const Planes<scalar_t, index_t>& planes,
                                                       const Element<false, index_t>& element,
                                                       const Axis<index_t> (&axes)[3], int lane,
                                                       Sum<scalar_t> (&sums)[per_thread]) {
  index_t height = element.length(1);
  index_t width = element.length(2);
  index_t count = element.length(0) * height * width;
  for (index_t k = lane; k < count; k += LANES) {
    index_t row = quotient(k, width);
    index_t frame = quotient(row, height);
    index_t d = element.ranges[0].begin + frame;
    index_t h = element.ranges[1].begin + row - frame * height;
    index_t w = element.ranges[2].begin + k - row * width;
    add_at(planes, (d * axes[1].out + h) * axes[2].out + w, sums);
  }
#pragma unroll
  for (int j = 0; j < per_thread; ++j) sums[j] = warp_reduce(sums[j], Joined<scalar_t>());
}

template <int per_thread, typename scalar_t, typename index_t>
static __device__ __forceinline__ void store(scalar_t* grad_input, index_t hop, index_t count,
                                             const Sum<scalar_t> (&sums)[per_thread]) {
  opmath_t<scalar_t> results[per_thread];
#pragma unroll
  for (int j = 0; j < per_thread; ++j) results[j] = sums[j].rounded();
  store_planes(grad_input, hop, count, results);
}

// Neighbouring threads own neighbouring positions, a thread `per_thread` planes. A warp's lanes
// stay together: where one of them has many outputs to gather, all 32 gather them, one such
// position after the other.
template <typename scalar_t, bool reflect, int per_thread, typename index_t>
__global__ void pad_backward(const scalar_t* __restrict__ grad_output,
                             scalar_t* __restrict__ grad_input, int64_t planes, padded_axis d,
                             padded_axis h, padded_axis w) {
  auto narrow = [](int64_t value) { return static_cast<index_t>(value); };
  const Axis<index_t> axes[3] = {d, h, w};
  index_t positions = narrow(d.size * h.size * w.size), outputs = narrow(d.out * h.out * w.out);
  int64_t n = ceil_div(planes, per_thread) * positions;
  int lane = static_cast<int>(threadIdx.x) % LANES;
  // What a thread does first, for position i of all groups of planes.
  auto group_of = [&](int64_t i, index_t& position) {
    index_t group = quotient(narrow(i), positions);
    position = narrow(i) - group * positions;
    return static_cast<int64_t>(group) * per_thread;
  };
  auto planes_from = [&](int64_t plane) {
    return Planes<scalar_t, index_t>{grad_output + plane * outputs, outputs,
                                     narrow(min_index(planes - plane, per_thread))};
  };
  for (int64_t first = thread_index() - lane; first < n; first += thread_count()) {
    bool many = false;
    if (first + lane < n) {
      index_t position;
      int64_t plane = group_of(first + lane, position);
      Element<reflect, index_t> element(position, axes);
      many = element.many();
      if (!many) {
        Planes<scalar_t, index_t> group = planes_from(plane);
        Sum<scalar_t> sums[per_thread] = {};
        gather_alone(group, element, axes, sums);
        store(grad_input + plane * positions + position, positions, group.count, sums);
      }
    }
    if constexpr (!reflect) {
      for (unsigned int left = __ballot_sync(0xffffffffu, many); left != 0; left &= left - 1) {
        index_t position;
        int64_t plane = group_of(first + __ffs(static_cast<int>(left)) - 1, position);
        Planes<scalar_t, index_t> group = planes_from(plane);
        Sum<scalar_t> sums[per_thread] = {};
        gather_together(group, Element<false, index_t>(position, axes), axes, lane, sums);
        if (lane == 0) {
          store(grad_input + plane * positions + position, positions, group.count, sums);
        }
      }
    }
  }
}
