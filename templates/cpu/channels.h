// Loops over the channels of pixels, in blocks of a compiled size.
#pragma once
#include "cpu/vector.h"

namespace at {

// Calls body(v, channel) for every block of channels and for each channel behind the last; v is an array for them.
template <int Block, typename Body>
AT_INLINE void for_channels(int channels, const Body& body) {
  int channel = 0;
  for (; channel + Block <= channels; channel += Block) {
    float v[Block];
    body(v, channel);
  }
  for (; channel < channels; ++channel) {
    float v[1];
    body(v, channel);
  }
}

// v = the sum of rows x columns pixels, neighbours `row` and `column` floats apart.
template <int N>
AT_INLINE void sum_pixels(float (&v)[N], const float* x, int rows, int columns, int64_t row, int64_t column) {
  constexpr int width = N < REGISTER_FLOATS ? N : REGISTER_FLOATS;
  Vector<width> sums[N / width] = {};
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) {
      Vector<width> pixel[N / width];
      memcpy(pixel, x + i * row + j * column, sizeof pixel);
#pragma GCC unroll 16
      for (int l = 0; l < N / width; ++l) sums[l] += pixel[l];
    }
  memcpy(v, sums, sizeof v);
}

}  // namespace at
