// Definitions that the parts of the convolution in conv2d.cuh share: compile-time sizes, kernel parameters, coordinates
// of a block, and the shared-memory layout. prepare.cuh fills in the parameters.
#pragma once
#include "common/fast_divmod.cuh"
#include "common/ptx/tma.cuh"
#include "sm90/pipeline.cuh"
#include "sm90/smem_layout.cuh"

namespace at {

template <bool kFirst, typename First, typename Second>
struct Selected {
  using Type = First;
};
template <typename First, typename Second>
struct Selected<false, First, Second> {
  using Type = Second;
};
template <bool kFirst, typename First, typename Second>
using Select = typename Selected<kFirst, First, Second>::Type;

template <typename Config>
struct Conv2dPlan {
  using Element = typename Config::Element;
  using ElementAccum = typename Config::ElementAccum;
  using Launch = typename Config::Launch;  // launch values by name, in the family's order
  static constexpr int kM = Config::kM, kN = Config::kN, kK = Config::kK;
  static constexpr int kGroups = Config::kGroups, kSlices = Config::kSlices;
  static constexpr int kClusterM = Config::kClusterM, kClusterN = Config::kClusterN;
  static constexpr int kCluster = kClusterM * kClusterN * kSlices;
  static constexpr bool kPingpong = Config::kPingpong, kPatch = Config::kPatch, kResident = Config::kResident;
  static constexpr bool kJoint = !kPatch && !kResident;   // one stage holds a k_block of activations and its weights
  static constexpr int kTeam = kPingpong ? 1 : kGroups;   // warpgroups that share a tile
  static constexpr int kTiles = kPingpong ? kGroups : 1;  // tiles in flight
  static constexpr int kBlocks = kM / kTeam / 64;         // blocks of 64 rows (m64) of each warpgroup
  // Two warpgroups with many accumulators and prefetched epilogue tensors need more registers than an equal share of
  // 65536. Then a whole warpgroup of producer warps is launched, two of its four warps idle, and setmaxnreg moves
  // registers from it to the consumers.
  static constexpr bool kSetMaxNreg = Config::kSetMaxNreg;
  static constexpr int kProducerThreads = kSetMaxNreg ? 128 : 64, kThreads = 128 * kGroups + kProducerThreads;
  static constexpr int kRowBytes = kK * (int)sizeof(Element);
  // With a folded squeeze a tile has kHidden columns of hidden values beside its kN channels.
  static constexpr int kHidden = Config::kHidden, kColumns = kN + kHidden;
  static constexpr int kWeightBytes = kColumns * kRowBytes;
  static constexpr int kVector = 8;
  static constexpr int kVectors = kBlocks * 2 * (kN / 32);                    // vectors of eight channels of a thread
  static constexpr int kSliceN = kN / kSlices, kSliceColumns = kSliceN / 32;  // channels that a slice finishes
  static constexpr int kExchangedBytes =
      2 * (kSlices - 1) * kM * (kSliceN + kHidden) * 4;  // sent to and received from the other slices
  // With staging the output goes through shared memory, 16 pixels of a warp at a time, and TMA writes whole lines.
  // Without it the registers are stored directly, which starts sooner.
  static constexpr int kStages = 2;
  static constexpr int kWide = 128 / (int)sizeof(Element);  // channels of a line of 128 bytes
  static constexpr int kStageChannels = kN % kWide == 0 ? kWide : kN % 64 == 0 ? 64 : 32;
  static constexpr int kStageRowBytes = kStageChannels * (int)sizeof(Element);
  static constexpr int kStageBytes = 16 * kStageRowBytes;
  static constexpr int kPieces = kN / kStageChannels * kBlocks;  // pieces of a warp in a tile
  // With staging > 1 TMA also loads the tensor that the epilogue adds. Each warp prefetches `ahead` pieces, including
  // those of its next tile, so that memory stays busy while the tensor cores work.
  static constexpr bool kAhead = Config::kAddedPointer >= 0 && !Config::kGated && kSlices == 1;
  // Indices of the pointers: Problem.operands() of conv2d; of conv2d_se and conv2d_folded_se; or of conv2d_se_skip.
  enum {
    kX = 0,
    kWeight = 1,
    kFirstGate = 2,
    kSkip = 6,
    kProjection = 7,
    kY = Config::kProjects          ? 8
    : Config::kGated || kHidden > 0 ? 6
                                    : 2
  };
  static_assert(kM % (64 * kTeam) == 0 && kN % 32 == 0 && kVectors % kSlices == 0, "no such tile");
  static_assert(kSlices == 1 || !kPingpong && kJoint, "a split tile belongs to the whole block, and streams");
  static_assert(kClusterN == 1 || kJoint, "only pixels gathered by TMA are shared");

  // Each kernel has the space of all maps, since the parameters' offsets are part of its machine code.
  struct alignas(64) Params {
    uint8_t activation_map[128], weight_map[128], output_map[128], added_map[128], hidden_map[128], skip_map[128],
        projection_map[128];
    int pointwise, along_m, staging_bytes;
    int ahead;  // prefetched pieces of the added tensor per warp; 0: read when needed
    int n, out_h, out_w, k, rows;
    int last_row;  // first pixel of the last im2col tile
    int cluster_tiles;
    FastDivmod cluster_rows, cluster_columns, out_area, out_width;  // out_*: of pixels, or of patches
    int group_channels;
    FastDivmod group_outputs;
    int chunks, r, s, phases_h, phases_w;
    int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    int k_blocks;                                                         // of one tile
    int activation_stages, stage_bytes, activation_bytes, weight_stages;  // activation_bytes: of a load
    int squares_h, squares_w, patch_h, patch_w, images;
    int pixels, hidden, gate_bytes;  // of the gate
    float pixel_weight;
    FastDivmod slabs;
    int skip_channels, skip_k_blocks;  // of a group of the projection
    FastDivmod skip_outputs;
    float scalars[AT_MAX_SCALARS];
    at_pointers p;
  };
  static constexpr int kActivationMap = 0, kWeightMap = 128, kOutputMap = 256, kAddedMap = 384, kHiddenMap = 512,
                       kSkipMap = 640, kProjectionMap = 768;  // offsets in Params

  struct ClusterCoord {
    int m, n, slice;
    AT_DEVICE int rank(int other_m, int other_n, int other_slice) const {
      return (other_slice * kClusterN + other_n) * kClusterM + other_m;
    }
  };

  // Addresses in shared memory. A joint stage holds a k_block of activations, then its weights.
  struct Layout {
    uint32_t activations, weights, staging, added, gate, full, empty, order, gate_full, weight_full, weight_empty,
        added_full, end;
    AT_DEVICE Layout(const Params& params, uint32_t memory) {
      SmemLayout layout(memory);
      activations = layout.add(params.activation_stages * params.stage_bytes);
      weights = kJoint ? activations + kM * kRowBytes : layout.end;
      layout.add(params.weight_stages * kWeightBytes);
      staging = layout.add(params.staging_bytes);
      added = staging + kGroups * 4 * kStages * kStageBytes;
      gate = layout.add(params.gate_bytes);
      full = layout.add_barriers(params.activation_stages);
      empty = layout.add_barriers(params.activation_stages);
      order = layout.add_barriers(kGroups);  // of ping-pong warpgroups; with slices, of their exchange
      gate_full = layout.add_barriers(1);
      weight_full = layout.add_barriers(params.weight_stages);
      weight_empty = layout.add_barriers(params.weight_stages);
      added_full = layout.add_barriers(kGroups * 4 * params.ahead);
      end = layout.end;
    }
  };

  // The ring of activations, with their weights if those are joint, and the ring of weights alone.
  AT_DEVICE static Pipeline activation_pipeline(const Layout& smem) { return {smem.full, smem.empty}; }
  AT_DEVICE static Pipeline weight_pipeline(const Layout& smem) { return {smem.weight_full, smem.weight_empty}; }

  struct Tile {
    int m, n;
    AT_DEVICE Tile(const Params& params, const ClusterCoord& cta, int index) {
      int row, column;
      if (params.along_m) column = params.cluster_rows.divmod(index, row);
      else row = params.cluster_columns.divmod(index, column);
      m = row * kClusterM + cta.m;
      n = column * kClusterN + cta.n;
    }
    // The tile's first pixel, for im2col.
    AT_DEVICE int first_row(const Params& params) const { return min(m * kM, params.last_row); }
  };

  // A k_block's place along K, in the order in which producers and consumers visit it: its chunk of kK channels, and an
  // offset in pixels. For patches w and h are the phase of the stride, else the offset of the filter tap.
  struct KCoord {
    int chunk, w, h, end_w, step_w, step_h;
    AT_DEVICE KCoord(const Params& params, int k_block) : chunk(0), w(0), h(0) {
      if (kPatch) end_w = params.phases_w, step_w = step_h = 1;
      else end_w = params.s * params.dilation_w, step_w = params.dilation_w, step_h = params.dilation_h;
      if (kSlices > 1)
        chunk = k_block % params.chunks, w = k_block / params.chunks % params.s * step_w,
        h = k_block / params.chunks / params.s * step_h;
    }
    AT_DEVICE void advance(const Params& params) {
      if (++chunk != params.chunks) return;
      chunk = 0, w += step_w;
      if (w == end_w) w = 0, h += step_h;
    }
  };

  AT_DEVICE static int first_tile() { return blockIdx.x / kCluster; }
  AT_DEVICE static int tile_step() { return gridDim.x / kCluster; }
  AT_DEVICE static int first_k_block(const Params& params, int slice) { return params.k_blocks * slice / kSlices; }

  using Accum = ElementAccum[kBlocks][kColumns / 2];
};

}  // namespace at
