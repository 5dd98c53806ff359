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
    for (int v = 0; v < Vectors; ++v) row[v] = *(const Vec*)(weight + (int64_t)c * BlockK + v * width);
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
  int count;  // those that exist; the others never meet an input
  int h[BlockPixels], w[BlockPixels];
  int64_t input[BlockPixels], output[BlockPixels];

  Pixels(const at_conv2d& a, int first, int order) {
    const int total = a.n * a.p * a.q, images = order == PQN ? a.n : 1;
    count = total - first < BlockPixels ? total - first : BlockPixels;
    // index = ((n' * p + p) * q + q) * images + n'': one of n' and n'' is the image
    int inner = first % images, q = first / images % a.q, p = first / images / a.q % a.p;
    int outer = first / images / a.q / a.p;
    for (int i = 0; i < BlockPixels; ++i) {
      const int n = inner + outer;
      h[i] = i < count ? p * a.stride_h - a.pad_h : INT32_MIN / 2;
      w[i] = q * a.stride_w - a.pad_w;
      input[i] = (((int64_t)n * a.h + h[i]) * a.w + w[i]) * a.c;
      output[i] = (((int64_t)n * a.p + p) * a.q + q) * a.k;
      if (++inner < images) continue;
      inner = 0;
      if (++q < a.q) continue;
      q = 0;
      if (++p < a.p) continue;
      p = 0;
      ++outer;
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

#pragma omp parallel for schedule(static) if (a.launch[0] != 1)
  for (int tile = 0; tile < rows * columns; ++tile) {
    const int row = weights_stay ? tile % rows : tile / columns, column = weights_stay ? tile / rows : tile % columns;
    const int group = column / k_blocks, first_k = column % k_blocks * BlockK;
    const Pixels<BlockPixels> pixels(a, row * BlockPixels, a.launch[2]);
    const float* const block = weight + (int64_t)column * a.r * a.s * c * BlockK;

    Vec sums[BlockPixels][vectors] = {};
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
