// The tile, the shared memory and the launch of inverted_residual.cuh.
#pragma once
#include "common/ptx/registers.cuh"

namespace at {

template <typename Config>
struct InvertedResidualPlan {
  using Element = typename Config::Element;
  using Steps = typename Config::Steps;
  static constexpr int kThreads = Config::kThreads, kWarps = kThreads / 32, kVector = 8, kParts = Config::kParts;
  static constexpr int kTileH = Config::kTileH, kTileW = Config::kTileW, kImages = Config::kImages;
  static constexpr int kFilter = Config::kFilter, kStride = Config::kStride;
  static constexpr int kChunk = Config::kChunk, kColumns = Config::kColumns;
  static constexpr int kHaloH = (kTileH - 1) * kStride + kFilter, kHaloW = (kTileW - 1) * kStride + kFilter;
  static constexpr int kWidePixels = kImages * kHaloH * kHaloW;
  static constexpr int kPixels = kImages * kTileH * kTileW, kRows = (kPixels + 15) / 16 * 16;
  static constexpr int kPadding = 8;  // elements between rows, so that neighbouring rows are in different banks
  static constexpr int kWidePitch = kChunk + kPadding, kSumPitch = kColumns + 8;
  // The first product: kTogether tiles of 16 rows share the weights that a warp reads, kExpandWarps share the columns.
  static constexpr int kTogether = Config::kTogether, kExpandWarps = Config::kExpandWarps;
  static constexpr int kExpandTiles = kChunk / 16 / kExpandWarps, kExpandRowWarps = kWarps / kExpandWarps;
  static constexpr int kGroup = 16 * kTogether;  // rows that a warp multiplies together
  // The last product: tiles of 16 x 16 sums of a warp. What lies beyond kRows and kColumns is computed and not used.
  static constexpr int kProjectWarps = Config::kProjectWarps, kProjectRowWarps = kWarps / kProjectWarps;
  static constexpr int kRowTiles = (kRows / 16 + kProjectRowWarps - 1) / kProjectRowWarps;
  static constexpr int kColumnTiles = (kColumns / 16 + kProjectWarps - 1) / kProjectWarps;
  static constexpr int kNarrowRows = 16 * kRowTiles * kProjectRowWarps;
  static constexpr int kWeightRows = 16 * kColumnTiles * kProjectWarps;
  // The depthwise convolution: a thread computes kStrip x kNeighbours pixels of kDepth channels.
  static constexpr int kStrip = Config::kStrip, kNeighbours = Config::kNeighbours, kDepth = Config::kDepth;
  static_assert(kTileW % kNeighbours == 0 && kChunk % (16 * kExpandWarps) == 0 && kColumns % 16 == 0, "no such tile");
  static_assert(kWarps % kExpandWarps == 0 && kWarps % kProjectWarps == 0, "no such share of the warps");
  // Indices of the pointers: Problem.operands() of inverted_residual.
  enum { kX = 0, kWeight1 = 1, kWeight2 = 2, kWeight3 = 3, kY = 4 };
  using Accum = float[kRowTiles][2 * kColumnTiles][4];

  struct Params {
    at_conv2d_se a;
    int pitch;                         // elements of a row of the input and of the first weights in shared memory
    int units, step_rows, step_units;  // 16-byte units of such a row; rows and units that kThreads units are
    int rows;                          // of the first product: the most pixels of the image in a tile, rounded up
    int tiles_h, tiles_w, chunks;
    at_pointers p;
  };

  AT_DEVICE static void prepare(const at_conv2d_se& a, at_prepared* out) {
    if (a.c % kVector || a.hidden % kVector || a.k % kVector)
      return refused(out, "c, hidden and k must be multiples of 8");
    if (a.k > kColumns) return refused(out, "k exceeds the output channels that the kernel is compiled for");
    if (a.r != kFilter || a.s != kFilter || a.stride_h != kStride || a.stride_w != kStride)
      return refused(out, "the filter and the stride must be those that the kernel is compiled for");
    Params params;
    params.a = a, params.units = (a.c + 15) / 16 * 2, params.pitch = params.units * kVector + kPadding;
    params.step_rows = kThreads / params.units, params.step_units = kThreads % params.units;
    params.tiles_h = ceil_div(a.p, kTileH), params.tiles_w = ceil_div(a.q, kTileW),
    params.chunks = ceil_div(a.hidden, kChunk);
    const int tall = most_inside(params.tiles_h, kTileH, kHaloH, a.h, a.pad_h);
    const int pixels = kImages * tall * most_inside(params.tiles_w, kTileW, kHaloW, a.w, a.pad_w);
    params.rows = ceil_div(pixels, kGroup) * kGroup;
    const int64_t elements = (int64_t)(params.rows + kChunk) * params.pitch +
                             (kWeightRows + kWidePixels + kGroup + kNarrowRows) * kWidePitch +
                             kFilter * kFilter * kChunk;
    const int64_t products = 8 * params.rows + 2 * elements, sums = 4 * kRows * kSumPitch;
    const int64_t bytes = products > sums ? products : sums;
    if (bytes > AT_MAX_SHARED_BYTES) return refused(out, "the block needs more shared memory than there is");
    const int64_t tiles = ceil_div(a.n, kImages) * params.tiles_h * params.tiles_w;
    prepared(out, params, tiles * kParts, 1, 1, kThreads, bytes, 0);
  }

  // What lies in shared memory.
  struct Memory {
    int* pixels;        // (rows): the pixel of a row of the first product, from the tile's first image on; -1: none
    int* places;        // (rows): where its result is written in `wide`, in elements
    Element* input;     // (rows, pitch)
    Element* weights1;  // (kChunk, pitch)
    Element* weights3;  // (kWeightRows, kWidePitch)
    Element* filters;   // (kFilter, kFilter, kChunk)
    Element* wide;      // (kImages, kHaloH, kHaloW, kWidePitch), and kGroup rows for results that are not used
    Element* narrow;    // (kNarrowRows, kWidePitch)
    float* sums;        // (kRows, kSumPitch), in the same place after the last product
    AT_DEVICE Memory(const Params& params, char* shared) {
      pixels = (int*)shared;
      places = pixels + params.rows;
      input = (Element*)(places + params.rows);
      weights1 = input + params.rows * params.pitch;
      weights3 = weights1 + kChunk * params.pitch;
      filters = weights3 + kWeightRows * kWidePitch;
      wide = filters + kFilter * kFilter * kChunk;
      narrow = wide + (kWidePixels + kGroup) * kWidePitch;
      sums = (float*)shared;
    }
  };

  // The tile of a block: its first image and output pixel, and the pixels of the image on which it depends.
  struct Tile {
    int image, first_p, first_q;
    int top, left;                                              // of the depthwise filter, may lie outside of the image
    int clipped_top, clipped_left, clipped_h, clipped_w, rows;  // what is inside; rows of the first product
    AT_DEVICE explicit Tile(const Params& params) {
      const int index = blockIdx.x / kParts, column = index % params.tiles_w, rest = index / params.tiles_w;
      image = rest / params.tiles_h * kImages, first_p = rest % params.tiles_h * kTileH, first_q = column * kTileW;
      top = first_p * kStride - params.a.pad_h, left = first_q * kStride - params.a.pad_w;
      clipped_top = max(top, 0), clipped_left = max(left, 0);
      clipped_h = max(min(top + kHaloH, params.a.h) - clipped_top, 0);
      clipped_w = max(min(left + kHaloW, params.a.w) - clipped_left, 0);
      rows = min(kImages, params.a.n - image) * clipped_h * clipped_w;
    }
    AT_DEVICE int groups() const { return (rows + kGroup - 1) / kGroup; }
  };

  // A unit of 16 bytes of rows of `units`: a thread takes every kThreads-th one, without divisions.
  struct Unit {
    int row, unit;
    AT_DEVICE explicit Unit(const Params& params) : row(threadIdx.x / params.units), unit(threadIdx.x % params.units) {}
    AT_DEVICE void advance(const Params& params) {
      row += params.step_rows, unit += params.step_units;
      if (unit >= params.units) unit -= params.units, ++row;
    }
  };

 private:
  // Returns the most pixels of the image along one axis that a tile depends on.
  AT_DEVICE static int most_inside(int tiles, int tile, int halo, int size, int pad) {
    int most = 0;
    for (int i = 0; i < tiles; ++i) {
      const int begin = i * tile * kStride - pad;
      most = max(most, min(begin + halo, size) - max(begin, 0));
    }
    return most;
  }
};

}  // namespace at
