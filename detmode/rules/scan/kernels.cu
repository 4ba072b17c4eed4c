// Scans of one row. The order in which elements are joined is scan.cuh's; here is what is joined.
#include "compensated_sum.cuh"
#include "exponential.cuh"
#include "product.cuh"
#include "scan.cuh"

constexpr int THREADS = 256;
constexpr int ROWS = 4;

// cumsum. float has too few bits for long rows: `low` collects what the additions round away.
// 16-bit dtypes add in float, double in double.
template <typename scalar_t>
struct cumsum {
  using input_t = scalar_t;
  using state_t = typename conditional<is_same<scalar_t, float>::value, paired_sum<float>,
                                       plain_sum<opmath_t<scalar_t>>>::type;
  static __device__ __forceinline__ auto of(scalar_t x) { return state_t::of(to_opmath(x)); }
  static __device__ __forceinline__ state_t identity() { return state_t::of(-0.0f); }
  template <typename later_t>
  static __device__ __forceinline__ state_t join(state_t earlier, later_t later) {
    return earlier.plus(later);
  }
  // From +0.0, as on the CPU: a sum of -0.0 alone is 0.0.
  static __device__ __forceinline__ scalar_t result(state_t sum) {
    return narrowed<scalar_t>(sum.total_from_zero());
  }
};
template <typename T>
struct cumsum<complex<T>> {
  using input_t = complex<T>;
  struct state_t {
    typename cumsum<T>::state_t re, im;
  };
  static __device__ __forceinline__ state_t of(complex<T> x) {
    return state_t{cumsum<T>::of(x.re), cumsum<T>::of(x.im)};
  }
  static __device__ __forceinline__ state_t identity() {
    return state_t{cumsum<T>::identity(), cumsum<T>::identity()};
  }
  static __device__ __forceinline__ state_t join(state_t earlier, state_t later) {
    return state_t{earlier.re.plus(later.re), earlier.im.plus(later.im)};
  }
  static __device__ __forceinline__ complex<T> result(state_t sum) {
    return complex<T>(cumsum<T>::result(sum.re), cumsum<T>::result(sum.im));
  }
};

// cumprod. A product has an exponent of its own, so that the product of a part of the row neither
// overflows nor underflows where that of the elements before it and its own does not.
template <typename scalar_t>
struct cumprod {
  using input_t = scalar_t;
  using state_t = paired_product<opmath_t<scalar_t>>;
  static __device__ __forceinline__ state_t of(scalar_t x) { return state_t::of(to_opmath(x)); }
  static __device__ __forceinline__ state_t identity() { return state_t::of(1); }
  static __device__ __forceinline__ state_t join(state_t earlier, state_t later) {
    return earlier.times(later);
  }
  static __device__ __forceinline__ scalar_t result(state_t product) {
    return product.template result<scalar_t>();
  }
};
template <typename T>
struct cumprod<complex<T>> {
  using input_t = complex<T>;
  struct state_t {
    double re, im;
    int64_t exponent;
  };
  static __device__ __forceinline__ state_t scaled(complex<double> x, int64_t exponent) {
    double re = x.re < 0 ? -x.re : x.re, im = x.im < 0 ? -x.im : x.im;
    double larger = re > im ? re : im;
    int e = has_no_exponent(larger) ? 0 : exponent_of(larger);
    return state_t{times_power_of_two(x.re, -e), times_power_of_two(x.im, -e), exponent + e};
  }
  static __device__ __forceinline__ state_t of(complex<T> x) {
    return scaled(complex<double>(x.re, x.im), 0);
  }
  static __device__ __forceinline__ state_t identity() { return state_t{1.0, 0.0, 0}; }
  static __device__ __forceinline__ state_t join(state_t a, state_t b) {
    return scaled(complex<double>(a.re, a.im) * complex<double>(b.re, b.im),
                  a.exponent + b.exponent);
  }
  static __device__ __forceinline__ complex<T> result(state_t product) {
    double re = times_power_of_two(product.re, product.exponent);
    double im = times_power_of_two(product.im, product.exponent);
    return complex<T>(narrowed<T>(re), narrowed<T>(im));
  }
};

// logcumsumexp. A sum of exponentials is kept as exp(largest) * sum, where `largest` is the largest
// element: sum is 0 for no element and for elements that are -inf, else at least 1. NaN is in
// `sum`.
template <typename scalar_t>
struct logcumsumexp {
  using input_t = scalar_t;
  using T = opmath_t<scalar_t>;
  struct state_t {
    T largest, sum;
  };
  static __device__ __forceinline__ state_t of(scalar_t value) {
    T x = to_opmath(value);
    return state_t{x, x == limits<T>::lowest() ? T(0) : T(1)};
  }
  static __device__ __forceinline__ state_t identity() {
    return state_t{limits<T>::lowest(), T(0)};
  }
  static __device__ __forceinline__ state_t join(state_t earlier, state_t later) {
    bool first = earlier.largest >= later.largest;
    state_t large = first ? earlier : later, small = first ? later : earlier;
    // Two infinities are alike, but have no difference. A NaN in `largest` goes to `sum`.
    bool alike = large.largest == small.largest;
    T factor = alike ? T(1) : exp_nonpositive(sub_rn(small.largest, large.largest));
    return state_t{large.largest, fma_rn(small.sum, factor, large.sum)};
  }
  static __device__ __forceinline__ scalar_t result(state_t state) {
    bool none = state.sum == 0;
    return narrowed<scalar_t>(none ? state.largest : add_rn(state.largest, log_normal(state.sum)));
  }
};

// The same for complex elements, always in double: exp(largest + i angle) * (re + i im), where
// `largest` is the largest real part and `angle` the imaginary part of the first element that has
// it. CUDA's double sin, cos and atan2 are made of explicit fused multiply-adds. They are long, so
// that join is a call.
template <typename T>
struct logcumsumexp<complex<T>> {
  using input_t = complex<T>;
  struct state_t {
    double largest, angle, re, im;
  };
  static __device__ __forceinline__ state_t of(complex<T> x) {
    if (is_nan(x.re) || is_nan(x.im)) {
      return state_t{0.0, 0.0, limits<double>::nan(), limits<double>::nan()};
    }
    if (x.re == limits<T>::lowest()) return identity();
    return state_t{static_cast<double>(x.re), static_cast<double>(x.im), 1.0, 0.0};
  }
  static __device__ __forceinline__ state_t identity() {
    return state_t{limits<double>::lowest(), 0.0, 0.0, 0.0};
  }
  static __device__ __noinline__ state_t join(state_t earlier, state_t later) {
    bool first = earlier.largest >= later.largest;
    state_t large = first ? earlier : later, small = first ? later : earlier;
    if (small.largest == limits<double>::lowest()) return large;
    bool alike = large.largest == small.largest;
    double factor = alike ? 1.0 : exp_nonpositive(sub_rn(small.largest, large.largest));
    double angle = sub_rn(small.angle, large.angle);
    complex<double> turn(mul_rn(factor, cos(angle)), mul_rn(factor, sin(angle)));
    complex<double> sum =
        complex<double>(large.re, large.im) + complex<double>(small.re, small.im) * turn;
    return state_t{large.largest, large.angle, sum.re, sum.im};
  }
  static __device__ __forceinline__ complex<T> result(state_t x) {
    if (x.largest == limits<double>::lowest()) {
      return complex<T>(limits<T>::lowest(), T(0));
    }
    // Zero where the elements cancel: the logarithm of 0 is -inf.
    double norm = fma_rn(x.re, x.re, mul_rn(x.im, x.im));
    double log_norm = norm == 0 ? limits<double>::lowest() : log_normal(norm);
    double re = fma_rn(0.5, log_norm, x.largest), im = add_rn(x.angle, atan2(x.im, x.re));
    return complex<T>(narrowed<T>(re), narrowed<T>(im));
  }
};

// A thread reads 16 bytes at a time, 8 of a 16-bit dtype: more than 4 elements make the code long.
template <typename scalar_t>
constexpr int VEC = sizeof(scalar_t) < 4 ? 4 : 16 / sizeof(scalar_t);

template <template <typename> class scan_t, typename scalar_t>
__global__ void __launch_bounds__(THREADS)
    scan_totals(const scalar_t* __restrict__ input, double* __restrict__ totals, int64_t stride) {
  using state_t = typename scan_t<scalar_t>::state_t;
  scan_total<scan_t<scalar_t>, THREADS, ROWS, VEC<scalar_t>>(
      input, reinterpret_cast<state_t*>(totals), stride);
}

// `totals` is that of the whole tree; the children begin at `base`.
template <template <typename> class scan_t, typename scalar_t>
__global__ void scan_level(double* __restrict__ totals, int64_t base, int64_t children) {
  using state_t = typename scan_t<scalar_t>::state_t;
  scan_nodes<scan_t<scalar_t>>(reinterpret_cast<state_t*>(totals) + base, children);
}

// Blocks that a multiprocessor has registers for. Whole tiles of float sums need 48, and only the
// last tile, whose elements are counted, would take more. Turing's has no more than 1,024 threads.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
constexpr int MOST_BLOCKS = 1024 / THREADS;
#else
constexpr int MOST_BLOCKS = 5;
#endif
template <typename scan_t>
constexpr int BLOCKS = 1;
template <>
constexpr int BLOCKS<cumsum<float>> = MOST_BLOCKS;

template <template <typename> class scan_t, typename scalar_t>
__global__ void __launch_bounds__(THREADS, BLOCKS<scan_t<scalar_t>>)
    scan_row(const scalar_t* __restrict__ input, scalar_t* __restrict__ output,
             const double* __restrict__ totals, int64_t n, int64_t stride) {
  using state_t = typename scan_t<scalar_t>::state_t;
  scan_tile<scan_t<scalar_t>, THREADS, ROWS, VEC<scalar_t>>(
      input, output, reinterpret_cast<const state_t*>(totals), n, stride);
}
