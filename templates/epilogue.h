// The steps of an epilogue. A step takes a small float array with neighbouring channels of one pixel. The steps are
// listed in autotune/ir/epilogue_steps.py; each compiles for host and device. Loads and stores convert between float
// and the element type of the tensors: see cpu/kernel.h and cuda/kernel.cuh. Comparisons are written so that NaN
// propagates, as in torch.
#pragma once

#ifdef __CUDACC__
#define AT_INLINE __device__ __forceinline__
#define AT_INLINED
#else
#include "cpu/math.h"
#define AT_INLINE static inline __attribute__((always_inline))
#define AT_UNROLL _Pragma("GCC ivdep")
#define AT_INLINED __attribute__((always_inline))  // goes after a lambda's parameters
#endif

namespace at {

#ifdef __CUDACC__
using ::erff;
using ::expf;
using ::tanhf;
#endif

// A step's second operand, one value per channel of the array. It is read from a tensor or a vector, or is one scalar
// for all channels.
template <int N>
struct Operand {
  float of[N];
};

template <int N, typename Element>
AT_INLINE Operand<N> operand(const Element* from) {
  Operand<N> result;
  load(result.of, from);
  return result;
}

template <int N>
AT_INLINE Operand<N> operand(const float* from) {
  Operand<N> result;
  load_constant(result.of, from);
  return result;
}

template <int N>
AT_INLINE Operand<N> operand(float scalar) {
  Operand<N> result;
  AT_UNROLL for (int i = 0; i < N; ++i)
    result.of[i] = scalar;
  return result;
}

template <int N, typename Function, typename... Operands>
AT_INLINE void transform(float (&v)[N], const Function& function, const Operands&... operands) {
  AT_UNROLL for (int i = 0; i < N; ++i)
    v[i] = function(v[i], operands.of[i]...);
}

// v = function(v, operands...) for each channel.
template <int N, typename Function, typename... Operands>
AT_INLINE void each(float (&v)[N], const Function& function, Operands... operands) {
  transform(v, function, operand<N>(operands)...);
}

template <int N>
AT_INLINE void bias(float (&v)[N], const float* vector) {
  each(v, [](float x, float b) AT_INLINED { return x + b; }, vector);
}

template <int N>
AT_INLINE void scale(float (&v)[N], const float* vector) {
  each(v, [](float x, float s) AT_INLINED { return x * s; }, vector);
}

template <int N, typename Element>
AT_INLINE void add(float (&v)[N], const Element* tensor) {
  each(v, [](float x, float t) AT_INLINED { return x + t; }, tensor);
}

template <int N>
AT_INLINE void add_scalar(float (&v)[N], float s) {
  each(v, [](float x, float s) AT_INLINED { return x + s; }, s);
}

template <int N>
AT_INLINE void mul_scalar(float (&v)[N], float s) {
  each(v, [](float x, float s) AT_INLINED { return x * s; }, s);
}

AT_INLINE float clamped(float x, float low, float high) {
  const float raised = x < low ? low : x;
  return raised > high ? high : raised;
}

template <int N>
AT_INLINE void clamp(float (&v)[N], float low, float high) {
  each(v, [](float x, float low, float high) AT_INLINED { return clamped(x, low, high); }, low, high);
}

// 1 / x with an error of at most 1 ulp. On a GPU it avoids the branches of an exact division and returns 0 for |x| >
// 2^126.
AT_INLINE float reciprocal(float x) {
#ifdef __CUDA_ARCH__
  asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
#else
  return 1.f / x;
#endif
}

#ifdef __CUDACC__
// 2^x with a relative error of 2^-22: one special-function instruction.
AT_INLINE float power_of_two(float x) {
#ifdef __CUDA_ARCH__
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
#else
  return exp2f(x);
#endif
}
#endif

// The sigmoid of gates. On a GPU: two special-function instructions, relative error of some 1e-7.
AT_INLINE float logistic(float x) {
#ifdef __CUDACC__
  return reciprocal(1.f + power_of_two(-1.44269504f * x));
#else
  return 1.f / (1.f + expf(-x));
#endif
}

AT_INLINE float at_least_zero(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("max.NaN.f32 %0, %0, 0f00000000;" : "+f"(x));  // one instruction instead of two
  return x;
#else
  return x < 0.f ? 0.f : x;
#endif
}

template <int N>
AT_INLINE void relu(float (&v)[N]) {
  each(v, [](float x) AT_INLINED { return at_least_zero(x); });
}

template <int N>
AT_INLINE void relu6(float (&v)[N]) {
  each(v, [](float x) AT_INLINED { return clamped(x, 0.f, 6.f); });
}

template <int N>
AT_INLINE void leaky_relu(float (&v)[N], float slope) {
  each(v, [](float x, float slope) AT_INLINED { return x > 0.f ? x : x * slope; }, slope);
}

template <int N>
AT_INLINE void sigmoid(float (&v)[N]) {
  each(v, [](float x) AT_INLINED { return reciprocal(1.f + expf(-x)); });
}

template <int N>
AT_INLINE void hardsigmoid(float (&v)[N]) {
  each(v, [](float x) AT_INLINED { return clamped(x + 3.f, 0.f, 6.f) * (1.f / 6.f); });
}

// A GPU has one special-function unit for eight multiply-adders, so a reciprocal is shared by two elements:
// 1 / a = b / (a * b). Below -39.5 the sigmoid is taken as 2^-57, so that the product does not overflow.
template <int N>
AT_INLINE void silu(float (&v)[N]) {
#ifdef __CUDACC__
  AT_UNROLL for (int i = 0; i + 1 < N; i += 2) {
    const float a = 1.f + power_of_two(fminf(-1.44269504f * v[i], 57.f));
    const float b = 1.f + power_of_two(fminf(-1.44269504f * v[i + 1], 57.f));
    const float both = reciprocal(a * b);
    v[i] *= both * b;
    v[i + 1] *= both * a;
  }
  if (N % 2) v[N - 1] *= logistic(v[N - 1]);
#else
  each(v, [](float x) AT_INLINED { return x * reciprocal(1.f + expf(-x)); });
#endif
}

template <int N>
AT_INLINE void hardswish(float (&v)[N]) {
  each(v, [](float x) AT_INLINED { return x * (clamped(x + 3.f, 0.f, 6.f) * (1.f / 6.f)); });
}

template <int N>
AT_INLINE void tanh(float (&v)[N]) {
  each(v, [](float x) AT_INLINED { return tanhf(x); });
}

#ifdef __CUDACC__
// gelu(x) = max(x, 0) - |x| * Phi(-|x|) with the normal distribution Phi. The logarithm of Phi is so smooth that a
// polynomial gives Phi(-|x|) for |x| < 6 with a relative error of 4e-6; beyond, the product is below 6e-9. It takes
// half of the instructions of erff. The polynomial is a minimax fit of log2(Phi(-x)).
AT_INLINE float gelu_of(float x) {
  const float a = fminf(fabsf(x), 16.f);  // so that infinity does not become NaN
  float power = -1.834773412e-06f;
  power = power * a + 6.159748481e-05f;
  power = power * a - 9.305180335e-04f;
  power = power * a + 8.507862032e-03f;
  power = power * a - 5.396000447e-02f;
  power = power * a - 4.584644664e-01f;
  power = power * a - 1.151251009e+00f;
  power = power * a - 9.999952995e-01f;
  return at_least_zero(x) - a * power_of_two(power);
}
#endif

template <int N>
AT_INLINE void gelu(float (&v)[N]) {
#ifdef __CUDACC__
  each(v, gelu_of);
#else
  each(v, [](float x) AT_INLINED { return 0.5f * x * (1.f + erff(x * 0.707106781f)); });
#endif
}

// x / 2 * (1 + tanh(u)) = x * sigmoid(2u). The second form has no cancellation for negative u.
template <int N>
AT_INLINE void gelu_tanh(float (&v)[N]) {
  each(v, [](float x) AT_INLINED { return x * reciprocal(1.f + expf(-1.59576912f * (x + 0.044715f * x * x * x))); });
}

}  // namespace at
