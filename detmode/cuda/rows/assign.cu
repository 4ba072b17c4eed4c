// Assignment of rows by destination: put, scatter, index_copy, index_put, max_unpool.
//
// Of sources with one destination the last one in row-major order stays. What moves is bits: words
// of 1 to 16 bytes.
#include "dtype.cuh"
#include "owner.cuh"
#include "row_shape.cuh"

// An integer maximum for each destination: any order gives the same. Where the index names rows,
// they are the elements of `shape`.
template <typename owner_t>
__global__ void assign_elect(const int64_t* __restrict__ index, owner_t* __restrict__ owners,
                             int64_t n, row_shape shape) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t destination = placed_by(index, i, false, shape).destination;
    elect_last(owners, destination, static_cast<owner_t>(i));
  }
}

// The same in the destinations themselves: `marks` is the first of their words in 32 bits, `step`
// apart for positions, and `lost` says of each place whether a later one has its destination.
__global__ void assign_mark(const int64_t* __restrict__ index, int32_t* __restrict__ marks,
                            uint8_t* __restrict__ lost, int64_t n, int64_t step, row_shape shape) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t destination = placed_by(index, i, false, shape).destination;
    lost[i] = 0;
    store_relaxed(marks + destination * step, static_cast<int32_t>(i));
  }
}
__global__ void assign_elect_marked(const int64_t* __restrict__ index, int32_t* __restrict__ marks,
                                    uint8_t* __restrict__ lost, int64_t n, int64_t step,
                                    row_shape shape) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t destination = placed_by(index, i, false, shape).destination;
    elect_marked(marks + destination * step, lost, static_cast<int32_t>(i));
  }
}

// Few rows, each with a place in the index. A thread reads all of it, and writes unless a later row
// has the same destination. Who writes has checked all of the index.
template <typename word_t>
__global__ void assign_few(const int64_t* __restrict__ index, const word_t* __restrict__ source,
                           word_t* __restrict__ out, int64_t n, row_shape shape) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t row = quick_div(i, shape.inner), outer = quick_div(row, shape.rows);
    int64_t place = row - outer * shape.rows, column = i - row * shape.inner;
    int64_t destination = position_at(index, place, shape);
    bool in_range = true, last = true;
    for (int64_t j = 0; j < shape.rows; ++j) {
      int64_t position = position_at(index, j, shape);
      in_range = in_range && position >= 0 && position < shape.size;
      last = last && (j <= place || position != destination);
    }
    if (!last) continue;
    DETMODE_ASSERT(in_range);
    out[(outer * shape.size + destination) * shape.inner + column] = source[i];
  }
}

// Who has not lost writes; nobody else writes there. Without `lost` no destination is named twice.
// What is read of a place that has lost is not waited for.
template <typename word_t>
__global__ void assign_last(const int64_t* __restrict__ index, const uint8_t* __restrict__ lost,
                            const word_t* __restrict__ source, word_t* __restrict__ out, int64_t n,
                            bool by_row, row_shape shape) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    placed at = placed_by(index, i, by_row, shape);
    word_t value = source[i];
    if (lost == nullptr || lost[at.place] == 0) out[at.destination] = value;
  }
}

// Each owner writes; nobody else writes there.
template <typename word_t, typename owner_t>
__global__ void assign_owned(const int64_t* __restrict__ index, const owner_t* __restrict__ owners,
                             const word_t* __restrict__ source, word_t* __restrict__ out, int64_t n,
                             bool by_row, row_shape shape) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    placed at = placed_by(index, i, by_row, shape);
    if (owners[by_row ? at.position : at.destination] == at.place) {
      out[at.destination] = source[i];
    }
  }
}

// The rows sorted by destination, stably: the last of a run of equal ones writes.
template <typename word_t, typename key_t>
__global__ void assign_sorted(const key_t* __restrict__ keys, const int32_t* __restrict__ order,
                              const word_t* __restrict__ source, word_t* __restrict__ out,
                              int64_t n, row_shape shape) {
  int64_t rows = shape.rows, inner = shape.inner, size = shape.size;
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t row = quick_div(i, inner), outer = quick_div(row, rows);
    int64_t place = row - outer * rows, column = i - row * inner;
    int64_t position = keys[place];
    if (place + 1 < rows && keys[place + 1] == position) continue;
    out[(outer * size + position) * inner + column] =
        source[(outer * rows + order[place]) * inner + column];
  }
}

// Elements, each with a place in the index, of planes of `shape.size` destinations side by side. A
// block owns a strip of a plane, and the owners there are in its shared memory.
template <typename word_t>
__global__ void __launch_bounds__(1024)
    assign_strips(const int64_t* __restrict__ index, const word_t* __restrict__ source,
                  word_t* __restrict__ out, int64_t strip, int64_t strips, row_shape shape) {
  int32_t* owners = dynamic_shared<int32_t>();
  constexpr int TOGETHER = 4;
  int32_t rows = static_cast<int32_t>(shape.rows), threads = blockDim.x;
  int64_t parts = shape.outer * strips;
  for (int64_t part = blockIdx.x; part < parts; part += gridDim.x) {
    int64_t plane = quick_div(part, strips), first = (part - plane * strips) * strip;
    int32_t owned = static_cast<int32_t>(min_index(strip, shape.size - first));
    for (int32_t i = threadIdx.x; i < owned; i += threads) owners[i] = -1;
    __syncthreads();
    const int64_t* places = index + plane * shape.rows;
    for (int32_t row = threadIdx.x; row < rows; row += TOGETHER * threads) {
      int64_t positions[TOGETHER];
#pragma unroll
      for (int k = 0; k < TOGETHER; ++k) {
        positions[k] = position_at(places, min(row + k * threads, rows - 1), shape);
      }
#pragma unroll
      for (int k = 0; k < TOGETHER; ++k) {
        DETMODE_ASSERT(positions[k] >= 0 && positions[k] < shape.size);
        int64_t in_strip = positions[k] - first;
        int32_t from = min(row + k * threads, rows - 1);
        if (in_strip >= 0 && in_strip < owned) raise_in_block(owners + in_strip, from);
      }
    }
    __syncthreads();
    const word_t* source_of_plane = source + plane * shape.rows;
    word_t* out_of_strip = out + plane * shape.size + first;
#pragma unroll 4
    for (int32_t i = threadIdx.x; i < owned; i += threads) {
      if (owners[i] >= 0) out_of_strip[i] = source_of_plane[owners[i]];
    }
    // No barrier: the same thread clears an owner for the next strip.
  }
}
