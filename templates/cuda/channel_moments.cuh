// The moments of a thread's pixels. The thread adds up the distances of its pixels from its first pixel, and their
// squares: they are as small as the values' spread, so neither sum cancels where the mean is much larger. The pixels
// are read from the last to the first: the kernel before has written the last ones last, so they are still in the L2
// cache, and the normalization begins with the first ones.
#pragma once
#include "cuda/column_sums.cuh"

namespace at {

// Sets `part` to the mean and the sum of squared distances from it, for each of the thread's channels; returns the
// number of its pixels. x: the first pixel of the plan.
template <typename Element, typename Plan>
AT_DEVICE int channel_moments(Partial<Plan::kVector>& part, const Element* x, const Plan& plan) {
  constexpr int kVector = Plan::kVector;
  float start[kVector] = {}, distances[kVector] = {}, squares[kVector] = {};
  int count = 0;
  plan.visit_reversed([&](auto items, int pixel) {
    constexpr int kCount = decltype(items)::kValue;
    Pack<Element, kVector> lines[kCount];
    AT_UNROLL for (int i = 0; i < kCount; ++i)
      lines[i].read(x + plan.offset(pixel, i));
    AT_UNROLL for (int e = 0; e < kVector; ++e)
      start[e] = count ? start[e] : to_float(lines[0].elements[e]);
    count += kCount;
    AT_UNROLL for (int i = 0; i < kCount; ++i) {
      AT_UNROLL for (int e = 0; e < kVector; ++e) {
        const float distance = to_float(lines[i].elements[e]) - start[e];
        distances[e] += distance;
        squares[e] += distance * distance;
      }
    }
  });
  launch_dependents();
  const float share = 1.f / max(count, 1);
  AT_UNROLL for (int e = 0; e < kVector; ++e) {
    const float mean = distances[e] * share, sum = squares[e] - mean * distances[e];
    part.first[e] = start[e] + mean;
    part.second[e] = sum < 0.f ? 0.f : sum;  // a rounding error of equal values; NaN stays
  }
  return count;
}

}  // namespace at
