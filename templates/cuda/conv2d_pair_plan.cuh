// The tile, the shared memory and the launch of conv2d_pair.cuh.
//
// A patch has the channels of a pixel together, and 16 bytes behind them, so that the rows of neighbouring pixels are
// in different banks. With a stride of 2 its even columns come before its odd ones, because a tap reads only one of the
// two. The distances of rows and of images are such that the first pixel of an output row continues the banks of the
// last pixel of the row before it.
//
// kWhole says along which axes a tile holds the whole image: 0 none, 1 the width, 2 both. Along these the hidden tile
// has no border that must be computed.
#pragma once
#include "common/ptx/registers.cuh"

namespace at {

// Returns the place of a column in a row of a patch of this width, which is read with this stride.
template <int kStep, int kWide>
AT_DEVICE int place_of_column(int column) {
  return kStep == 2 ? column % 2 * ((kWide + 1) / 2) + column / 2 : column;
}

template <typename Config>
struct Conv2dPairPlan {
  using Element = typename Config::Element;
  using Steps = typename Config::Steps;
  static constexpr int kFilter1 = Config::kFilter1, kStride1 = Config::kStride1;
  static constexpr int kFilter = Config::kFilter, kStride = Config::kStride, kTaps = kFilter * kFilter;
  static constexpr int kTileH = Config::kTileH, kTileW = Config::kTileW, kImages = Config::kImages;
  static constexpr int kWhole = Config::kWhole, kWarpsM = Config::kWarpsM, kWarpsN = Config::kWarpsN;
  static constexpr int kWarpN = Config::kWarpN, kN = kWarpsN * kWarpN, kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kDepth = Config::kDepth, kStages = Config::kStages, kUnits = kDepth / 8;
  static constexpr int kPitch = 2 * kDepth + 16;  // bytes of a row of the ring: an odd number of units of 16
  // Neighbouring channels of a thread's sums: two of each of kGroup products of 8 channels.
  static constexpr int kGroup = kWarpN % 32 == 0 ? 4 : 2, kVector = 2 * kGroup;
  static_assert(Config::kVector == kVector && kWarpN % 16 == 0 && kDepth % 16 == 0, "no such tile");

  // The hidden pixels that a tile reads, and those of them that it computes for itself.
  static constexpr int kHaloH = (kTileH - 1) * kStride + kFilter, kHaloW = (kTileW - 1) * kStride + kFilter;
  static constexpr int kHiddenH = kWhole == 2 && kTileH * kStride < kHaloH ? kTileH * kStride : kHaloH;
  static constexpr int kHiddenW = kWhole >= 1 && kTileW * kStride < kHaloW ? kTileW * kStride : kHaloW;
  // The input pixels that these read.
  static constexpr int kInputH = (kHiddenH - 1) * kStride1 + kFilter1, kInputW = (kHiddenW - 1) * kStride1 + kFilter1;
  static constexpr bool kPatch = kFilter1 > 1;  // whether the input is in shared memory as a whole

  // A convolution with a tile of kTall x kWide pixels of each image.
  template <int kTall, int kWide>
  struct Part {
    static constexpr int kH = kTall, kW = kWide, kPixels = kImages * kTall * kWide, kTiles = (kPixels + 15) / 16;
    static constexpr int kMostRows = Config::kRows,
                         kPasses = (kTiles + kWarpsM * kMostRows - 1) / (kWarpsM * kMostRows);
    static constexpr int kRows = (kTiles + kWarpsM * kPasses - 1) / (kWarpsM * kPasses);  // a warp's blocks of 16
    static constexpr int kM = 16 * kWarpsM * kRows;                                       // pixels of a pass
  };
  using First = Part<kHiddenH, kHiddenW>;
  using Second = Part<kTileH, kTileW>;
  static constexpr int kListed = kPatch ? 0 : First::kPasses * First::kM;  // pixels in the list of `find_pixels`
  static constexpr int kRingRows = kN + (kPatch ? 0 : First::kM), kStageBytes = kRingRows * kPitch;

  // Indices of the pointers: Problem.operands() of conv2d_pair.
  enum { kX = 0, kWeight1 = 1, kWeight2 = 2, kY = 3 };

  // A tensor in shared memory. All distances are in bytes.
  struct Patch {
    int pixel, row, image, bytes;
    // kTall x kWide pixels of an image, read by outputs in rows of kRead and columns of kAcross.
    template <int kTall, int kWide, int kStep, int kRead, int kAcross>
    AT_DEVICE static Patch make(int channels) {
      const int units = channels / 8 + 1, columns = kStep == 2 ? (kWide + 1) / 2 * 2 : kWide;
      int row = columns * units;
      for (int more = 0; more < 8; ++more)
        if ((kStep * (row + more) - kAcross * units) % 8 == 0) {
          row += more;
          break;
        }
      int image = kTall * row;
      while ((image - kRead * kStep * row) % 8) ++image;
      return {16 * units, 16 * row, 16 * image, 16 * kImages * image};
    }
  };

  struct Params {
    at_conv2d_pair a;
    int tiles_h, tiles_w, depth[2], slices[2], channels[2];  // of the first and of the second convolution
    Patch input, hidden;
    int ring;         // the place of the ring in shared memory
    int taps[2][10];  // the distances of the taps in a patch; one more, which is not used
    at_pointers p;
  };

  AT_DEVICE static void prepare(const at_conv2d_pair& a, at_prepared* out) {
    if (a.first_r != kFilter1 || a.first_s != kFilter1 || a.first_stride_h != kStride1 || a.first_stride_w != kStride1)
      return refused(out, "the first filter and stride must be those that the kernel is compiled for");
    if (a.r != kFilter || a.s != kFilter || a.stride_h != kStride || a.stride_w != kStride)
      return refused(out, "the second filter and stride must be those that the kernel is compiled for");
    if (a.c % (kPatch ? 16 : 8)) return refused(out, "c must be a multiple of 16, or of 8 before a 1x1 filter");
    if (a.hidden % 16 || a.k % 8) return refused(out, "hidden must be a multiple of 16, and k of 8");
    if (a.pad_h >= kFilter || a.pad_w >= kFilter) return refused(out, "the padding must be less than the filter");
    if ((kWhole >= 1 && (a.q > kTileW || needed(a.hidden_w, a.q, a.pad_w) > kHiddenW)) ||
        (kWhole == 2 && (a.p > kTileH || needed(a.hidden_h, a.p, a.pad_h) > kHiddenH)))
      return refused(out, "the tile must hold the whole image along the axes that the kernel is compiled for");
    Params params;
    params.a = a;
    params.tiles_h = ceil_div(a.p, kTileH), params.tiles_w = ceil_div(a.q, kTileW);
    params.channels[0] = a.c, params.channels[1] = a.hidden;
    params.depth[0] = kFilter1 * kFilter1 * a.c, params.depth[1] = kTaps * a.hidden;
    params.slices[0] = ceil_div(a.hidden, kN), params.slices[1] = ceil_div(a.k, kN);
    params.input = {0, 0, 0, 0};
    if (kPatch) params.input = Patch::template make<kInputH, kInputW, kStride1, kHiddenH, kHiddenW>(a.c);
    params.hidden = Patch::template make<kHaloH, kHaloW, kStride, kTileH, kTileW>(a.hidden);
    for (int i = 0; i < 10; ++i) {
      const int r1 = i / kFilter1, r2 = i / kFilter;
      params.taps[0][i] = r1 * params.input.row + place_of_column<kStride1, kInputW>(i % kFilter1) * params.input.pixel;
      params.taps[1][i] = r2 * params.hidden.row + place_of_column<kStride, kHaloW>(i % kFilter) * params.hidden.pixel;
    }
    params.ring = params.input.bytes + params.hidden.bytes;
    const int64_t bytes = (int64_t)params.ring + kStages * kStageBytes + 4 * kListed;
    if (bytes > AT_MAX_SHARED_BYTES) return refused(out, "the block needs more shared memory than there is");
    const int blocks = ceil_div(a.n, kImages) * params.tiles_h * params.tiles_w;
    prepared(out, params, blocks, 1, 1, kThreads, (int)bytes, 0);
  }

  // Returns how many hidden rows or columns of the image the outputs read.
  AT_DEVICE static int needed(int hidden, int outputs, int pad) {
    return min(hidden, (outputs - 1) * kStride + kFilter - pad);
  }

  // The tile of a block: its first image and output pixel, and the first hidden pixel that it computes.
  struct Tile {
    int image, p, q, top, left;
    AT_DEVICE explicit Tile(const Params& params) {
      const int column = blockIdx.x % params.tiles_w, rest = blockIdx.x / params.tiles_w;
      image = rest / params.tiles_h * kImages, p = rest % params.tiles_h * kTileH, q = column * kTileW;
      top = kWhole == 2 ? 0 : p * kStride - params.a.pad_h, left = kWhole >= 1 ? 0 : q * kStride - params.a.pad_w;
    }
  };

  // Pixel m of a convolution's tile, relative to the first one.
  template <typename Of>
  struct Pixel {
    int image, row, column;
    AT_DEVICE explicit Pixel(int m) { image = m / (Of::kH * Of::kW), row = m / Of::kW % Of::kH, column = m % Of::kW; }
  };

  // The part of a pass that a thread's warp computes.
  struct Warp {
    int lane, m, n;  // m: index of the warp among those along pixels; n: its first channel of a slice
    AT_DEVICE Warp() {
      const int warp = ptx::warp_uniform(threadIdx.x / 32);
      lane = threadIdx.x % 32, m = warp / kWarpsN, n = warp % kWarpsN * kWarpN;
    }
  };
};

}  // namespace at
