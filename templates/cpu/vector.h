// Vectors of float as wide as the target's registers, in the compiler's own vector types.
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

// `Floats` of them, at any address.
template <int Floats>
struct Vector {
  typedef float type __attribute__((vector_size(Floats * sizeof(float)), aligned(sizeof(float)), may_alias));
};

}  // namespace at
