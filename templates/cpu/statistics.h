// Sums over elements that are float in memory, for normalizations.
#pragma once
#include "cpu/channels.h"

namespace at {

// The sum of function(element) over neighbouring elements.
template <typename Function>
AT_INLINE float sum_of(const float* x, int count, const Function& function) {
  constexpr int width = REGISTER_FLOATS;
  Vector<width> sums[4] = {};
  int i = 0;
  for (; i + 4 * width <= count; i += 4 * width)
#pragma GCC unroll 4
    for (int l = 0; l < 4; ++l) sums[l] += function(read<Vector<width>>(x + i + l * width));
  for (; i + width <= count; i += width) sums[0] += function(read<Vector<width>>(x + i));
  const Vector<width> sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float total = 0.f;
  for (int l = 0; l < width; ++l) total += sum[l];
  for (; i < count; ++i) total += function(x[i]);
  return total;
}

// v = (x - mean) * factor
template <int N>
AT_INLINE void normalize(float (&v)[N], const float* mean, const float* factor) {
  AT_UNROLL for (int i = 0; i < N; ++i)
    v[i] = (v[i] - mean[i]) * factor[i];
}

}  // namespace at
