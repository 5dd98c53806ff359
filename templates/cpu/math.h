// exp, tanh and erf without calls or branches, so that loops over them vectorize. They have their usual names, so that
// the text of a custom step finds them. The error is at most 2 ulp. Infinities, NaN and the sign of zero are preserved.
#pragma once
#include <cmath>

#define AT_MATH static inline __attribute__((always_inline))

namespace at {

AT_MATH float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

AT_MATH uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// x = n ln 2 + r with integer n, so exp(x) = 2^n exp(r). Comparisons are ordered so that NaN passes through them.
AT_MATH float expf(float x) {
  x = x > 89.f ? 89.f : x;             // exp overflows to infinity above 89
  x = x < -104.f ? -104.f : x;         // and underflows to zero below -104
  constexpr float round = 12582912.f;  // 1.5 * 2^23: adding it leaves the rounded integer in the low mantissa bits
  const float shifted = x * 1.44269504f + round, n = shifted - round;
  const float r = x - n * 0.693359375f + n * 2.12194440e-4f;  // ln 2 in two parts; n times the first part is exact
  float p = 0.00138145988f;
  p = p * r + 0.00836871751f;
  p = p * r + 0.041668389f;
  p = p * r + 0.166665211f;
  p = p * r + 0.49999994f;
  p = p * r * r + r + 1.f;
  // 2^n as two factors: n can be 1 above, and far below, the range of a float's exponent.
  const int whole = (int)(to_bits(shifted) - to_bits(round)), half = whole >> 1;
  return p * from_bits((uint32_t)(half + 127) << 23) * from_bits((uint32_t)(whole - half + 127) << 23);
}

AT_MATH float tanhf(float x) {
  const float a = std::fabs(x), s = x * x;
  float p = -0.00570494635f;
  p = p * s + 0.0206390526f;
  p = p * s - 0.0537397042f;
  p = p * s + 0.133314416f;
  p = p * s - 0.333332807f;
  const float near = x * (1.f + s * p), far = std::copysign(1.f - 2.f / (expf(2.f * a) + 1.f), x);
  return a < 0.625f ? near : far;
}

// For |x| >= 1, log(erfc(|x|)) is a polynomial; for |x| >= 4, erf is 1 in float.
AT_MATH float erff(float x) {
  const float a = std::fabs(x), s = x * x;
  float p = -0.000563130598f;
  p = p * s + 0.00491752103f;
  p = p * s - 0.0267112833f;
  p = p * s + 0.11280179f;
  p = p * s - 0.37612325f;
  p = p * s + 0.128379121f;
  const float t = a > 4.f ? 4.f : a;
  float q = -0.0011504204f;
  q = q * t + 0.0147781074f;
  q = q * t - 0.0886341408f;
  q = q * t - 0.654488981f;
  q = q * t - 1.11743844f;
  q = q * t - 0.00267170928f;
  const float near = x + x * p, far = std::copysign(1.f - expf(q), x);
  return a < 1.f ? near : far;
}

}  // namespace at
