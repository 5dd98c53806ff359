// Loops over the channels of pixels, in blocks of a compile-time size.
#pragma once
#include "cpu/vector.h"

namespace at {

// Calls body(v, channel) for every whole block of channels, then for each remaining channel; v is an uninitialized
// array of Block floats, or of 1.
template <int Block, typename Body>
AT_INLINE void for_channels(int channel, int end, const Body& body) {
  for (; channel + Block <= end; channel += Block) {
    float v[Block];
    body(v, channel);
  }
  for (; channel < end; ++channel) {
    float v[1];
    body(v, channel);
  }
}

template <int Block, typename Body>
AT_INLINE void for_channels(int channels, const Body& body) {
  for_channels<Block>(0, channels, body);
}

// v = start combined with rows x columns pixels, one after the other. row, column: the strides in elements.
template <int N, typename Combine, typename Element>
AT_INLINE void combine_pixels(float (&v)[N], float start, const Combine& combine, const Element* x, int rows,
                              int columns, int64_t row, int64_t column) {
  constexpr int width = N < REGISTER_FLOATS ? N : REGISTER_FLOATS;
  Vector<width> results[N / width];
#pragma GCC unroll 16
  for (int l = 0; l < N / width; ++l) results[l] = Vector<width>{} + start;
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) {
      const Element* pixel = x + i * row + j * column;
#pragma GCC unroll 16
      for (int l = 0; l < N / width; ++l) results[l] = combine(results[l], read<Vector<width>>(pixel + l * width));
    }
  memcpy(v, results, sizeof v);
}

template <int N, typename Element>
AT_INLINE void sum_pixels(float (&v)[N], const Element* x, int rows, int columns, int64_t row, int64_t column) {
  const auto sum = [](auto a, auto b) AT_INLINED { return a + b; };
  combine_pixels(v, 0.f, sum, x, rows, columns, row, column);
}

// The maximum propagates NaN, as in torch.
template <int N, typename Element>
AT_INLINE void max_pixels(float (&v)[N], const Element* x, int rows, int columns, int64_t row, int64_t column) {
  const auto larger = [](auto a, auto b) AT_INLINED { return (b > a) | (b != b) ? b : a; };
  combine_pixels(v, -INFINITY, larger, x, rows, columns, row, column);
}

}  // namespace at
