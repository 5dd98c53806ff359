// The sums of a batch normalization's gradient over all pixels, NHWC, and what follows from them.
#pragma once
#include "cpu/pixel_sums.h"

namespace at {

// The rows of BatchNormGradientSums. parts: the sums of dz and of dz (x - mean) of all chunks, as compute_chunks() has
// them.
AT_INLINE void gradient_rows(float* y, const float* parts, const float* statistics, int64_t pixels, int c) {
  const int64_t chunks = chunks_of(pixels);
  for (int channel = 0; channel < c; ++channel) {
    double sum = 0., product = 0.;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      sum += parts[chunk * 2 * c + channel];
      product += parts[(chunk * 2 + 1) * c + channel];
    }
    const auto row = [&](int number) { return (double)statistics[(int64_t)number * c + channel]; };
    const double mean = row(0), factor = row(2), share = -row(3) / pixels;
    const double by_weight = product * factor, slope = share * factor * by_weight;
    const double rows[] = {sum, by_weight, slope, share * sum - slope * mean};
    for (int number = 0; number < 4; ++number) y[(int64_t)number * c + channel] = (float)rows[number];
  }
}

}  // namespace at
