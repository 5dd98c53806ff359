// The steps of an epilogue, on a small array of float that holds neighbouring channels of one pixel.
// autotune/epilogue.py lists them; each serves host and device code. Loads and stores convert from and to
// the tensors' element type; cpu/element.h and cuda/element.cuh say how.
#pragma once

#ifdef __CUDACC__
#define AT_INLINE __device__ __forceinline__
#define AT_UNROLL _Pragma("unroll")
#else
#include <cmath>
#define AT_INLINE static inline __attribute__((always_inline))
#define AT_UNROLL _Pragma("GCC ivdep")
#endif

namespace at {

template <int N>
AT_INLINE void bias(float (&v)[N], const float* vector) {
  float b[N];
  load(b, vector);
  AT_UNROLL
  for (int i = 0; i < N; ++i) v[i] += b[i];
}

template <int N>
AT_INLINE void scale(float (&v)[N], const float* vector) {
  float s[N];
  load(s, vector);
  AT_UNROLL
  for (int i = 0; i < N; ++i) v[i] *= s[i];
}

template <int N, typename Element>
AT_INLINE void add(float (&v)[N], const Element* tensor) {
  float t[N];
  load(t, tensor);
  AT_UNROLL
  for (int i = 0; i < N; ++i) v[i] += t[i];
}

template <int N>
AT_INLINE void add_scalar(float (&v)[N], float s) {
  AT_UNROLL
  for (int i = 0; i < N; ++i) v[i] += s;
}

template <int N>
AT_INLINE void mul_scalar(float (&v)[N], float s) {
  AT_UNROLL
  for (int i = 0; i < N; ++i) v[i] *= s;
}

// Written so that a NaN stays a NaN, as torch has it.
template <int N>
AT_INLINE void relu(float (&v)[N]) {
  AT_UNROLL
  for (int i = 0; i < N; ++i) v[i] = v[i] < 0.f ? 0.f : v[i];
}

template <int N>
AT_INLINE void sigmoid(float (&v)[N]) {
  AT_UNROLL
  for (int i = 0; i < N; ++i) v[i] = 1.f / (1.f + expf(-v[i]));
}

template <int N>
AT_INLINE void silu(float (&v)[N]) {
  AT_UNROLL
  for (int i = 0; i < N; ++i) v[i] = v[i] / (1.f + expf(-v[i]));
}

}  // namespace at
