// Backward of the CTC loss. A sequence of `length` labels has 2 * length + 1 states: blank, label,
// blank, ..., blank. One block walks a sequence back in time and leaves for each time and state the
// posterior, the share of the likelihood whose paths are there; then one thread owns one element of
// the gradient and sums the posteriors of the states that emit its class, in ascending order.
//
// The backward variables of the recursion are numbers with an exponent of their own, not
// logarithms: no error grows with the size of a logarithm, and there is one exp() for each state,
// which does not wait for the recursion.
#include "compensated_sum.cuh"
#include "dtype.cuh"
#include "exponential.cuh"
#include "index.cuh"

static constexpr int THREADS = 512;
// Times whose loads do not wait for one another.
static constexpr int BATCH = 4;

// Where the labels are: rows of a padded matrix, or one sequence after the other, in which case
// `row` is not read.
struct label_layout {
  int64_t row, step, total, concatenated;
};

// The sizes and strides of log_probs, which is (times, samples, classes), the longest target, and
// the class between labels.
struct ctc_shape {
  int64_t times, samples, classes, longest, blank;
  int64_t time_stride, sample_stride, class_stride;
};

// Lengths of samples, two in a number.
struct length_pairs {
  int64_t a, b, c, d, e, f, g, h, i, j, k, l;
};

template <typename target_t>
static __device__ __forceinline__ const target_t* labels_of(const target_t* targets,
                                                            const int64_t* target_lengths,
                                                            int64_t sample,
                                                            const label_layout& labels) {
  if (!labels.concatenated) return targets + sample * labels.row;
  int64_t start = 0;
  for (int64_t b = 0; b < sample; ++b) start += target_lengths[b];
  DETMODE_ASSERT(0 <= start && start + target_lengths[sample] <= labels.total);
  return targets + start * labels.step;
}

// Lengths that Python holds, as arguments of the launch: a copy from the host would wait, and could
// not be captured.
__global__ void ctc_write_lengths(int64_t* __restrict__ lengths, int64_t n, length_pairs p) {
  const int64_t pairs[12] = {p.a, p.b, p.c, p.d, p.e, p.f, p.g, p.h, p.i, p.j, p.k, p.l};
#pragma unroll
  for (int pair = 0; pair < 12; ++pair) {
    int64_t sample = thread_index();
    if (sample / 2 == pair && sample < n) {
      lengths[sample] = (pairs[pair] >> (sample % 2 * 32)) & 0xffffffff;
    }
  }
}

// One thread a label. order (samples, longest) holds each sequence's positions by class, equal
// classes by position; sorted, the same shape, their classes; runs (samples, classes) where a class
// begins there, and keeps -1 for classes that do not occur.
template <typename target_t>
__global__ void ctc_sort(const target_t* __restrict__ targets,
                         const int64_t* __restrict__ target_lengths, int32_t* __restrict__ order,
                         int32_t* __restrict__ sorted, int32_t* __restrict__ runs, int64_t samples,
                         int64_t longest, int64_t classes, label_layout labels) {
  int64_t n = samples * longest;
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t sample = quick_div(i, longest);
    int64_t position = i - sample * longest;
    int64_t length = target_lengths[sample];
    DETMODE_ASSERT(0 <= length && length <= longest);
    if (position >= length) continue;
    const target_t* sequence = labels_of(targets, target_lengths, sample, labels);
    int64_t label = sequence[position * labels.step];
    DETMODE_ASSERT(0 <= label && label < classes);
    int64_t smaller = 0;
    int64_t earlier = 0;
    for (int64_t j = 0; j < length; ++j) {
      int64_t compared = sequence[j * labels.step];
      smaller += compared < label ? 1 : 0;
      earlier += compared == label && j < position ? 1 : 0;
    }
    int64_t place = sample * longest + smaller + earlier;
    order[place] = static_cast<int32_t>(position);
    sorted[place] = static_cast<int32_t>(label);
    if (earlier == 0) runs[sample * classes + label] = static_cast<int32_t>(smaller);
  }
}

// exp(log_alpha + nll - log_prob) times the backward variable. Where nll is infinite, a number that
// is 0, NaN or infinite as exp(log_alpha - log_prob) times the variable is: with the gradient's
// kernel, which makes infinity or NaN of it.
template <typename scalar_t>
static __device__ __forceinline__ scalar_t posterior(scalar_t log_alpha, scalar_t nll,
                                                     scalar_t log_prob, scaled<scalar_t> beta) {
  bool infinite = nll == limits<scalar_t>::highest();
  if (infinite) nll = scalar_t(0);
  scalar_t sum = add_rn(log_alpha, nll);
  scalar_t high = sub_rn(sum, log_prob);
  scalar_t low = add_rn(lost_in_sum(log_alpha, nll, sum), lost_in_sum(sum, -log_prob, high));
  scaled<scalar_t> share = scaled_product(scaled_exp(high, low), beta);
  return infinite ? share.mantissa : rounded(share);
}

// One block a sample. log_probs is (times, samples, classes), strided; log_alpha and posteriors are
// (samples, times, 2 * longest + 1). A block takes as many states at a time as it has threads, the
// last ones first, and leaves the first two of them in `edge_mantissas` and `edge_exponents`
// (samples, 2, times, 2) for the states before them.
template <typename scalar_t, typename target_t>
__global__ void __launch_bounds__(THREADS)
    ctc_posteriors(const scalar_t* __restrict__ log_probs, const target_t* __restrict__ targets,
                   const int64_t* __restrict__ input_lengths,
                   const int64_t* __restrict__ target_lengths,
                   const scalar_t* __restrict__ neg_log_likelihood,
                   const scalar_t* __restrict__ log_alpha, scalar_t* __restrict__ posteriors,
                   scalar_t* __restrict__ edge_mantissas, int64_t* __restrict__ edge_exponents,
                   ctc_shape shape, label_layout labels) {
  int64_t times = shape.times, longest = shape.longest;
  __shared__ scalar_t mantissas[2][THREADS + 2];
  __shared__ int64_t exponents[2][THREADS + 2];
  int64_t sample = blockIdx.x;
  int64_t input_length = input_lengths[sample];
  int64_t length = target_lengths[sample];
  DETMODE_ASSERT(0 <= input_length && input_length <= times);
  DETMODE_ASSERT(0 <= length && length <= longest);
  const target_t* sequence = labels_of(targets, target_lengths, sample, labels);
  int64_t states = 2 * length + 1;
  int64_t width = 2 * longest + 1;
  scalar_t nll = neg_log_likelihood[sample];
  int lane = static_cast<int>(threadIdx.x);
  int64_t threads = blockDim.x;
  for (int64_t tile = (states - 1) / threads; tile >= 0; --tile) {
    int64_t state = tile * threads + lane;
    bool active = state < states;
    bool last_tile = (tile + 1) * threads >= states;
    int64_t label = active && state % 2 == 1 ? sequence[state / 2 * labels.step] : shape.blank;
    // A path may skip a blank between two labels that differ.
    bool skips =
        state % 2 == 1 && state + 2 < states && sequence[(state / 2 + 1) * labels.step] != label;
    const scalar_t* probs = log_probs + sample * shape.sample_stride + label * shape.class_stride;
    const scalar_t* alphas = log_alpha + sample * times * width + state;
    scalar_t* shares = posteriors + sample * times * width + state;
    int64_t edge_in = ((2 * sample + (tile + 1) % 2) * times) * 2 + lane;
    int64_t edge_out = ((2 * sample + tile % 2) * times) * 2 + lane;
    scaled<scalar_t> beta = scaled_zero<scalar_t>();
    scalar_t log_prob[BATCH], alpha[BATCH];
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      int64_t t = max_index(input_length - 1 - j, 0);
      bool loads = active && input_length > 0;
      log_prob[j] = loads ? probs[t * shape.time_stride] : scalar_t(0);
      alpha[j] = loads ? alphas[t * width] : scalar_t(0);
    }
    for (int64_t first = input_length - 1; first >= 0; first -= BATCH) {
      scalar_t next_log_prob[BATCH], next_alpha[BATCH];
#pragma unroll
      for (int j = 0; j < BATCH; ++j) {
        int64_t t = max_index(first - BATCH - j, 0);
        next_log_prob[j] = active ? probs[t * shape.time_stride] : scalar_t(0);
        next_alpha[j] = active ? alphas[t * width] : scalar_t(0);
      }
#pragma unroll
      for (int j = 0; j < BATCH; ++j) {
        int64_t t = first - j;
        if (t < 0) break;
        if (t < input_length - 1) {
          // From time t + 1: this state, the next one, the one after a blank that is skipped.
          const scalar_t* mantissa = mantissas[(t + 1) % 2];
          const int64_t* exponent = exponents[(t + 1) % 2];
          scaled<scalar_t> next = {mantissa[lane + 1], exponent[lane + 1]};
          scaled<scalar_t> after = scaled_zero<scalar_t>();
          if (skips) after = {mantissa[lane + 2], exponent[lane + 2]};
          beta = scaled_sum(beta, next, after);
          // A sum by logarithms makes NaN of infinity.
          beta.mantissa = add_rn(beta.mantissa, sub_rn(beta.mantissa, beta.mantissa));
          beta = scaled_product(beta, scaled_exp(log_prob[j], scalar_t(0)));
        } else if (state >= states - 2) {
          beta = scaled_exp(log_prob[j], scalar_t(0));
        }
        if (active) {
          shares[t * width] = posterior(alpha[j], nll, log_prob[j], beta);
        } else {
          beta = scaled_zero<scalar_t>();
        }
        mantissas[t % 2][lane] = beta.mantissa;
        exponents[t % 2][lane] = beta.exponent;
        if (lane < 2) {
          if (tile > 0) {
            edge_mantissas[edge_out + 2 * t] = beta.mantissa;
            edge_exponents[edge_out + 2 * t] = beta.exponent;
          }
          mantissas[t % 2][threads + lane] =
              last_tile ? scalar_t(0) : edge_mantissas[edge_in + 2 * t];
          exponents[t % 2][threads + lane] =
              last_tile ? NO_EXPONENT : edge_exponents[edge_in + 2 * t];
        }
        __syncthreads();
      }
#pragma unroll
      for (int j = 0; j < BATCH; ++j) {
        log_prob[j] = next_log_prob[j];
        alpha[j] = next_alpha[j];
      }
    }
  }
}

// The shares of a class's states, added in ascending order.
template <typename scalar_t>
struct Shares {
  bool any;
  scalar_t sum;
  // The sum before the last share.
  scalar_t before;
  __device__ __forceinline__ void add(scalar_t share) {
    any = true;
    before = sum;
    sum = add_rn(sum, share);
  }
  // What is subtracted from exp(log_prob). ATen's sum by logarithms makes NaN of an infinity beside
  // anything, and a class without states subtracts exp(-inf + nll - log_prob), which is 0 or NaN;
  // both not so in calls that ATen counts as large.
  __device__ __forceinline__ scalar_t subtrahend(scalar_t nll, scalar_t log_prob,
                                                 bool large) const {
    constexpr scalar_t zero = scalar_t(0);
    scalar_t infinity = limits<scalar_t>::highest();
    if (!any) {
      scalar_t none = sub_rn(sub_rn(nll, infinity), log_prob);
      return !large && is_nan(none) ? none : zero;
    }
    if (!large && sum == infinity && before != zero) return limits<scalar_t>::nan();
    if (nll != infinity) return sum;
    return sum > zero ? infinity : limits<scalar_t>::nan();
  }
};

// One thread an element of grad_input (times, samples, classes).
template <typename scalar_t>
__global__ void ctc_gradient(const scalar_t* __restrict__ grad,
                             const scalar_t* __restrict__ log_probs,
                             const int64_t* __restrict__ input_lengths,
                             const int64_t* __restrict__ target_lengths,
                             const scalar_t* __restrict__ neg_log_likelihood,
                             const scalar_t* __restrict__ posteriors,
                             const int32_t* __restrict__ order, const int32_t* __restrict__ sorted,
                             const int32_t* __restrict__ runs, scalar_t* __restrict__ grad_input,
                             ctc_shape shape, bool zero_infinity, bool large, int64_t grad_stride) {
  int64_t samples = shape.samples, classes = shape.classes, longest = shape.longest;
  int64_t times = shape.times, n = times * samples * classes;
  int64_t width = 2 * longest + 1;
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t both = quick_div(i, classes);
    int64_t label = i - both * classes;
    int64_t t = quick_div(both, samples);
    int64_t sample = both - t * samples;
    scalar_t nll = neg_log_likelihood[sample];
    bool left_out = zero_infinity && nll == limits<scalar_t>::highest();
    if (t >= input_lengths[sample] || left_out) {
      grad_input[i] = scalar_t(0);
      continue;
    }
    scalar_t log_prob = log_probs[t * shape.time_stride + sample * shape.sample_stride +
                                  label * shape.class_stride];
    const scalar_t* shares = posteriors + (sample * times + t) * width;
    int64_t length = target_lengths[sample];
    Shares<scalar_t> sum = {};
    // The blanks in ascending order, then the labels of this class in ascending order.
    if (label == shape.blank) {
#pragma unroll 8
      for (int64_t k = 0; k <= length; ++k) sum.add(shares[2 * k]);
    }
    int64_t run = runs[sample * classes + label];
    if (run >= 0) {
      const int32_t* positions = order + sample * longest;
      const int32_t* labels = sorted + sample * longest;
#pragma unroll 4
      for (int64_t k = run; k < length && labels[k] == label; ++k) {
        sum.add(shares[2 * static_cast<int64_t>(positions[k]) + 1]);
      }
    }
    scalar_t less = sum.subtrahend(nll, log_prob, large);
    grad_input[i] = mul_rn(sub_rn(fixed_exp(log_prob), less), grad[sample * grad_stride]);
  }
}
