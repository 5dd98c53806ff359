// Mean and variance of each channel over all pixels, NHWC, and what follows from them for a batch normalization. A
// chunk of pixels has a mean and a sum of squared distances from it, computed from distances from its first pixel.
// Neither cancels where the mean is large.
#pragma once
#include "cpu/pixel_sums.h"

namespace at {

// mean and squares: 0 at first, then those of `count` pixels from x on.
template <int N>
AT_INLINE void add_chunk(float (&mean)[N], float (&squares)[N], const float* x, int count, int64_t stride) {
  for (int pixel = 0; pixel < count; ++pixel) {
    AT_UNROLL for (int i = 0; i < N; ++i) {
      const float distance = x[pixel * stride + i] - x[i];
      mean[i] += distance;
      squares[i] += distance * distance;
    }
  }
  for (int i = 0; i < N; ++i) {
    const float distance = mean[i] / count, sum = squares[i] - mean[i] * distance;
    mean[i] = x[i] + distance;
    squares[i] = sum < 0.f ? 0.f : sum;
  }
}

// The rows of BatchNormStatistics, by blocks of `Block` channels. parts: as compute_chunks() has them.
template <int Block>
AT_INLINE void batch_statistics(float* y, const float* x, int64_t pixels, int c, bool parallel, float* parts,
                                const float* weight, const float* bias, float eps) {
  const int64_t chunks = chunks_of(pixels);
  compute_chunks<Block>(pixels, c, parallel, parts,
                        [&](auto& mean, auto& squares, int channel, int64_t pixel, int count)
                            AT_INLINED { add_chunk(mean, squares, x + pixel * c + channel, count, c); });
  for (int channel = 0; channel < c; ++channel) {
    const double start = parts[channel];  // the first chunk's mean
    double distances = 0., squares = 0.;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const double distance = parts[chunk * 2 * c + channel] - start, count = pixels_of_chunk(pixels, chunk);
      distances += count * distance;
      squares += parts[(chunk * 2 + 1) * c + channel] + count * distance * distance;
    }
    const double mean = start + distances / pixels, sum = squares - distances * distances / pixels;
    const double factor = 1. / std::sqrt(sum / pixels + eps), scale = weight[channel] * factor;
    const double rows[] = {mean, sum / (pixels > 1 ? pixels - 1 : 1), factor, scale, bias[channel] - mean * scale};
    for (int row = 0; row < 5; ++row) y[(int64_t)row * c + channel] = (float)rows[row];
  }
}

}  // namespace at
