// Direct convolution with a register tile of Pixels::COUNT output pixels x BlockK output channels.
//
// A tile is any COUNT consecutive output pixels in (p, q, n) order: images are innermost. So small images share a tile,
// and the pixels of a tile lie at the same place in different images. A filter tap that lies in the padding for all
// pixels of a tile is skipped; this saves 5 of 9 taps on a 2 x 2 image. If only some pixels are outside of the image,
// they read zeros.
//
// Weights have the layout (groups, blocks of k, r, s, c / groups, BlockK), padded with zeros: a tile reads them in
// order.
#pragma once
#include "cpu/vector.h"

namespace at {

// Input channels that are processed for all taps before the next ones, so that the taps find them in cache.
constexpr int CHANNEL_CHUNK = 256;
alignas(64) static const float zeros[CHANNEL_CHUNK] = {};  // also used as CHANNEL_CHUNK zeros of a narrower type

// The accumulator type for products of an element type; declarations only, for decltype.
float sum_of(float);
int32_t sum_of(signed char);
float sum_of(e4m3);

// sums += x * weight over `channels` input channels; x points to the channels of each pixel.
template <int UnrollC, int Pixels, int Vectors, typename Vec, typename Element>
static inline void multiply(Vec (&sums)[Pixels][Vectors], const float* const (&x)[Pixels], const Element* weight,
                            int channels) {
  constexpr int width = sizeof(Vec) / sizeof(float);
  Vec acc[Pixels][Vectors];  // in registers, because every loop over it is unrolled
#pragma GCC unroll 16
  for (int i = 0; i < Pixels; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) acc[i][v] = sums[i][v];

  const auto step = [&](int c) __attribute__((always_inline)) {
    Vec row[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) row[v] = read<Vec>(weight + ((int64_t)c * Vectors + v) * width);
#pragma GCC unroll 16
    for (int i = 0; i < Pixels; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) acc[i][v] += x[i][c] * row[v];
  };
  int c = 0;
  for (; c + UnrollC <= channels; c += UnrollC)
#pragma GCC unroll 8
    for (int u = 0; u < UnrollC; ++u) step(c + u);
  for (; UnrollC > 1 && c < channels; ++c) step(c);

#pragma GCC unroll 16
  for (int i = 0; i < Pixels; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sums[i][v] = acc[i][v];
}

// The same for 8-bit elements, converted to float. Products and sums of one chunk of int8 are exact in float, and
// faster than integer arithmetic.
template <int UnrollC, int Pixels, int Vectors, typename Vec, typename Element>
static inline void multiply_bytes(Vec (&sums)[Pixels][Vectors], const Element* const (&x)[Pixels],
                                  const Element* weight, int channels) {
  static_assert(CHANNEL_CHUNK * 128 * 128 <= 1 << 24, "a chunk's sums are whole numbers that a float holds");
  using Part = Vector<sizeof(Vec) / sizeof(float)>;
  alignas(64) float values[Pixels][CHANNEL_CHUNK];
  const float* rows[Pixels];
  for (int i = 0; i < Pixels; ++i) {
    int c = 0;
    for (; c + REGISTER_FLOATS <= channels; c += REGISTER_FLOATS) {
      const auto several = read<Vector<REGISTER_FLOATS>>(x[i] + c);
      memcpy(values[i] + c, &several, sizeof several);
    }
    for (; c < channels; ++c) values[i][c] = to_float(x[i][c]);
    rows[i] = values[i];
  }
  Part parts[Pixels][Vectors] = {};
  multiply<UnrollC>(parts, rows, weight, channels);
  for (int i = 0; i < Pixels; ++i)
    for (int v = 0; v < Vectors; ++v) sums[i][v] += __builtin_convertvector(parts[i][v], Vec);
}

// The pixels of one tile of a forward convolution: offsets of their outputs, and of the inputs under their first tap.
template <int Count>
struct ForwardPixels {
  static constexpr int COUNT = Count;
  static int inputs(const at_conv2d& a) { return a.c; }
  static int outputs(const at_conv2d& a) { return a.k; }
  static int pixels(const at_conv2d& a) { return a.n * a.p * a.q; }

  int row = -2;     // index of this tile
  int exist;        // pixels of Count that exist; the others read zeros
  int image, p, q;  // of the first pixel after this tile
  int h[Count], w[Count];
  int64_t input[Count], output[Count];

  // Moves to a tile. Moving to the next one needs no division.
  void seek(const at_conv2d& a, int to) {
    if (to == row) return;
    const int first = to * Count, left = pixels(a) - first;
    if (to != row + 1) {
      image = first % a.n;
      q = first / a.n % a.q;
      p = first / a.n / a.q;
    }
    row = to;
    exist = left < Count ? left : Count;
    for (int i = 0; i < Count; ++i) {
      h[i] = i < exist ? p * a.stride_h - a.pad_h : INT32_MIN / 2;
      w[i] = q * a.stride_w - a.pad_w;
      input[i] = (((int64_t)image * a.h + h[i]) * a.w + w[i]) * a.c;
      output[i] = (((int64_t)image * a.p + p) * a.q + q) * a.k;
      if (++image < a.n) continue;
      image = 0;
      if (++q < a.q) continue;
      q = 0;
      ++p;
    }
  }

  // Finds each pixel's input channels under a tap. Returns false if the tap lies in the padding for all pixels.
  template <typename Element>
  bool tap(const at_conv2d& a, int r, int s, const Element* x, const Element* (&under)[Count]) const {
    const int down = r * a.dilation_h, right = s * a.dilation_w;
    const int64_t offset = ((int64_t)down * a.w + right) * a.c;
    bool any = false;
    for (int i = 0; i < Count; ++i) {
      const bool inside = (unsigned)(h[i] + down) < (unsigned)a.h && (unsigned)(w[i] + right) < (unsigned)a.w;
      under[i] = inside ? x + input[i] + offset : (const Element*)zeros;
      any |= inside;
    }
    return any;
  }
};

// Computes the whole convolution. Pixels describes the tiles. finish(v, channel, offset) applies the epilogue to an
// array of neighbouring channels of a pixel and stores it. Launch values: threads = 1 runs on one thread; order = 0
// processes tiles with the same weights one after the other, order = 1 tiles with the same input.
template <typename Launch, typename Pixels, int BlockK, int UnrollC, typename Element, typename Finish>
static inline void conv2d(const at_conv2d& a, const Element* x, const Element* weight, const Finish& finish) {
  constexpr int width = BlockK < REGISTER_FLOATS ? BlockK : REGISTER_FLOATS, vectors = BlockK / width;
  using Sum = decltype(sum_of(Element{}));
  using Vec = Vector<width, Sum>;
  constexpr int count = Pixels::COUNT;
  const int c = Pixels::inputs(a) / a.groups, k = Pixels::outputs(a) / a.groups;
  const int k_blocks = (k + BlockK - 1) / BlockK;
  const int columns = a.groups * k_blocks, rows = (Pixels::pixels(a) + count - 1) / count;
  const bool by_rows = a.launch[Launch::kOrder];
  const int outer = by_rows ? rows : columns, inner = by_rows ? columns : rows;
  Pixels pixels;

#pragma omp parallel for collapse(2) schedule(static) firstprivate(pixels) if (a.launch[Launch::kThreads] != 1)
  for (int i = 0; i < outer; ++i)
    for (int j = 0; j < inner; ++j) {
      const int column = by_rows ? j : i, group = column / k_blocks, block = column % k_blocks * BlockK;
      pixels.seek(a, by_rows ? i : j);

      Vec sums[count][vectors];
#pragma GCC unroll 16
      for (auto& of_pixel : sums)
#pragma GCC unroll 8
        for (auto& sum : of_pixel) sum = Vec{};
      for (int chunk = 0; chunk < c; chunk += CHANNEL_CHUNK) {
        const int channels = c - chunk < CHANNEL_CHUNK ? c - chunk : CHANNEL_CHUNK;
        for (int r = 0; r < a.r; ++r)
          for (int s = 0; s < a.s; ++s) {
            const Element* under[count];
            if (!pixels.tap(a, r, s, x + group * c + chunk, under)) continue;
            const int64_t tap = ((int64_t)column * a.r + r) * a.s + s;
            const Element* of_tap = weight + (tap * c + chunk) * BlockK;
            if constexpr (sizeof(Element) == 1) multiply_bytes<UnrollC>(sums, under, of_tap, channels);
            else multiply<UnrollC>(sums, under, of_tap, channels);
          }
      }

      const int exist = k - block < BlockK ? k - block : BlockK, channel = group * k + block;
      for (int pixel = 0; pixel < pixels.exist; ++pixel) {
        const Sum* sum = (const Sum*)sums[pixel];
        int l = 0;
        for (; l + width <= exist; l += width) {
          float v[width];
          for (int i = 0; i < width; ++i) v[i] = sum[l + i];
          finish(v, channel + l, pixels.output[pixel] + channel + l);
        }
        for (; l < exist; ++l) {
          float v[1] = {(float)sum[l]};
          finish(v, channel + l, pixels.output[pixel] + channel + l);
        }
      }
    }
}

}  // namespace at
