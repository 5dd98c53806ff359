// Vectors of float in the compiler's own types, at most as wide as the target's registers.
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

template <int Floats>
using Vector __attribute__((vector_size(Floats * sizeof(float)))) = float;

}  // namespace at
