// Depthwise convolution by mma.sync, for sm_80 and later; NHWC.
//
// For one channel and one row of the filter, the outputs of a row are the product of the row's inputs and a banded
// matrix with the filter's taps: output j of eight is the sum of inputs j .. j + taps - 1. So sums (16 rows x 8 columns
// of outputs) += inputs (16 rows x 16 columns) band (16 x 8), once for each row of the filter. Most of the products are
// with zeros, but the tensor cores make them faster than the other units make the rest: a 7x7 filter takes 7
// instructions of a warp for 128 outputs instead of 196.
//
// The inputs of a tile lie in shared memory by channels, for their columns are the products' inner dimension. The
// column parity of inputs with stride 2 is a further dimension, outside of which the columns are neighbours, and so is
// the row parity. A row has an odd number of 16-byte units, so that the eight rows that ldmatrix reads at once lie in
// different banks. Two neighbouring matrices of 16 columns share eight, which are read once.
//
// The band of a channel and a row of the filter is read from the taps with zeros on both sides. Each lane reads pairs
// of taps; the pairs that begin at odd places have a table of their own.
//
// A warp computes eight channels of 16 rows, which may belong to several images; so its stores take 16 bytes.
#pragma once
#include "common/copies.cuh"
#include "common/mma.cuh"

namespace at {

template <typename Config>
struct MmaDepthwise {
  using Element = typename Config::Element;
  using Steps = typename Config::Steps;
  static constexpr int kFilter = Config::kFilter, kStride = Config::kStride;
  static constexpr int kRows = Config::kRows;    // output rows of an image
  static constexpr int kTiles = Config::kTiles;  // products side by side: 8 output columns each
  static constexpr int kChannels = Config::kChannels, kWalk = Config::kWalk;
  static constexpr int kVector = 8, kGroups = kChannels / kVector;
  static constexpr int kImages = kRows < 16 ? 16 / kRows : 1, kBlocks = kRows * kImages / 16;
  static constexpr int kThreads = 32 * kGroups * kBlocks;
  static constexpr int kTaps = (kFilter + kStride - 1) / kStride;  // of a parity of the columns or rows, at most
  static constexpr int kInRows = kRows + kTaps - 1;                // of a parity
  static constexpr int kPairs = 4 * kTiles + 4;                    // of columns, of a parity
  static constexpr int kReadPairs = (8 * kTiles + kTaps) / 2;      // those with inputs; the rest are zeros
  static constexpr int kRowBytes = ((kTiles + 1) | 1) * 16, kPlaneBytes = kInRows * kRowBytes;
  static constexpr int kImageBytes = kStride * kStride * kPlaneBytes, kChannelBytes = kImages * kImageBytes;
  static constexpr int kGroupBytes = kVector * kChannelBytes + 128 / kGroups;  // the groups begin in different banks
  static constexpr int kInputBytes = kGroups * kGroupBytes;
  static constexpr int kAllRows = kImages * kInRows * kStride;    // of inputs
  static constexpr int kRowThreads = kGroups * kPairs * kStride;  // that copy a row of inputs
  static constexpr int kRowsAtOnce = kThreads < kRowThreads ? 1 : kThreads / kRowThreads;
  static constexpr int kTapUnits = kFilter * kFilter * kGroups;  // of eight taps
  // A table of pairs has 12 words: taps begin at place 7 of 23, behind zeros.
  static constexpr int kZeros = 7, kTableBytes = 48, kBandBytes = 2 * kTableBytes;
  static constexpr int kChannelBands = kFilter * kStride * kBandBytes, kBandsBytes = kChannels * kChannelBands;

  struct Params {
    at_conv2d a;
    int groups, tiles_p, tiles_q, tiles;
    at_pointers p;
  };

  AT_DEVICE static void prepare(const at_conv2d& a, at_prepared* out) {
    if (a.groups != a.c || a.k != a.c) return refused(out, "a depthwise convolution has groups = c = k");
    if (a.c % kVector) return refused(out, "the channels must be a multiple of 8");
    const bool same = a.r == kFilter && a.s == kFilter && a.stride_h == kStride && a.stride_w == kStride;
    if (!same) return refused(out, "this kernel is compiled for another filter size or stride");
    if (a.dilation_h != 1 || a.dilation_w != 1) return refused(out, "dilation must be 1");
    Params params{a, ceil_div(a.c, kChannels), ceil_div(a.p, kRows), ceil_div(a.q, 8 * kTiles), 0, {}};
    const int64_t tiles = (int64_t)ceil_div(a.n, kImages) * params.tiles_p * params.tiles_q;
    if (tiles * params.groups > 0x7fffffff) return refused(out, "the grid would have more than 2^31 blocks");
    params.tiles = tiles;
    prepared(out, params, (int64_t)ceil_div(params.tiles, kWalk) * params.groups, 1, 1, kThreads,
             kInputBytes + kBandsBytes, 0);
  }

  // Where a tile's outputs begin.
  struct Place {
    int image, row, column;

    AT_DEVICE Place(const Params& params, int tile) {
      const int above = tile / params.tiles_q;
      column = (tile - above * params.tiles_q) * 8 * kTiles;
      row = above % params.tiles_p * kRows;
      image = above / params.tiles_p * kImages;
    }
  };

  // Writes the bands of the block's channels.
  AT_DEVICE static void fill_bands(const Params& params, int first_channel, char* bands) {
    constexpr int kOwn = (kTapUnits + kThreads - 1) / kThreads;
    Pack<Element, kVector> taps[kOwn];                      // read before the zeros are written, for they come from far
    const Element* weight = (const Element*)params.p.p[1];  // (r, s, c)
    AT_UNROLL for (int i = 0; i < kOwn; ++i) {
      const int unit = i * kThreads + threadIdx.x, channel = first_channel + unit % kGroups * kVector;
      if (unit < kTapUnits && channel < params.a.c)
        taps[i].read(weight + (int64_t)(unit / kGroups) * params.a.c + channel);
    }
    for (int i = threadIdx.x; i < kBandsBytes / 16; i += kThreads) reinterpret_cast<uint4*>(bands)[i] = uint4{};
    __syncthreads();
    AT_UNROLL for (int i = 0; i < kOwn; ++i) {
      const int unit = i * kThreads + threadIdx.x, group = unit % kGroups, tap = unit / kGroups;
      if (unit >= kTapUnits || first_channel + group * kVector >= params.a.c) continue;
      const int r = tap / kFilter, s = tap % kFilter, place = kZeros + s / kStride;
      char* band = bands + group * kVector * kChannelBands + (r * kStride + s % kStride) * kBandBytes;
      AT_UNROLL for (int e = 0; e < kVector; ++e) {
        reinterpret_cast<Element*>(band + e * kChannelBands)[place] = taps[i].elements[e];
        reinterpret_cast<Element*>(band + e * kChannelBands + kTableBytes)[place - 1] = taps[i].elements[e];
      }
    }
  }

  // Copies the inputs of a tile to shared memory. A thread copies two neighbouring columns of eight channels, row by
  // row; zeros outside of the image.
  AT_DEVICE static void load(const Params& params, const Place& place, int first_channel, char* shared) {
    const at_conv2d& a = params.a;
    const int top = place.row * kStride - a.pad_h, left = place.column * kStride - a.pad_w;
    AT_NO_UNROLL for (int thread = threadIdx.x; thread < kRowThreads * kRowsAtOnce; thread += kThreads) {
      const int group = thread % kGroups, pair = thread / kGroups % kPairs;
      const int parity = thread / (kGroups * kPairs) % kStride;
      const int channel = first_channel + group * kVector, column = left + 2 * pair * kStride + parity;
      const bool reads = channel < a.c && pair < kReadPairs;
      const bool first_inside = reads && column >= 0 && column < a.w;
      const bool second_inside = reads && column + kStride >= 0 && column + kStride < a.w;
      const Element* from = (const Element*)params.p.p[0] + (int64_t)column * a.c + channel;
      char* to = shared + group * kGroupBytes + parity * kPlaneBytes + pair * 4;
#pragma unroll 4
      for (int i = thread / kRowThreads; i < kAllRows; i += kRowsAtOnce) {
        const int image = kImages == 1 ? 0 : i / (kInRows * kStride), row = i - image * kInRows * kStride;
        const int from_image = place.image + image, from_row = top + row;
        const bool inside = from_row >= 0 && from_row < a.h && (kImages == 1 || from_image < a.n);
        const Element* line = from + ((int64_t)from_image * a.h + from_row) * a.w * a.c;
        Pack<Element, kVector> first, second;
        first.words[0] = second.words[0] = {};
        if (inside && first_inside) first.read(line);
        if (inside && second_inside) second.read(line + kStride * a.c);
        char* line_to = to + image * kImageBytes + row % kStride * kStride * kPlaneBytes + row / kStride * kRowBytes;
        AT_UNROLL for (int e = 0; e < kVector; ++e) {
          Pack<Element, 2> both;
          both.elements[0] = first.elements[e], both.elements[1] = second.elements[e];
          both.write((Element*)(line_to + e * kChannelBytes));
        }
      }
    }
  }

  using Accum = float[kVector][kTiles][4];

  static constexpr int kSteps = kVector * kFilter * kStride;  // channels x rows of the filter x parities of columns

  // What the products of a step read: eight columns of 16 rows each, and the band.
  struct Operands {
    uint32_t columns[kTiles + 1][2], band[2];

    // inputs, bands: what this lane reads first of the warp's eight channels.
    AT_DEVICE void read(uint32_t inputs, const char* bands, int step) {
      const int e = step / (kFilter * kStride), r = step / kStride % kFilter, parity = step % kStride;
      const char* from = bands + e * kChannelBands + (r * kStride + parity) * kBandBytes;
      band[0] = *(const uint32_t*)from, band[1] = *(const uint32_t*)(from + 16);
      const uint32_t row =
          inputs + e * kChannelBytes + (r % kStride * kStride + parity) * kPlaneBytes + r / kStride * kRowBytes;
      AT_UNROLL for (int j = 0; j < kTiles; j += 2) {
        uint32_t both[4];
        load_matrices(both, row + j * 16);
        columns[j][0] = both[0], columns[j][1] = both[1];
        columns[j + 1][0] = both[2], columns[j + 1][1] = both[3];
      }
      if constexpr (kTiles % 2 == 0) load_matrices(columns[kTiles], row + kTiles * 16);
    }
  };

  // The operands of a step are read before the products of the step before it.
  AT_DEVICE static void multiply(uint32_t inputs, const char* bands, Accum& accum) {
    Operands operands[2];
    operands[0].read(inputs, bands, 0);
    AT_UNROLL for (int step = 0; step < kSteps; ++step) {
      if (step + 1 < kSteps) operands[(step + 1) % 2].read(inputs, bands, step + 1);
      const Operands& now = operands[step % 2];
      AT_UNROLL for (int j = 0; j < kTiles; ++j) {
        const uint32_t a[4] = {now.columns[j][0], now.columns[j][1], now.columns[j + 1][0], now.columns[j + 1][1]};
        mma<Element>(accum[step / (kFilter * kStride)][j], a, now.band[0], now.band[1]);
      }
    }
  }

  AT_DEVICE static void finish(const Params& params, const Place& place, int channel, int first_site,
                               const Accum& accum) {
    if (channel >= params.a.c) return;
    const int lane = threadIdx.x % 32;
    AT_UNROLL for (int half = 0; half < 2; ++half) {
      const int site = first_site + 8 * half + lane / 4;
      const int image = place.image + site / kRows, row = place.row + site % kRows;
      if (image >= params.a.n || row >= params.a.p) continue;
      AT_UNROLL for (int j = 0; j < kTiles; ++j) AT_UNROLL
        for (int odd = 0; odd < 2; ++odd) {
          const int column = place.column + 8 * j + lane % 4 * 2 + odd;
          if (column >= params.a.q) continue;
          float v[kVector];
          AT_UNROLL for (int e = 0; e < kVector; ++e)
            v[e] = accum[e][j][2 * half + odd];
          const int64_t offset = (((int64_t)image * params.a.p + row) * params.a.q + column) * params.a.c + channel;
          Steps::apply(v, params.p.p, params.a, channel, offset);
          store(v, (Element*)params.p.p[2] + offset);
        }
    }
  }

  AT_DEVICE static void run(const Params& params, char* shared) {
    const int walk = blockIdx.x / params.groups, first_channel = (blockIdx.x - walk * params.groups) * kChannels;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp % kGroups;
    const int first_site = warp / kGroups * 16, site = first_site + lane % 16;
    const uint32_t inputs = (uint32_t)__cvta_generic_to_shared(shared) + group * kGroupBytes +
                            site / kRows * kImageBytes + site % kRows * kRowBytes + lane / 16 * 16;
    // The lane's pair of taps begins at this place; pairs that begin at odd places are in the second table.
    const int begin = kZeros + lane % 4 * 2 - lane / 4;
    char* bands = shared + kInputBytes;
    fill_bands(params, first_channel, bands);
    const char* own = bands + group * kVector * kChannelBands + begin % 2 * kTableBytes + begin / 2 * 4;
    griddepcontrol_wait();
    AT_NO_UNROLL for (int i = 0; i < kWalk; ++i) {
      const int tile = walk * kWalk + i;
      if (tile >= params.tiles) break;
      const Place place(params, tile);
      load(params, place, first_channel, shared);
      if (i + 1 == kWalk) launch_dependents();
      __syncthreads();
      Accum accum = {};
      multiply(inputs, own, accum);
      __syncthreads();  // the inputs are read
      finish(params, place, first_channel + group * kVector, first_site, accum);
    }
  }
};

}  // namespace at
