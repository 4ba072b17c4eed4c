// A block owns a tile of grad_input and gathers from the regions that reach it, in their order.
#pragma once

#include "compensated_sum.cuh"
#include "extents.cuh"
#include "index.cuh"

constexpr int TILE_ROWS = 8;
constexpr int TILE_COLUMNS = 32;
constexpr int THREADS = TILE_ROWS * TILE_COLUMNS;

// The pixels of one block in one image, and the first of the channels that its threads own.
struct Tile {
  int64_t image;
  int64_t channel;
  int64_t row;
  int64_t column;
};

static __device__ __forceinline__ int64_t tiles_of(int64_t height, int64_t width) {
  return ceil_div(height, TILE_ROWS) * ceil_div(width, TILE_COLUMNS);
}

// Tile `item` of a row-major array [image, group of channels, tile row, tile column].
static __device__ __forceinline__ Tile tile_of(int64_t item, int64_t groups, int64_t per_group,
                                               int64_t height, int64_t width) {
  int64_t across = ceil_div(width, TILE_COLUMNS);
  int64_t plane = item / tiles_of(height, width);
  int64_t position = item - plane * tiles_of(height, width);
  int64_t image = plane / groups;
  return {image, (plane - image * groups) * per_group, position / across * TILE_ROWS,
          position % across * TILE_COLUMNS};
}

// The image of a region: its first number, truncated.
template <typename scalar_t>
static __device__ __forceinline__ int64_t image_of(const scalar_t* roi, int64_t images) {
  auto number = to_opmath(roi[0]);
  DETMODE_ASSERT(number > -1 && number < static_cast<opmath_t<scalar_t>>(images));
  return static_cast<int64_t>(number);
}

// Calls visit(n, region) in every thread for each of the `count` regions that reach the block's
// tile, n ascending. One thread looks at one region: find(n, region) fills `region` and says
// whether it reaches. All threads of the block call.
template <typename Region, typename Find, typename Visit>
static __device__ __forceinline__ void for_each_region(int64_t count, Find find, Visit visit) {
  __shared__ __align__(16) unsigned char storage[THREADS * sizeof(Region)];
  __shared__ uint32_t reaching[THREADS / 32];
  Region* regions = reinterpret_cast<Region*>(storage);
  int thread = static_cast<int>(threadIdx.x);
  for (int64_t first = 0; first < count; first += THREADS) {
    __syncthreads();  // the regions before have been visited by all threads
    Region region = {};
    bool reaches = first + thread < count && find(first + thread, region);
    uint32_t warp = __ballot_sync(0xffffffffu, reaches);
    if (reaches) regions[thread] = region;
    if (thread % 32 == 0) reaching[thread / 32] = warp;
    __syncthreads();
    for (int w = 0; w < THREADS / 32; ++w) {
      for (uint32_t rest = reaching[w]; rest != 0; rest &= rest - 1) {
        int slot = 32 * w + __ffs(static_cast<int>(rest)) - 1;
        visit(first + slot, regions[slot]);
      }
    }
  }
}
