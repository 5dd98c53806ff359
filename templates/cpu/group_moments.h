// Means and factors of groups of channels. A thread takes one group of an image, or as many as have `Block` channels
// together, and sums each channel's pixels by blocks of `Block` channels. Sums of kRun pixels are float, and sums of
// these are double.
#pragma once
#include <cmath>

#include "cpu/statistics.h"

namespace at {

// The groups of a thread, which have the channels from `first` to `end` of an image.
template <int Block>
struct GroupMoments {
  int image, first, end;
  bool alone;  // one group, whose values serve every block
  float means[2 * Block], factors[2 * Block];

  int table(int channel) const { return alone ? 0 : channel - first; }  // where a channel's values begin
};

// The squared distances of one channel block from their means, summed over pixels that are `stride` elements apart.
template <int N, typename Element>
AT_INLINE void sum_squares(float (&v)[N], const Element* x, int pixels, int stride, const float* mean) {
  for (int i = 0; i < N; ++i) v[i] = 0.f;
  for (int pixel = 0; pixel < pixels; ++pixel) {
    const Element* from = x + (int64_t)pixel * stride;
    AT_UNROLL for (int i = 0; i < N; ++i)
      v[i] += (from[i] - mean[i]) * (from[i] - mean[i]);
  }
}

// Calls body(GroupMoments) for all groups of all images.
template <int Block, typename Problem, typename Element, typename Body>
AT_INLINE void for_groups(const Problem& a, const Element* images, bool parallel, const Body& body) {
  constexpr int kRun = 256;
  const int pixels = a.h * a.w, size = a.c / a.groups, together = (Block + size - 1) / size;
  const int chunks = (a.groups + together - 1) / together;
  const double share = 1. / ((double)pixels * size);
#pragma omp parallel for collapse(2) schedule(static) if (parallel)
  for (int n = 0; n < a.n; ++n)
    for (int chunk = 0; chunk < chunks; ++chunk) {
      GroupMoments<Block> groups;
      const int first = chunk * together * size;
      const int end = first + together * size < a.c ? first + together * size : a.c;
      const bool alone = together == 1;
      groups.image = n, groups.first = first, groups.end = end, groups.alone = alone;
      const Element* x = images + (int64_t)n * pixels * a.c;
      const auto spread = [&](const double* of_groups, float* to, const auto& function) {
        for (int i = 0; i < 2 * Block; ++i) to[i] = function(of_groups[alone ? 0 : i / size % together] * share);
      };
      // Adds up the values that `sum` returns for runs of pixels, by groups.
      const auto total = [&](double* of_groups, const auto& sum) __attribute__((always_inline)) {
        for (int group = 0; group < together; ++group) of_groups[group] = 0.;
        for (int start = 0; start < pixels; start += kRun) {
          const int count = start + kRun < pixels ? kRun : pixels - start;
          for_channels<Block>(first, end, [&](auto& v, int channel) __attribute__((always_inline)) {
            sum(v, x + (int64_t)start * a.c + channel, count, channel);
            constexpr int width = sizeof v / sizeof(float);
            for (int i = 0; i < width; ++i) of_groups[alone ? 0 : (channel - first + i) / size] += v[i];
          });
        }
      };
      double sums[Block];
      total(sums, [&](auto& v, const Element* from, int count, int)
                      __attribute__((always_inline)) { sum_pixels(v, from, 1, count, 0, a.c); });
      spread(sums, groups.means, [](double mean) { return (float)mean; });
      total(sums, [&](auto& v, const Element* from, int count, int channel) __attribute__((always_inline)) {
        sum_squares(v, from, count, a.c, groups.means + groups.table(channel));
      });
      spread(sums, groups.factors, [&](double variance) { return (float)(1. / std::sqrt(variance + a.scalars[0])); });
      body(groups);
    }
}

}  // namespace at
