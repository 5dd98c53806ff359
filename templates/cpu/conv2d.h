// Direct convolution with a register tile of BlockPixels output pixels x BlockK output channels.
//
// A tile is any BlockPixels consecutive pixels of the flattened output, so small images share one. Each tap (r, s)
// of the filter gives every pixel a pointer to its input channels: to zeros where the tap lies in the padding. A tap
// in the padding of all pixels is skipped. Weights come as (groups, k blocks, r, s, c / groups, BlockK), filled up
// with zeros, so that a tile reads them in order.
#pragma once
#include "cpu/vector.h"

namespace at {

// The order of a launch's tiles, neighbours in time first: who stays in cache.
enum { WEIGHTS_STAY = 0, INPUT_STAYS = 1 };
// The order of the flattened pixels, neighbours in a tile last.
enum { NPQ = 0, PQN = 1 };

// Input channels that go through all taps at a time, so that the taps find them in cache.
constexpr int CHANNEL_CHUNK = 256;
alignas(64) static const float zeros[CHANNEL_CHUNK] = {};

// sums += x * weight over `channels` input channels, x given for each pixel.
template <int BlockPixels, int BlockK, int UnrollC, typename Vec, int Vectors>
AT_INLINE void multiply(Vec (&sums)[BlockPixels][Vectors], const float* const (&x)[BlockPixels], const float* weight,
                        int channels) {
  constexpr int width = BlockK / Vectors;
  Vec acc[BlockPixels][Vectors];  // in registers: all loops over it are unrolled
#pragma GCC unroll 32
  for (int i = 0; i < BlockPixels; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) acc[i][v] = sums[i][v];

  const auto step = [&](int c) __attribute__((always_inline)) {
    Vec row[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) memcpy(&row[v], weight + (int64_t)c * BlockK + v * width, sizeof(Vec));
#pragma GCC unroll 32
    for (int i = 0; i < BlockPixels; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) acc[i][v] += x[i][c] * row[v];
  };
  int c = 0;
  for (; c + UnrollC <= channels; c += UnrollC)
#pragma GCC unroll 8
    for (int u = 0; u < UnrollC; ++u) step(c + u);
  for (; UnrollC > 1 && c < channels; ++c) step(c);

#pragma GCC unroll 32
  for (int i = 0; i < BlockPixels; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sums[i][v] = acc[i][v];
}

// Where a tile's pixels lie: their outputs' offsets, and the input rows, columns and offsets of their first tap.
template <int BlockPixels>
struct Pixels {
  int row = -2;                   // which block of BlockPixels this is
  int count;                      // pixels that exist; the others never meet an input
  int inner, q, p, outer, images;  // the next pixel: index = ((outer * P + p) * Q + q) * images + inner
  int h[BlockPixels], w[BlockPixels];
  int64_t input[BlockPixels], output[BlockPixels];

  AT_INLINE void seek(Pixels& s, const at_conv2d& a, int row) {
    if (row == s.row) return;
    const int first = row * BlockPixels, left = a.n * a.p * a.q - first;
    if (row != s.row + 1) {
      s.images = a.launch[2] == PQN ? a.n : 1;
      s.inner = first % s.images;
      s.q = first / s.images % a.q;
      s.p = first / s.images / a.q % a.p;
      s.outer = first / s.images / a.q / a.p;
    }
    s.row = row;
    s.count = left < BlockPixels ? left : BlockPixels;
    for (int i = 0; i < BlockPixels; ++i) {
      const int n = s.inner + s.outer;  // one of them is the image, the other is 0
      s.h[i] = i < s.count ? s.p * a.stride_h - a.pad_h : INT32_MIN / 2;
      s.w[i] = s.q * a.stride_w - a.pad_w;
      s.input[i] = (((int64_t)n * a.h + s.h[i]) * a.w + s.w[i]) * a.c;
      s.output[i] = (((int64_t)n * a.p + s.p) * a.q + s.q) * a.k;
      if (++s.inner < s.images) continue;
      s.inner = 0;
      if (++s.q < a.q) continue;
      s.q = 0;
      if (++s.p < a.p) continue;
      s.p = 0;
      ++s.outer;
    }
  }

  // Point x to the inputs under a tap; false if none is inside the image.
  AT_INLINE bool tap(const at_conv2d& a, const Pixels& pixels, int r, int s, const float* origin,
                     const float* (&x)[BlockPixels]) {
    const int down = r * a.dilation_h, right = s * a.dilation_w;
    const int64_t offset = ((int64_t)down * a.w + right) * a.c;
    int inside = 0;
    for (int i = 0; i < BlockPixels; ++i) {
      const bool in = (unsigned)(pixels.h[i] + down) < (unsigned)a.h && (unsigned)(pixels.w[i] + right) < (unsigned)a.w;
      x[i] = in ? origin + pixels.input[i] + offset : zeros;
      inside |= in;
    }
    return inside;
  }
};

// Solves the problem. finish(v, channel, offset) applies the epilogue to an array of neighbouring channels and
// stores it. launch: threads (1: the caller's alone), order of tiles, order of pixels.
template <int BlockPixels, int BlockK, int UnrollC, typename Finish>
AT_INLINE void conv2d(const at_conv2d& a, const float* x, const float* weight, const Finish& finish) {
  constexpr int width = BlockK < REGISTER_FLOATS ? BlockK : REGISTER_FLOATS, vectors = BlockK / width;
  using Vec = typename Vector<width>::type;
  const int c = a.c / a.groups, k = a.k / a.groups, k_blocks = (k + BlockK - 1) / BlockK;
  const int columns = a.groups * k_blocks, rows = (a.n * a.p * a.q + BlockPixels - 1) / BlockPixels;
  const bool weights_stay = a.launch[1] == WEIGHTS_STAY;

  const int slow = weights_stay ? columns : rows, fast = weights_stay ? rows : columns;
  Pixels<BlockPixels> pixels;
#pragma omp parallel for collapse(2) schedule(static) firstprivate(pixels) if (a.launch[0] != 1)
  for (int i = 0; i < slow; ++i) for (int j = 0; j < fast; ++j) {
    const int row = weights_stay ? j : i, column = weights_stay ? i : j;
    const int group = column / k_blocks, first_k = column % k_blocks * BlockK;
    pixels.seek(pixels, a, row);
    const float* const block = weight + (int64_t)column * a.r * a.s * c * BlockK;

    Vec sums[BlockPixels][vectors];
#pragma GCC unroll 32
    for (int i = 0; i < BlockPixels; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[i][v] = Vec{};
    for (int chunk = 0; chunk < c; chunk += CHANNEL_CHUNK) {
      const int channels = c - chunk < CHANNEL_CHUNK ? c - chunk : CHANNEL_CHUNK;
      for (int r = 0; r < a.r; ++r)
        for (int s = 0; s < a.s; ++s) {
          const float* tap[BlockPixels];
          if (!pixels.tap(a, pixels, r, s, x + group * c + chunk, tap)) continue;
          multiply<BlockPixels, BlockK, UnrollC>(sums, tap, block + (((int64_t)r * a.s + s) * c + chunk) * BlockK, channels);
        }
    }

    const int columns_left = k - first_k < BlockK ? k - first_k : BlockK;
    for (int i = 0; i < pixels.count; ++i) {
      const float* from = (const float*)sums[i];
      const int channel = group * k + first_k;
      int j = 0;
      for (; j + width <= columns_left; j += width) {
        float v[width];
        load(v, from + j);
        finish(v, channel + j, pixels.output[i] + channel + j);
      }
      for (; j < columns_left; ++j) {
        float v[1] = {from[j]};
        finish(v, channel + j, pixels.output[i] + channel + j);
      }
    }
  }
}

}  // namespace at
