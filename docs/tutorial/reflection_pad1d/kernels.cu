// Backward of 1-D reflection padding: one thread owns an element of grad_input and adds its mirror
// images. No two threads write one element, so there are no atomics.
#include "dtype.cuh"
#include "index.cuh"

// Rows of `width` elements were padded to `padded`, of which `left` lie before them. `n` is how
// many elements grad_input has.
template <typename scalar_t>
__global__ void reflection_pad1d_backward(const scalar_t* __restrict__ grad_output,
                                          scalar_t* __restrict__ grad_input, int64_t width,
                                          int64_t padded, int64_t left, int64_t n) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    int64_t place = i % width, last = width - 1;
    const int64_t images[3] = {-place, place, 2 * last - place};
    // Sums start from +0.0, as ATen's do, which adds to zeros: -0.0 + 0.0 is +0.0.
    opmath_t<scalar_t> sum(0);
    // From left to right: before the input, in it, behind it.
    for (int k = 0; k < 3; ++k) {
      int64_t output = left + images[k];
      // The first and the last element are their own images.
      if (output < 0 || output >= padded || (k != 1 && images[k] == place)) continue;
      // No product is near that a compiler could fuse with the addition.
      sum = sum + to_opmath(grad_output[i / width * padded + output]);
    }
    grad_input[i] = from_opmath<scalar_t>(sum);
  }
}
