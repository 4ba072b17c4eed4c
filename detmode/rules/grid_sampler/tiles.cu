// The input's gradient for a smooth grid: neighbouring samples meet neighbouring elements.
//
// A box of samples, a warp's, goes on the lists of the tiles that its taps meet. Then a block owns
// a tile of some channels, in shared memory, and adds its list's boxes: integers, in any order.
//
// counts[0] says whether a grid is too rough for that: a box meets tiles that are no neighbours, or
// a tile more boxes than its list holds. Then nothing is added here. counts[1 + i] is of tile i.
//
// Samples are linear: along each axis the second of two taps is behind the first.
#include "accumulator.cuh"
#include "sample.cuh"

// How samples are cut into boxes, and an input into tiles.
template <int dims>
struct cut {
  // Samples of a box.
  static constexpr int w = dims == 3 ? 4 : 8, h = 4, d = dims == 3 ? 2 : 1;
  // Of a number along an axis: a box's in a list, a tap's in a record.
  static constexpr int bits = dims == 3 ? 10 : 16;
  // Elements of a tile along each axis: 2^log.
  static __device__ constexpr int log(int axis) { return dims == 2 ? 5 : axis == 2 ? 3 : 4; }
  static __device__ constexpr int32_t side(int axis) { return 1 << log(axis); }
  // From an element to the next along each axis, in shared memory: the samples of a box meet other
  // banks each, where neighbours meet neighbours.
  static __device__ constexpr int32_t pitch(int axis) {
    return axis == 0 ? 1 : axis == 2 ? 336 : dims == 2 ? 40 : 20;
  }
  static constexpr int32_t elements = dims == 2 ? 32 * 40 : 8 * 336;
  static constexpr int32_t numbered = dims == 2 ? 32 * 32 : 8 * 16 * 16;

  static __device__ __forceinline__ Volume boxes(const extents& output_size) {
    return {{ceil_div(output_size.w, w), ceil_div(output_size.h, h), ceil_div(output_size.d, d)}};
  }
  static __device__ __forceinline__ Volume tiles(const extents& input_size) {
    int64_t deep = dims == 3 ? ceil_div(input_size.d, side(2)) : 1;
    return {{ceil_div(input_size.w, side(0)), ceil_div(input_size.h, side(1)), deep}};
  }
  static __device__ __forceinline__ uint32_t packed(uint32_t x, uint32_t y, uint32_t z) {
    return x | y << bits | (dims == 3 ? z << (2 * bits) : 0);
  }
  static __device__ __forceinline__ int32_t along(uint32_t packed, int axis) {
    return static_cast<int32_t>(packed >> (axis * bits) & ((1u << bits) - 1));
  }
  // The sample of a lane. Of the last boxes along an axis, some lie beyond the output.
  static __device__ __forceinline__ Volume sample(uint32_t box, int lane) {
    return {{along(box, 0) * w + lane % w, along(box, 1) * h + lane / w % h,
             dims == 3 ? along(box, 2) * d + lane / (w * h) : 0}};
  }
  // The place of an element along an axis of a tile.
  static __device__ __forceinline__ int32_t place(int32_t i, int axis) {
    return (i >> (axis == 0 ? 0 : axis == 1 ? log(0) : log(0) + log(1))) % side(axis);
  }
};

// What a tile needs of a sample: one more than the first tap's index along each axis, 0 for one
// that is outside; and the weight of the second tap.
template <typename T>
struct alignas(4 * sizeof(T)) record {
  uint32_t taps;
  T weight[3];
};
constexpr uint32_t NO_TAPS = 0xffffffffu;

template <typename scalar_t, int dims>
static __device__ __forceinline__ record<opmath_t<scalar_t>> record_of(
    const Sample<scalar_t, dims, 2>& sample, bool meets) {
  record<opmath_t<scalar_t>> result = {NO_TAPS};
  if (!meets) return result;
  result.taps =
      cut<dims>::packed(sample.x.index[0] + 1, sample.y.index[0] + 1, sample.z.index[0] + 1);
  result.weight[0] = sample.x.weight[1];
  result.weight[1] = sample.y.weight[1];
  if constexpr (dims == 3) result.weight[2] = sample.z.weight[1];
  return result;
}

// The tile of the first tap along an axis that is inside, or -1.
template <int log, typename T, int taps>
static __device__ __forceinline__ int32_t first_tile(const Taps<T, taps>& axis) {
  return (axis.index[0] >= 0 ? axis.index[0] : axis.index[taps - 1]) >> log;
}

// Of the tiles before, at and behind `middle`, a bit for each that a tap along an axis meets,
// `step` bits apart; raises `far` where a tap meets another tile.
template <int log, int step, typename T, int taps>
static __device__ __forceinline__ uint32_t tiles_near(const Taps<T, taps>& axis, int32_t middle,
                                                      bool& far) {
  uint32_t tiles = 0;
#pragma unroll
  for (int i = 0; i < taps; ++i) {
    uint32_t position = static_cast<uint32_t>((axis.index[i] >> log) - middle + 1);
    if (axis.index[i] < 0) continue;
    far |= position > 2;
    tiles |= position > 2 ? 0 : 1u << (step * position);
  }
  return tiles;
}

// Boxes in a row that a warp takes, for which it divides once.
constexpr int BOXES = 4;

template <typename scalar_t, int dims>
__global__ void grid_sampler_boxes(const scalar_t* __restrict__ grid, int32_t* counts,
                                   uint32_t* __restrict__ lists,
                                   record<opmath_t<scalar_t>>* __restrict__ records,
                                   int64_t most_boxes, extents input_size, extents output_size,
                                   extents grid_stride, int64_t padding, bool align_corners) {
  constexpr unsigned int everyone = 0xffffffffu;
  using shape = cut<dims>;
  Volume in = along(input_size), out = along(output_size), stride = along(grid_stride);
  Volume boxes = shape::boxes(output_size), tiles = shape::tiles(input_size), runs = boxes;
  runs.along[0] = ceil_div(boxes.along[0], BOXES);
  int64_t all = input_size.n * runs.elements();
  int lane = static_cast<int>(threadIdx.x) % WARP;
  for (int64_t run = thread_index() / WARP; run < all; run += thread_count() / WARP) {
    if (__any_sync(everyone, load_relaxed(counts) != 0)) return;
    int64_t image = quick_div(run, runs.elements());
    Volume number = unravelled(run - image * runs.elements(), runs);
    int64_t row = (image * boxes.along[2] + number.along[2]) * boxes.along[1] + number.along[1];
    int64_t end = min_index((number.along[0] + 1) * BOXES, boxes.along[0]);
    for (int64_t x = number.along[0] * BOXES; x < end; ++x) {
      uint32_t box = shape::packed(x, number.along[1], number.along[2]);
      Volume place = shape::sample(box, lane);
      bool meets = place.along[0] < out.along[0] && place.along[1] < out.along[1] &&
                   place.along[2] < out.along[2];
      const scalar_t* coordinates = grid + image * grid_stride.n + (meets ? place.dot(stride) : 0);
      Sample<scalar_t, dims, 2> sample(coordinates, grid_stride.c, in, padding, align_corners);
      int32_t middle[3] = {first_tile<shape::log(0)>(sample.x), first_tile<shape::log(1)>(sample.y),
                           dims == 3 ? first_tile<shape::log(2)>(sample.z) : 0};
      meets = meets && middle[0] >= 0 && middle[1] >= 0 && middle[2] >= 0;
      records[(row * boxes.along[0] + x) * WARP + lane] = record_of(sample, meets);
      unsigned int voters = __ballot_sync(everyone, meets);
      if (voters == 0) continue;
      int leader = __ffs(static_cast<int>(voters)) - 1;
#pragma unroll
      for (int axis = 0; axis < dims; ++axis) {
        middle[axis] = __shfl_sync(everyone, middle[axis], leader);
      }
      bool far = false;
      uint32_t met = tiles_near<shape::log(0), 1>(sample.x, middle[0], far) *
                     tiles_near<shape::log(1), 3>(sample.y, middle[1], far);
      met *= dims == 3 ? tiles_near<shape::log(2), 9>(sample.z, middle[2], far) : 1 << 9;
      if (!meets) met = 0;
      for (int distance = WARP / 2; distance > 0; distance /= 2) {
        met |= __shfl_xor_sync(everyone, met, distance);
      }
      if (__any_sync(everyone, meets && far)) {
        if (lane == leader) raise_to(counts, 1);
        return;
      }
      // A lane for each of 27 tiles.
      if ((met >> lane & 1) == 0) continue;
      int64_t beside = middle[0] + lane % 3 - 1, above = middle[1] + lane / 3 % 3 - 1;
      int64_t before = image * tiles.along[2] + middle[2] + lane / 9 - 1;
      int64_t list = (before * tiles.along[1] + above) * tiles.along[0] + beside;
      int32_t position = atomic_add(counts + 1 + list, 1);
      if (position < most_boxes) {
        lists[list * most_boxes + position] = box;
      } else {
        raise_to(counts, 1);
      }
    }
  }
}

// What a block reads for a tile, whose first element is `begin`: the records of an image's samples,
// its list, and the gradients of `served` channels.
template <typename scalar_t, int dims>
struct TileOfSamples {
  using T = opmath_t<scalar_t>;
  using shape = cut<dims>;
  const record<T>* records;
  const uint32_t* list;
  const scalar_t* gradients;
  int32_t boxes, row, frame, served;
  int32_t begin[3];

  // visit(element, addend): an element of the tile; those of its other channels lie behind it.
  template <typename Visit>
  __device__ __forceinline__ void each(const extents& stride, Visit visit) const {
    int lane = static_cast<int>(threadIdx.x) % WARP;
    for (int32_t b = threadIdx.x / WARP; b < boxes; b += blockDim.x / WARP) {
      uint32_t box = list[b];
      int32_t number = shape::along(box, 0) + shape::along(box, 1) * row;
      if (dims == 3) number += shape::along(box, 2) * frame;
      record<T> sample = records[static_cast<int64_t>(number) * WARP + lane];
      if (sample.taps == NO_TAPS) continue;
      const scalar_t* gradient = gradients + shape::sample(box, lane).dot(along(stride));
      each_of(sample, gradient, stride.c, visit);
    }
  }

  template <typename Visit>
  __device__ __forceinline__ void each_of(const record<T>& sample, const scalar_t* gradient,
                                          int64_t hop, Visit visit) const {
    constexpr int depth = dims == 3 ? 2 : 1;
    T weight[3][2];
    bool inside[3][2];
    int32_t corner = 0;
#pragma unroll
    for (int axis = 0; axis < dims; ++axis) {
      int32_t at = shape::along(sample.taps, axis) - 1 - begin[axis];
      corner += at * shape::pitch(axis);
      weight[axis][0] = sub_rn(T(1), sample.weight[axis]);
      weight[axis][1] = sample.weight[axis];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        inside[axis][i] = static_cast<uint32_t>(at + i) < shape::side(axis);
    }
    for (int32_t c = 0; c < served; ++c, gradient += hop, corner += shape::elements) {
      T each = to_opmath(*gradient);
#pragma unroll
      for (int k = 0; k < depth; ++k) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (!inside[1][j] || (dims == 3 && !inside[2][k])) continue;
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (!inside[0][i]) continue;
            T product = mul_rn(weight[0][i], weight[1][j]);
            if (dims == 3) product = mul_rn(product, weight[2][k]);
            visit(corner + k * shape::pitch(2) + j * shape::pitch(1) + i, mul_rn(product, each));
          }
        }
      }
    }
  }
};

// Keys and sums of a tile, whose elements meet a few addends each: of those most raise a key, and
// few have a half that is 0.
struct in_tile {
  static __device__ __forceinline__ void raise(int32_t* key, int32_t to) { atomicMax(key, to); }
  static __device__ __forceinline__ void add(int64_t* limb, int64_t part) {
    add_in_block<false>(limb, part);
  }
};

constexpr int TILE_THREADS = 512;

template <typename scalar_t, int dims>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    grid_sampler_tiles(const scalar_t* __restrict__ grad_output, scalar_t* __restrict__ result,
                       const int32_t* __restrict__ counts, const uint32_t* __restrict__ lists,
                       const record<opmath_t<scalar_t>>* __restrict__ records, int64_t most_boxes,
                       int64_t together, extents input_size, extents output_size,
                       extents grad_stride, int64_t headroom) {
  if (counts[0] != 0) return;
  using T = opmath_t<scalar_t>;
  using shape = cut<dims>;
  auto totals = accumulator<scalar_t, in_tile>::in_shared(together * shape::elements, headroom);
  Volume in = along(input_size), tiles = shape::tiles(input_size);
  Volume boxes = shape::boxes(output_size);
  int32_t width = static_cast<int32_t>(input_size.w), height = static_cast<int32_t>(input_size.h);
  int32_t depth = static_cast<int32_t>(input_size.d);
  int64_t by_row = in.along[0], by_frame = in.along[0] * in.along[1];
  int64_t channels = input_size.c, groups = ceil_div(channels, together);
  int64_t of_image = tiles.elements(), parts = input_size.n * of_image * groups;
  TileOfSamples<scalar_t, dims> tile;
  tile.row = static_cast<int32_t>(boxes.along[0]);
  tile.frame = tile.row * static_cast<int32_t>(boxes.along[1]);
  for (int64_t part = blockIdx.x; part < parts; part += gridDim.x) {
    int64_t list = quick_div(part, groups), image = quick_div(list, of_image);
    int64_t first = (part - list * groups) * together;
    Volume number = unravelled(list - image * of_image, tiles);
    for (int axis = 0; axis < 3; ++axis) {
      tile.begin[axis] =
          static_cast<int32_t>(number.along[axis]) * (axis < dims ? shape::side(axis) : 1);
    }
    tile.records = records + image * boxes.elements() * WARP;
    tile.list = lists + list * most_boxes;
    tile.boxes = counts[1 + list];
    tile.gradients = grad_output + image * grad_stride.n + first * grad_stride.c;
    tile.served = static_cast<int32_t>(min_index(together, channels - first));
    int32_t elements = tile.served * shape::elements;
#pragma unroll 4
    for (int32_t i = threadIdx.x; i < elements; i += blockDim.x) totals.clear(i);
    __syncthreads();
    tile.each(grad_stride, [&](int32_t i, T addend) { totals.observe_from_zero(i, addend); });
    __syncthreads();
    tile.each(grad_stride, [&](int32_t i, T addend) { totals.add(i, addend); });
    __syncthreads();
    scalar_t* to = result + (image * channels + first) * in.elements() + by_row * tile.begin[1] +
                   by_frame * tile.begin[2] + tile.begin[0];
    for (int32_t i = threadIdx.x; i < tile.served * shape::numbered; i += blockDim.x) {
      int32_t c = i / shape::numbered, x = shape::place(i, 0), y = shape::place(i, 1);
      int32_t z = dims == 3 ? shape::place(i, 2) : 0;
      if (tile.begin[0] + x >= width || tile.begin[1] + y >= height) continue;
      if (dims == 3 && tile.begin[2] + z >= depth) continue;
      int32_t from = c * shape::elements + x + y * shape::pitch(1);
      int64_t element = c * in.elements() + by_row * y + x;
      if (dims == 3) from += z * shape::pitch(2), element += by_frame * z;
      // Few samples meet few elements.
      to[element] = totals.any(from) ? totals.finish_from_zero(from) : from_opmath<scalar_t>(0);
    }
    __syncthreads();
  }
}
