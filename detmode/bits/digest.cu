// A 128-bit digest of a tensor's bytes in row-major order, as two sums of 64-bit integers: any
// order of threads gives the same. detmode/bits/digest.py has the same in PyTorch operators.
#include "block_reduce.cuh"
#include "index.cuh"

constexpr uint64_t POSITION = 0x9e3779b97f4a7c15ull;
constexpr uint64_t FIRST = 0xbf58476d1ce4e5b9ull;
constexpr uint64_t SECOND = 0x94d049bb133111ebull;
constexpr uint64_t THIRD = 0xd6e8feb86659fd93ull;

struct Lanes {
  uint64_t one;
  uint64_t two;
};

// Each word is mixed with its position before it is added, so that a sum sees the order.
static __device__ __forceinline__ void add_word(Lanes& lanes, uint64_t word, int64_t position) {
  uint64_t x = word + static_cast<uint64_t>(position + 1) * POSITION;
  x = (x ^ (x >> 32)) * FIRST;
  x ^= x >> 29;
  uint64_t one = x * SECOND, two = x * THIRD;
  lanes.one += one ^ (one >> 32);
  lanes.two += two ^ (two >> 32);
}

// `sums` starts at zero and gets the lanes of all blocks added.
__global__ void digest(const uint8_t* __restrict__ bytes, int64_t* __restrict__ sums,
                       int64_t n_bytes) {
  constexpr int UNROLL = 4;
  Lanes lanes = {0, 0};
  int64_t whole = n_bytes / 8, step = thread_count();
  bool aligned = reinterpret_cast<uint64_t>(bytes) % 8 == 0;
  const uint64_t* words = reinterpret_cast<const uint64_t*>(bytes);
  int64_t i = thread_index();
  if (aligned) {
    // Loads of one turn do not wait for one another.
    for (; i + (UNROLL - 1) * step < whole; i += UNROLL * step) {
      uint64_t loaded[UNROLL];
#pragma unroll
      for (int j = 0; j < UNROLL; ++j) loaded[j] = words[i + j * step];
#pragma unroll
      for (int j = 0; j < UNROLL; ++j) add_word(lanes, loaded[j], i + j * step);
    }
  }
  for (; i * 8 < n_bytes; i += step) {
    uint64_t word = 0;
    if (aligned && i < whole) {
      word = words[i];
    } else {
      int64_t rest = min_index(n_bytes - i * 8, 8);
      for (int64_t b = 0; b < rest; ++b) {
        word |= static_cast<uint64_t>(bytes[i * 8 + b]) << (8 * b);
      }
    }
    add_word(lanes, word, i);
  }
  auto add = [](uint64_t a, uint64_t b) { return a + b; };
  uint64_t one = block_reduce<256>(lanes.one, add, uint64_t(0));
  uint64_t two = block_reduce<256>(lanes.two, add, uint64_t(0));
  if (threadIdx.x == 0) {
    atomic_add(sums, static_cast<int64_t>(one));
    atomic_add(sums + 1, static_cast<int64_t>(two));
  }
}
