// Wgrad: for each tap, the product of dy and x over all pixels.
//
// A register tile holds BlockK output x BlockC input channels of one tap and runs over all pixels. Channels after the
// last whole block are processed one by one.
#pragma once
#include <type_traits>

#include "cpu/vector.h"

namespace at {

// Pixels that are summed separately before they are added to the total, to bound the rounding error of a long sum.
constexpr int PIXEL_CHUNK = 512;

// The range `from` <= i < `to` of output coordinates for which a tap lies inside the image. `shift` is the tap's input
// coordinate for i = 0.
struct Inside {
  int from, to;
  Inside(int places, int size, int stride, int shift) {
    const int room = size - shift;
    from = shift < 0 ? (-shift + stride - 1) / stride : 0;
    to = room > 0 ? (room + stride - 1) / stride : 0;
    to = to < places ? to : places;
  }
};

// Computes one tile. dy and x point to the tile's first channels in the first pixel.
template <int BlockK, int BlockC, typename Finish>
static inline void weight_tile(const at_conv2d& a, const float* dy, const float* x, int k, int c, int r, int s,
                               const Finish& finish) {
  constexpr int width = BlockC < REGISTER_FLOATS ? BlockC : REGISTER_FLOATS, vectors = BlockC / width;
  using Vec = Vector<width>;
  const int down = r * a.dilation_h - a.pad_h, right = s * a.dilation_w - a.pad_w;
  const Inside rows(a.p, a.h, a.stride_h, down), columns(a.q, a.w, a.stride_w, right);
  const int64_t step = (int64_t)a.stride_w * a.c;

  Vec totals[BlockK][vectors] = {}, sums[BlockK][vectors] = {};
  const auto flush = [&]() {
    for (int i = 0; i < BlockK; ++i)
      for (int v = 0; v < vectors; ++v) {
        totals[i][v] += sums[i][v];
        sums[i][v] = Vec{};
      }
  };
  int summed = 0;
  for (int n = 0; n < a.n; ++n)
    for (int p = rows.from; p < rows.to; ++p) {
      const float* of_dy = dy + (((int64_t)n * a.p + p) * a.q + columns.from) * a.k;
      const float* of_x =
          x + (((int64_t)n * a.h + p * a.stride_h + down) * a.w + columns.from * a.stride_w + right) * a.c;
      Vec acc[BlockK][vectors];  // in registers, because every loop over it is unrolled
#pragma GCC unroll 16
      for (int i = 0; i < BlockK; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) acc[i][v] = sums[i][v];
      for (int q = columns.from; q < columns.to; ++q, of_dy += a.k, of_x += step) {
        Vec pixel[vectors];
        memcpy(pixel, of_x, sizeof pixel);
#pragma GCC unroll 16
        for (int i = 0; i < BlockK; ++i)
#pragma GCC unroll 8
          for (int v = 0; v < vectors; ++v) acc[i][v] += of_dy[i] * pixel[v];
      }
#pragma GCC unroll 16
      for (int i = 0; i < BlockK; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) sums[i][v] = acc[i][v];
      summed += columns.to - columns.from;
      if (summed < PIXEL_CHUNK) continue;
      flush();
      summed = 0;
    }
  flush();

  for (int i = 0; i < BlockK; ++i)
    for (int v = 0; v < vectors; ++v) {
      float out[width];
      load(out, (const float*)&totals[i][v]);
      const int channel = c + v * width;
      finish(out, channel, (((int64_t)(k + i) * a.r + r) * a.s + s) * (a.c / a.groups) + channel);
    }
}

// Computes the whole gradient. finish(v, channel, offset) applies the epilogue to an array of neighbouring channels of
// a tap and stores it. Launch value: threads = 1 runs on one thread.
template <typename Launch, int BlockK, int BlockC, typename Finish>
static inline void conv2d_wgrad(const at_conv2d& a, const float* dy, const float* x, const Finish& finish) {
  const int c_each = a.c / a.groups, k_each = a.k / a.groups;
  const int c_blocks = (c_each + BlockC - 1) / BlockC, k_blocks = (k_each + BlockK - 1) / BlockK;

#pragma omp parallel for collapse(5) schedule(static) if (a.launch[Launch::kThreads] != 1)
  for (int group = 0; group < a.groups; ++group)
    for (int k_block = 0; k_block < k_blocks; ++k_block)
      for (int c_block = 0; c_block < c_blocks; ++c_block)
        for (int r = 0; r < a.r; ++r)
          for (int s = 0; s < a.s; ++s) {
            const int k_first = k_block * BlockK, c_first = c_block * BlockC;
            const int k_left = k_each - k_first, c_left = c_each - c_first;
            const auto tile = [&](auto k_size, auto c_size, int k, int c) {
              const int of_group = group * k_each + k;
              weight_tile<k_size.value, c_size.value>(a, dy + of_group, x + group * c_each + c, of_group, c, r, s,
                                                      finish);
            };
            using std::integral_constant;
            const integral_constant<int, BlockK> whole_k;
            const integral_constant<int, BlockC> whole_c;
            const integral_constant<int, 1> one;
            if (k_left >= BlockK && c_left >= BlockC) tile(whole_k, whole_c, k_first, c_first);
            else if (c_left >= BlockC)
              for (int k = k_first; k < k_each; ++k) tile(one, whole_c, k, c_first);
            else if (k_left >= BlockK)
              for (int c = c_first; c < c_each; ++c) tile(whole_k, one, k_first, c);
            else
              for (int k = k_first; k < k_each; ++k)
                for (int c = c_first; c < c_each; ++c) tile(one, one, k, c);
          }
}

}  // namespace at
