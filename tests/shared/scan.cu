// Launches of scan.cuh, for its tests.
#include "scan.cuh"

// Runs of positions: joining two shows whether the later one goes on where the earlier one ends.
struct runs {
  using input_t = int64_t;
  struct state_t {
    int32_t first, last, whole;
  };
  static __device__ state_t of(int64_t x) {
    return state_t{static_cast<int32_t>(x), static_cast<int32_t>(x), 1};
  }
  static __device__ state_t identity() { return state_t{0, -1, 1}; }
  static __device__ state_t join(state_t earlier, state_t later) {
    if (later.last < 0) return earlier;
    if (earlier.last < 0) return later;
    bool whole = earlier.whole && later.whole && earlier.last + 1 == later.first;
    return state_t{earlier.first, later.last, whole};
  }
  static __device__ int64_t result(state_t run) {
    return run.first == 0 && run.whole ? run.last : -1;
  }
};

struct float_sums {
  using input_t = float;
  using state_t = float;
  static __device__ float of(float x) { return x; }
  static __device__ float identity() { return -0.0f; }
  static __device__ float join(float earlier, float later) { return add_rn(earlier, later); }
  static __device__ float result(float sum) { return sum; }
};

template <typename scan_t, int threads, int rows, int vec>
__global__ void scan_totals(const typename scan_t::input_t* __restrict__ input,
                            int32_t* __restrict__ totals, int64_t stride) {
  auto* states = reinterpret_cast<typename scan_t::state_t*>(totals);
  scan_total<scan_t, threads, rows, vec>(input, states, stride);
}

template <typename scan_t>
__global__ void scan_level(int32_t* __restrict__ totals, int64_t base, int64_t children) {
  scan_nodes<scan_t>(reinterpret_cast<typename scan_t::state_t*>(totals) + base, children);
}

template <typename scan_t, int threads, int rows, int vec>
__global__ void scan(const typename scan_t::input_t* __restrict__ input,
                     typename scan_t::input_t* __restrict__ output,
                     const int32_t* __restrict__ totals, int64_t n, int64_t stride) {
  auto* states = reinterpret_cast<const typename scan_t::state_t*>(totals);
  scan_tile<scan_t, threads, rows, vec>(input, output, states, n, stride);
}
