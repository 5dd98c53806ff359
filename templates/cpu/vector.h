// The compiler's vector types. Vectors of float are at most as wide as a register of the target.
#pragma once
#include "cpu/kernel.h"

namespace at {

#if defined(__AVX512F__)
constexpr int REGISTER_FLOATS = 16;
#elif defined(__AVX__)
constexpr int REGISTER_FLOATS = 8;
#else
constexpr int REGISTER_FLOATS = 4;
#endif

template <int Count, typename Element = float>
using Vector __attribute__((vector_size(Count * sizeof(Element)))) = Element;

// Loads neighbouring elements as a vector of float.
template <typename Vec>
AT_INLINE Vec read(const float* from) {
  Vec result;
  memcpy(&result, from, sizeof result);
  return result;
}

template <typename Vec>
AT_INLINE Vec read(const signed char* from) {
  constexpr int count = sizeof(Vec) / sizeof(float);
  Vector<count, signed char> bytes;
  memcpy(&bytes, from, sizeof bytes);
  // Widens in steps of a factor 2: GCC does not vectorize wider conversions.
  const auto words = __builtin_convertvector(bytes, Vector<count, short>);
  return __builtin_convertvector(__builtin_convertvector(words, Vector<count, int>), Vec);
}

template <typename Vec>
AT_INLINE Vec read(const e4m3* from) {
  constexpr int count = sizeof(Vec) / sizeof(float);
  float values[count];
  load(values, from);
  Vec result;
  memcpy(&result, values, sizeof result);
  return result;
}

}  // namespace at
