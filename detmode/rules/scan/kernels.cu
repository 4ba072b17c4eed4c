// Scans of one row. The order in which elements are joined is scan.cuh's; here is what is joined.
#include "compensated_sum.cuh"
#include "exp_log.cuh"
#include "scan.cuh"

constexpr int THREADS = 256;
constexpr int ROWS = 4;

// A thread reads 16 bytes at a time, 8 of a 16-bit dtype: more than 4 elements make the code long.
template <typename scan_t>
static __device__ __forceinline__ void scan_row(const typename scan_t::input_t* input,
                                                typename scan_t::input_t* output, int32_t* marks,
                                                int32_t* totals, int64_t nodes, int64_t n,
                                                int64_t stride) {
  constexpr int size = sizeof(typename scan_t::input_t), vec = size < 4 ? 4 : 16 / size;
  scan_tile<scan_t, THREADS, ROWS, vec>(input, output, marks, totals, nodes, n, stride);
}

// high + low, unless `low` adds nothing: -0.0 + 0.0 would be 0.0, and past an infinity or a NaN
// `low` means nothing.
template <typename T>
static __device__ __forceinline__ T sum_of_pair(T high, T low) {
  return low != 0 && is_finite(low) && is_finite(high) ? add_rn(high, low) : high;
}

// One NaN for all: which one an operation gives may depend on the hardware.
template <typename scalar_t>
static __device__ __forceinline__ scalar_t rounded(opmath_t<scalar_t> x) {
  return is_nan(x) ? limits<scalar_t>::nan() : from_opmath<scalar_t>(x);
}

// cumsum. float has too few bits for long rows: `low` collects what the additions round away.
// 16-bit dtypes add in float, double in double.
template <typename T>
struct plain_sum {
  T high;
  static __device__ __forceinline__ plain_sum of(T x) { return plain_sum{x}; }
  __device__ __forceinline__ plain_sum plus(plain_sum x) const {
    return plain_sum{add_rn(high, x.high)};
  }
  __device__ __forceinline__ T total() const { return high; }
};
struct paired_sum {
  float high, low;
  static __device__ __forceinline__ paired_sum of(float x) { return paired_sum{x, 0.0f}; }
  __device__ __forceinline__ paired_sum plus(paired_sum x) const {
    float sum = add_rn(high, x.high), lost = lost_in_sum(high, x.high, sum);
    return paired_sum{sum, add_rn(low, add_rn(x.low, lost))};
  }
  __device__ __forceinline__ float total() const { return sum_of_pair(high, low); }
};

template <typename scalar_t>
struct sums {
  using input_t = scalar_t;
  using state_t = typename conditional<is_same<scalar_t, float>::value, paired_sum,
                                       plain_sum<opmath_t<scalar_t>>>::type;
  static __device__ __forceinline__ state_t of(scalar_t x) { return state_t::of(to_opmath(x)); }
  static __device__ __forceinline__ state_t identity() { return state_t::of(-0.0f); }
  static __device__ __forceinline__ state_t join(state_t earlier, state_t later) {
    return earlier.plus(later);
  }
  // From +0.0, as on the CPU: a sum of -0.0 alone is 0.0.
  static __device__ __forceinline__ scalar_t result(state_t sum) {
    return rounded<scalar_t>(add_rn(opmath_t<scalar_t>(0), sum.total()));
  }
};
template <typename T>
struct sums<complex<T>> {
  using input_t = complex<T>;
  struct state_t {
    typename sums<T>::state_t re, im;
  };
  static __device__ __forceinline__ state_t of(complex<T> x) {
    return state_t{sums<T>::of(x.re), sums<T>::of(x.im)};
  }
  static __device__ __forceinline__ state_t identity() {
    return state_t{sums<T>::identity(), sums<T>::identity()};
  }
  static __device__ __forceinline__ state_t join(state_t earlier, state_t later) {
    return state_t{earlier.re.plus(later.re), earlier.im.plus(later.im)};
  }
  static __device__ __forceinline__ complex<T> result(state_t sum) {
    return complex<T>(sums<T>::result(sum.re), sums<T>::result(sum.im));
  }
};

// cumprod. A product is kept as (high + low) * 2^exponent with 1 <= |high| < 2, so that the product
// of a part of the row neither overflows nor underflows where that of the elements before it and
// its own does not; `low` collects what the multiplications round away.
static __device__ __forceinline__ int32_t exponent_sum(int32_t a, int32_t b) {
  return static_cast<int32_t>(clamp_index(int64_t(a) + b, -(1 << 29), 1 << 29));
}

template <typename scalar_t>
struct products {
  using input_t = scalar_t;
  using T = opmath_t<scalar_t>;
  struct state_t {
    T high, low;
    int32_t exponent;
  };
  static __device__ __forceinline__ state_t of(scalar_t value) {
    T x = to_opmath(value);
    // 2^64 makes a denormal normal.
    bool small = x < exponent_bits<T>::power(1 - exponent_bits<T>::bias) &&
                 -x < exponent_bits<T>::power(1 - exponent_bits<T>::bias);
    if (x == 0 || !is_finite(x)) return state_t{x, T(0), 0};
    if (small) x = mul_rn(x, exponent_bits<T>::power(64));
    return state_t{significand_of(x), T(0), exponent_of(x) - (small ? 64 : 0)};
  }
  static __device__ __forceinline__ state_t identity() { return state_t{T(1), T(0), 0}; }
  static __device__ __forceinline__ state_t join(state_t a, state_t b) {
    T high = mul_rn(a.high, b.high);
    T low = fma_rn(a.high, b.low, fma_rn(a.low, b.high, fma_rn(a.high, b.high, -high)));
    bool carry = high >= 2 || high <= -2;
    T scale = carry ? T(0.5) : T(1);
    int32_t exponent = exponent_sum(a.exponent, b.exponent) + (carry ? 1 : 0);
    return state_t{mul_rn(high, scale), mul_rn(low, scale), exponent};
  }
  static __device__ __forceinline__ scalar_t result(state_t product) {
    T significand = sum_of_pair(product.high, product.low);
    return rounded<scalar_t>(times_power_of_two(significand, product.exponent));
  }
};
template <typename T>
struct products<complex<T>> {
  using input_t = complex<T>;
  struct state_t {
    double re, im;
    int32_t exponent;
  };
  static __device__ __forceinline__ state_t scaled(complex<double> x, int32_t exponent) {
    double re = x.re < 0 ? -x.re : x.re, im = x.im < 0 ? -x.im : x.im;
    double larger = re > im ? re : im;
    int e = larger == 0 || !is_finite(larger) ? 0 : exponent_of(larger);
    return state_t{times_power_of_two(x.re, -e), times_power_of_two(x.im, -e),
                   exponent_sum(exponent, e)};
  }
  static __device__ __forceinline__ state_t of(complex<T> x) {
    return scaled(complex<double>(x.re, x.im), 0);
  }
  static __device__ __forceinline__ state_t identity() { return state_t{1.0, 0.0, 0}; }
  static __device__ __forceinline__ state_t join(state_t a, state_t b) {
    return scaled(complex<double>(a.re, a.im) * complex<double>(b.re, b.im),
                  exponent_sum(a.exponent, b.exponent));
  }
  static __device__ __forceinline__ complex<T> result(state_t product) {
    double re = times_power_of_two(product.re, product.exponent);
    double im = times_power_of_two(product.im, product.exponent);
    return complex<T>(rounded<T>(static_cast<T>(re)), rounded<T>(static_cast<T>(im)));
  }
};

// logcumsumexp. A sum of exponentials is kept as exp(largest) * sum, where `largest` is the largest
// element: sum is 0 for no element and for elements that are -inf, else at least 1. NaN is in
// `sum`.
template <typename scalar_t>
struct exponential_sums {
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
    return rounded<scalar_t>(none ? state.largest : add_rn(state.largest, log_normal(state.sum)));
  }
};

// The same for complex elements, always in double: exp(largest + i angle) * (re + i im), where
// `largest` is the largest real part and `angle` the imaginary part of the first element that has
// it. CUDA's double sin, cos and atan2 are made of explicit fused multiply-adds. They are long, so
// that join is a call.
template <typename T>
struct exponential_sums<complex<T>> {
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
    return complex<T>(rounded<T>(static_cast<T>(re)), rounded<T>(static_cast<T>(im)));
  }
};

template <typename scalar_t>
__global__ void __launch_bounds__(THREADS)
    cumsum_row(const scalar_t* __restrict__ input, scalar_t* __restrict__ output,
               int32_t* __restrict__ marks, int32_t* __restrict__ totals, int64_t nodes, int64_t n,
               int64_t stride) {
  scan_row<sums<scalar_t>>(input, output, marks, totals, nodes, n, stride);
}

template <typename scalar_t>
__global__ void __launch_bounds__(THREADS)
    cumprod_row(const scalar_t* __restrict__ input, scalar_t* __restrict__ output,
                int32_t* __restrict__ marks, int32_t* __restrict__ totals, int64_t nodes, int64_t n,
                int64_t stride) {
  scan_row<products<scalar_t>>(input, output, marks, totals, nodes, n, stride);
}

template <typename scalar_t>
__global__ void __launch_bounds__(THREADS)
    logcumsumexp_row(const scalar_t* __restrict__ input, scalar_t* __restrict__ output,
                     int32_t* __restrict__ marks, int32_t* __restrict__ totals, int64_t nodes,
                     int64_t n, int64_t stride) {
  scan_row<exponential_sums<scalar_t>>(input, output, marks, totals, nodes, n, stride);
}
