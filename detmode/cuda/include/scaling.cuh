// What is done to an addend before a sum, and to a sum after it.
#pragma once

#include "dtype.cuh"

// The factor of all addends where they are `scaled`, index_add's alpha: re + im * i.
struct scaling {
  bool scaled;
  double re, im;
};

// The product is rounded to scalar_t, as ATen's is.
template <typename T>
static __device__ __forceinline__ T times(T x, scaling alpha) {
  return mul_rn(x, static_cast<T>(alpha.re));
}
template <typename T>
static __device__ __forceinline__ complex<T> times(complex<T> x, scaling alpha) {
  return x * complex<T>(static_cast<T>(alpha.re), static_cast<T>(alpha.im));
}
template <typename scalar_t>
static __device__ __forceinline__ opmath_t<scalar_t> addend(scalar_t value, scaling alpha) {
  if (!alpha.scaled) return to_opmath(value);
  return to_opmath(from_opmath<scalar_t>(times(to_opmath(value), alpha)));
}

template <typename T>
static __device__ __forceinline__ T quotient(T sum, int64_t count) {
  return div_rn(sum, static_cast<T>(count));
}
template <typename T>
static __device__ __forceinline__ complex<T> quotient(complex<T> sum, int64_t count) {
  return complex<T>(quotient(sum.re, count), quotient(sum.im, count));
}
