// Sizes, parameters and shared-memory layout of conv2d.cuh, and the checks before the launch.
#pragma once
#include "common/mma.cuh"
#include "common/stem_image.cuh"
#include "common/fast_divmod.cuh"
#include "common/folded_se_gate.cuh"
#include "common/se_gate.cuh"

namespace at {

template <typename Config>
struct ImagePlan {
  using Element = typename Config::Element;
  using Sum = typename Config::Sum;  // int for signed bytes, else float
  using Problem = typename Config::Problem;
  static constexpr int kM = Config::kM, kN = Config::kN, kWarpM = Config::kWarpM, kWarpN = Config::kWarpN;
  static constexpr int kSlices = Config::kSlices, kTaps = Config::kTaps, kStages = Config::kStages;
  static constexpr bool kGated = Config::kGated, kBlock = Config::kBlock;
  static constexpr int kImage = Config::kImage;  // channels of the image that a stem reads; 0 without a stem
  static constexpr bool kStem = kImage > 0;
  static constexpr int kRowBytes = 128, kUnits = kRowBytes / 16, kK = kRowBytes / (int)sizeof(Element);
  static constexpr int kUnitChannels = kK / kUnits, kVector = 8;  // kVector: neighbouring channels of a thread's sums
  static constexpr int kAcross = kN / kWarpN, kWarps = kM / kWarpM * kAcross;  // of one slice
  static constexpr int kThreads = 32 * kWarps * kSlices;
  static constexpr int kCopied = kThreads / kUnits;                    // rows that all threads copy at once
  static constexpr int kBlocks = kWarpM / 16, kColumns = kWarpN / 32;  // per warp: tiles of 16 pixels, of 32 channels
  static constexpr int kPieces = kBlocks * kColumns, kOwn = kPieces / kSlices;  // 16 x 32 tiles: of a warp, of a slice
  static constexpr int kHidden = Config::kHidden, kHiddenTiles = kHidden / 8;
  static constexpr bool kFolded = kHidden > 0;
  static constexpr int kFilters = kN + kHidden;  // per tap
  static constexpr int kStageBytes = kTaps * kFilters * kRowBytes;
  static constexpr int kExchangedHidden = kFolded ? kSlices * kWarps * kBlocks * kHiddenTiles * 32 * 8 : 0;
  static constexpr int kExchangeBytes = kSlices > 1 ? kSlices * kM * kN * 4 + kExchangedHidden : 0;
  static constexpr int kMostTaps = 64;
  static_assert(!kFolded || kCopied % 8 == 0, "a thread's filters have one key");
  static_assert(kPieces % kSlices == 0, "each slice finishes as many pieces");
  static_assert(kN % kCopied == 0, "a thread copies the same filters of every tap");
  static_assert(sizeof(Element) == 2 || !kGated && !kFolded && !kBlock, "gates and blocks are in half precision");
  // Whether a last chunk of at most kK / 2 channels takes half of the products. Layers of 64 channels are common in
  // int8, those of 32 rare in half precision. With four slices a slice has one product a tap, which cannot be halved.
  static constexpr bool kHalfChunks = sizeof(Element) == 1 && kSlices <= 2;

  using Excitation = SeGate<Element, kM, kN, 1, kThreads>;
  using Folded = FoldedSeGate<Element, kM, kN, kHidden, kThreads, true>;
  enum {
    kX = 0,
    kStemWeight = 1,
    kWeight = 1 + kStem,
    kFirstGate = kWeight + 1 + kBlock,
    kY = kGated || kFolded ? kFirstGate + 4 : 2
  };
  using Launch = typename Config::Launch;

  struct Convolution {
    Problem a;
    int taps, tile_p, tile_q, images;         // of a tile
    int tiles_p, tiles_q;                     // of an image
    int by_tile, by_q, by_patch, by_patch_w;  // multipliers for over()
    int patch_h, patch_w, pixels, patches;    // of a patch; patches: buffers in shared memory
    int patch_bytes, gate_place;
    int chunks, steps;                      // chunks: of kK channels, or a block's convolutions
    int next_image, next_row, next_column;  // distance to the next patch pixel that a thread copies
    int hidden;
    float pixel_weight;  // of one pixel in the mean: 1 / pixels
    FastDivmod slabs;    // divides by the number of 16-row slabs of an image
    int tap[kMostTaps];  // bytes from a pixel's row to the tap's row; the lowest 3 bits: what the tap adds to the key
  };

  struct Params : Convolution {
    StemImage stem;
    at_pointers p;
  };

  // ---- Before the launch ----

  // Rows and columns of a tile of the output, and the number of patch buffers in shared memory.
  struct Tiling {
    int p, q, patches;
  };

  // over(i, reciprocal(d)) = i / d for 0 <= i <= 255 and 1 <= d <= 65536.
  AT_DEVICE static int reciprocal(int d) { return 65536 / d + 1; }
  AT_DEVICE static int over(int i, int reciprocal) { return i * reciprocal >> 16; }

  // Returns either 3x3 convolution of a residual block; both have the same sizes.
  template <typename Block>
  AT_DEVICE static Problem as_convolution(const Block& block, int h, int w, int c) {
    Problem a;
    a.n = block.n, a.h = a.p = h, a.w = a.q = w, a.c = a.k = c, a.r = a.s = 3, a.groups = 1;
    a.stride_h = a.stride_w = a.pad_h = a.pad_w = a.dilation_h = a.dilation_w = 1, a.hidden = block.hidden;
    for (int i = 0; i < AT_MAX_SCALARS; ++i) a.scalars[i] = block.scalars[i];
    return a;
  }

  AT_DEVICE static void prepare(const at_se_block& a, at_prepared* out) {
    prepare(as_convolution(a, a.h, a.w, a.c), a.hidden, {a.h, a.w, 2}, out);
  }

  AT_DEVICE static void prepare(const at_stem_se_block& a, at_prepared* out) {
    if (a.block != kSide || a.c != kImage) return refused(out, "this kernel is compiled for another block or c");
    if (a.h % kSide || a.w % kSide) return refused(out, "h and w must be multiples of the block");
    const int h = a.h / kSide, w = a.w / kSide;
    prepare(as_convolution(a, h, w, a.k), a.hidden, {h, w, 2}, out,
            stem_image(a.n, a.h, a.w, a.c, a.launch[Launch::kChannelsLast]));
  }

  // hidden: the hidden values of the gate; 0 without a gate.
  AT_DEVICE static void prepare(const Problem& a, int hidden, at_prepared* out) {
    prepare(a, hidden, {a.launch[Launch::kTileP], a.launch[Launch::kTileQ], a.launch[Launch::kPatches]}, out);
  }

  AT_DEVICE static void prepare(const Problem& a, int hidden, const Tiling& tiling, at_prepared* out,
                                const StemImage& stem = {}) {
    Params params;
    int64_t bytes;
    if (const char* reason = why_no_plan(a, hidden, tiling, params, bytes)) return refused(out, reason);
    if (bytes > AT_MAX_SHARED_BYTES) return refused(out, "the tile needs more shared memory than a block can have");
    params.stem = stem;
    const int64_t tiles = ceil_div(a.n, params.images) * params.tiles_p * params.tiles_q;
    prepared(out, params, tiles, ceil_div(a.k, kN), 1, kThreads, bytes, 0);
  }

  // Fills in the convolution and the bytes of shared memory. Returns null, or the reason why the problem is refused.
  AT_DEVICE static const char* why_no_plan(const Problem& a, int hidden, const Tiling& tiling, Convolution& params,
                                           int64_t& bytes) {
    const int taps = a.r * a.s, tile_p = tiling.p, tile_q = tiling.q, patches = tiling.patches;
    if (a.stride_w != a.stride_h || a.stride_h != 1 && a.stride_h != 2) return "the stride must be 1 or 2 both ways";
    if (a.groups != 1) return "groups must be 1";
    if (a.c % kUnitChannels || a.k % kVector) return "c must be a multiple of 16 bytes, and k of 8 channels";
    if (taps > kMostTaps) return "the filter must have at most 64 taps";
    if (taps % kTaps) return "the taps of a step must divide the taps of the filter";
    if (tile_p < 1 || tile_q < 1) return "the launch values tile_p and tile_q must be 1 or more";
    params.a = a, params.taps = taps, params.hidden = hidden;
    const int stride = a.stride_h, area = tile_p * tile_q;
    const bool whole = tile_p == a.p && tile_q == a.q;
    params.tile_p = tile_p, params.tile_q = tile_q, params.images = whole ? min(kM / max(area, 1), a.n) : 1;
    if (area > kM) return "tile_p * tile_q exceeds the pixels of a tile";
    if (tile_p > a.p || tile_q > a.q) return "the launch values tile_p and tile_q exceed the output";
    params.tiles_p = ceil_div(a.p, tile_p), params.tiles_q = ceil_div(a.q, tile_q);
    params.by_tile = reciprocal(area), params.by_q = reciprocal(tile_q);
    params.patch_h = stride * (tile_p - 1) + a.dilation_h * (a.r - 1) + 1;
    params.patch_w = stride * (tile_q - 1) + a.dilation_w * (a.s - 1) + 1;
    params.pixels = params.images * params.patch_h * params.patch_w;
    params.patch_bytes = params.pixels * kRowBytes;
    params.chunks = kBlock ? 2 : ceil_div(a.c, kK), params.steps = params.chunks * (taps / kTaps);
    params.patches = patches;
    // A step waits for the copies that were issued kStages - 1 steps before it. The first step of a chunk issues the
    // copy of the next patch, so a chunk must last at least kStages - 1 steps.
    const bool late = patches < 2 || taps / kTaps < kStages - 1;
    if (patches < 1 || patches > params.chunks) return "the launch value patches must be between 1 and the chunks of c";
    if (!kBlock && params.chunks > 1 && late) return "a patch would arrive too late: use more patches or fewer stages";
    if (kBlock && (a.c > kK || a.k > kN || patches != 2)) return "a residual block needs c <= 64 and k in one tile";
    params.by_patch = reciprocal(params.patch_h * params.patch_w), params.by_patch_w = reciprocal(params.patch_w);
    params.next_image = kCopied / (params.patch_h * params.patch_w);
    params.next_row = kCopied / params.patch_w % params.patch_h;
    params.next_column = kCopied % params.patch_w;
    for (int r = 0; r < a.r; ++r)
      for (int s = 0; s < a.s; ++s) {
        const int h = r * a.dilation_h, w = s * a.dilation_w;
        params.tap[r * a.s + s] = (h * params.patch_w + w) * kRowBytes + (h / stride * tile_q + w / stride) % 8;
      }
    bytes = max(patches * (int64_t)params.patch_bytes + kStages * kStageBytes, (int64_t)kExchangeBytes);
    params.gate_place = bytes;
    if constexpr (kGated) {
      const Excitation gate(a.p * a.q, hidden);
      if (!gate.fits()) return "the gate does not fit this kernel: hidden or the pixels of an image";
      if (!whole || kM % area != 0 || a.k > kN) return "with a gate, a tile must hold whole images and all channels";
      bytes += gate.bytes();
    }
    if constexpr (kFolded) {
      if (!Folded::fits(a.p * a.q, hidden))
        return "the gate does not fit this kernel: hidden or the pixels of an image";
      if (!whole || kM % area != 0) return "with a gate, a tile must hold whole images";
      params.pixel_weight = 1.f / area, params.slabs = FastDivmod::make(area / 16);
      bytes += Folded::kBytes;
    }
    return nullptr;
  }
};

}  // namespace at
