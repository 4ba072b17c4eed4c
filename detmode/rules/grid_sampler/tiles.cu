// The gradient of the input of a smooth grid, whose neighbouring samples meet neighbouring
// elements.
//
// A box of samples, a warp's, goes on the lists of the tiles of the input that its taps meet. Then
// a block owns a tile of some channels: their keys and sums are in its shared memory, and it looks
// at the boxes on the tile's list. A list has any order, in which integers add to the same sum.
//
// counts[0] says whether a grid is too rough for that: a box meets tiles that are no neighbours, or
// a tile more boxes than its list holds. Then nothing is added here. counts[1 + i] is of tile i.
#include "accumulator.cuh"
#include "sample.cuh"

// How samples are cut into boxes, and an input into tiles.
template <int dims>
struct cut {
  // Samples of a box.
  static constexpr int w = 8, h = dims == 3 ? 2 : 4, d = dims == 3 ? 2 : 1;
  // Of a box's number along an axis, in a list.
  static constexpr int bits = dims == 3 ? 10 : 16;
  // Elements of a tile along each axis: 2^log.
  static constexpr int log = dims == 3 ? 4 : 5;
  static constexpr int32_t side = 1 << log, elements = 1 << (dims * log);

  static __device__ __forceinline__ Volume boxes(const extents& output_size) {
    return {{ceil_div(output_size.w, w), ceil_div(output_size.h, h), ceil_div(output_size.d, d)}};
  }
  static __device__ __forceinline__ Volume tiles(const extents& input_size) {
    int64_t deep = dims == 3 ? ceil_div(input_size.d, side) : 1;
    return {{ceil_div(input_size.w, side), ceil_div(input_size.h, side), deep}};
  }
  static __device__ __forceinline__ uint32_t packed(const Volume& box) {
    int64_t deep = dims == 3 ? box.along[2] << (2 * bits) : 0;
    return static_cast<uint32_t>(box.along[0] | box.along[1] << bits | deep);
  }
  // The sample of a lane. Of the last boxes along an axis, some lie beyond the output.
  static __device__ __forceinline__ Volume sample(uint32_t box, int lane) {
    constexpr uint32_t one = (1u << bits) - 1;
    uint32_t deep = dims == 3 ? box >> (2 * bits) : 0;
    return {{(box & one) * w + lane % w, (box >> bits & one) * h + lane / w % h,
             deep * d + lane / (w * h)}};
  }
};

static __device__ __forceinline__ bool within(const Volume& place, const Volume& size) {
  return place.along[0] < size.along[0] && place.along[1] < size.along[1] &&
         place.along[2] < size.along[2];
}

// The tile of the first tap along an axis, or -1.
template <int log, typename T, int taps>
static __device__ __forceinline__ int32_t first_tile(const Taps<T, taps>& axis) {
  int32_t tile = -1;
#pragma unroll
  for (int i = taps - 1; i >= 0; --i) {
    if (axis.index[i] >= 0) tile = axis.index[i] >> log;
  }
  return tile;
}

// Of the tiles before, at and behind `middle`, a bit for each that a tap along an axis meets,
// `step` bits apart; raises `far` where a tap meets another tile.
template <int log, int step, typename T, int taps>
static __device__ __forceinline__ uint32_t tiles_near(const Taps<T, taps>& axis, int32_t middle,
                                                      bool& far) {
  uint32_t tiles = 0;
#pragma unroll
  for (int i = 0; i < taps; ++i) {
    int32_t position = (axis.index[i] >> log) - middle + 1;
    bool near = position >= 0 && position < 3;
    if (axis.index[i] < 0) continue;
    far |= !near;
    tiles |= near ? 1u << (step * position) : 0;
  }
  return tiles;
}

// A warp takes a box of each turn.
template <typename scalar_t, int dims, int taps>
__global__ void grid_sampler_boxes(const scalar_t* __restrict__ grid, int32_t* counts,
                                   int32_t* __restrict__ lists, int64_t most_boxes,
                                   extents input_size, extents output_size, extents grid_stride,
                                   int64_t padding, bool align_corners) {
  constexpr unsigned int everyone = 0xffffffffu;
  using shape = cut<dims>;
  Volume in = along(input_size), out = along(output_size), stride = along(grid_stride);
  Volume boxes = shape::boxes(output_size), tiles = shape::tiles(input_size);
  int64_t of_image = boxes.elements(), all = input_size.n * of_image;
  int lane = static_cast<int>(threadIdx.x) % WARP;
  for (int64_t i = thread_index() / WARP; i < all; i += thread_count() / WARP) {
    if (__any_sync(everyone, load_relaxed(counts) != 0)) return;
    int64_t image = quick_div(i, of_image);
    uint32_t box = shape::packed(unravelled(i - image * of_image, boxes));
    Volume place = shape::sample(box, lane);
    bool meets = within(place, out);
    Sample<scalar_t, dims, taps> sample(
        grid + image * grid_stride.n + (meets ? place.dot(stride) : 0), grid_stride.c, in, padding,
        align_corners);
    int32_t middle[3] = {first_tile<shape::log>(sample.x), first_tile<shape::log>(sample.y),
                         dims == 3 ? first_tile<shape::log>(sample.z) : 0};
    meets = meets && middle[0] >= 0 && middle[1] >= 0 && middle[2] >= 0;
    unsigned int voters = __ballot_sync(everyone, meets);
    if (voters == 0) continue;
    int leader = __ffs(static_cast<int>(voters)) - 1;
    for (int axis = 0; axis < dims; ++axis) {
      middle[axis] = __shfl_sync(everyone, middle[axis], leader);
    }
    bool far = false;
    uint32_t met = tiles_near<shape::log, 1>(sample.x, middle[0], far) *
                   tiles_near<shape::log, 3>(sample.y, middle[1], far);
    met *= dims == 3 ? tiles_near<shape::log, 9>(sample.z, middle[2], far) : 1 << 9;
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
    Volume tile = {
        {middle[0] + lane % 3 - 1, middle[1] + lane / 3 % 3 - 1, middle[2] + lane / 9 - 1}};
    int64_t list =
        image * tiles.elements() + tile.dot({{1, tiles.along[0], tiles.along[0] * tiles.along[1]}});
    int32_t position = atomic_add(counts + 1 + list, 1);
    if (position < most_boxes) {
      lists[list * most_boxes + position] = static_cast<int32_t>(box);
    } else {
      raise_to(counts, 1);
    }
  }
}

constexpr int TILE_THREADS = 512;

template <typename scalar_t, int dims, int taps>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    grid_sampler_tiles(const scalar_t* __restrict__ grad_output, const scalar_t* __restrict__ grid,
                       scalar_t* __restrict__ result, const int32_t* __restrict__ counts,
                       const int32_t* __restrict__ lists, int64_t most_boxes, int64_t together,
                       extents input_size, extents output_size, extents grad_stride,
                       extents grid_stride, int64_t padding, bool align_corners, int64_t headroom) {
  if (counts[0] != 0) return;
  using shape = cut<dims>;
  constexpr int log = shape::log;
  constexpr int32_t mask = shape::side - 1;
  auto totals = accumulator<scalar_t, in_block>::in_shared(together * shape::elements, headroom);
  Volume in = along(input_size), out = along(output_size), tiles = shape::tiles(input_size);
  Volume by_grad = along(grad_stride), by_grid = along(grid_stride);
  int64_t channels = input_size.c, groups = ceil_div(channels, together);
  int64_t of_image = tiles.elements(), parts = input_size.n * of_image * groups;
  int lane = static_cast<int>(threadIdx.x) % WARP;
  for (int64_t part = blockIdx.x; part < parts; part += gridDim.x) {
    int64_t list = quick_div(part, groups), image = quick_div(list, of_image);
    int64_t first = (part - list * groups) * together;
    int32_t served = static_cast<int32_t>(min_index(together, channels - first));
    Volume tile = unravelled(list - image * of_image, tiles);
    int32_t x = static_cast<int32_t>(tile.along[0]), y = static_cast<int32_t>(tile.along[1]);
    int32_t z = static_cast<int32_t>(tile.along[2]), boxes = counts[1 + list];
    const scalar_t* places = grid + image * grid_stride.n;
    const scalar_t* gradients = grad_output + image * grad_stride.n + first * grad_stride.c;
#pragma unroll 4
    for (int32_t i = threadIdx.x; i < served * shape::elements; i += blockDim.x) totals.clear(i);
    __syncthreads();
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
      for (int32_t b = threadIdx.x / WARP; b < boxes; b += blockDim.x / WARP) {
        Volume place = shape::sample(static_cast<uint32_t>(lists[list * most_boxes + b]), lane);
        if (!within(place, out)) continue;
        Sample<scalar_t, dims, taps> sample(places + place.dot(by_grid), grid_stride.c, in, padding,
                                            align_corners);
        const scalar_t* gradient_of = gradients + place.dot(by_grad);
        for (int32_t c = 0; c < served; ++c, gradient_of += grad_stride.c) {
          auto gradient = to_opmath(*gradient_of);
          sample.each_row([&](int j, int k) {
            // -1 is in no tile.
            if (sample.y.index[j] >> log != y) return;
            int32_t row = (c << (dims * log)) + ((sample.y.index[j] & mask) << log);
            if (dims == 3) {
              if (sample.z.index[k] >> log != z) return;
              row += (sample.z.index[k] & mask) << (2 * log);
            }
#pragma unroll
            for (int i = 0; i < taps; ++i) {
              if (sample.x.index[i] >> log != x) continue;
              int32_t in_tile = row + (sample.x.index[i] & mask);
              auto addend = weighted(sample, i, j, k, gradient);
              if (pass == 0) {
                totals.observe(in_tile, addend);
              } else {
                totals.add(in_tile, addend);
              }
            }
          });
        }
      }
      __syncthreads();
    }
    for (int32_t i = threadIdx.x; i < served * shape::elements; i += blockDim.x) {
      int32_t depth = dims == 3 ? i >> (2 * log) & mask : 0;
      Volume place = {{x * shape::side + (i & mask), y * shape::side + (i >> log & mask),
                       z * shape::side + depth}};
      if (!within(place, in)) continue;
      int64_t plane = image * channels + first + (i >> (dims * log));
      int64_t element = place.dot({{1, in.along[0], in.along[0] * in.along[1]}});
      // Few samples meet few elements.
      result[plane * in.elements() + element] =
          totals.any(i) ? totals.finish_from_zero(i) : from_opmath<scalar_t>(0);
    }
    __syncthreads();
  }
}
