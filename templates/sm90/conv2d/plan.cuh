// Host side and shared definitions of the convolution in conv2d.cuh: compile-time sizes, kernel parameters, prepare(),
// tile coordinates, and the shared-memory layout.
#pragma once
#include "common/fast_divmod.cuh"
#include "common/folded_se_gate.cuh"
#include "sm90/pipeline.cuh"
#include "sm90/smem_layout.cuh"
#include "common/ptx/tma.cuh"
#include "common/se_gate.cuh"

namespace at {

template <typename Config>
struct Conv2dPlan {
  using Element = typename Config::Element;
  static constexpr int kM = Config::kM, kN = Config::kN, kK = Config::kK;
  static constexpr int kGroups = Config::kGroups, kSlices = Config::kSlices;
  static constexpr int kClusterM = Config::kClusterM, kClusterN = Config::kClusterN;
  static constexpr int kCluster = kClusterM * kClusterN * kSlices;
  static constexpr bool kPingpong = Config::kPingpong, kPatch = Config::kPatch, kResident = Config::kResident;
  static constexpr bool kJoint = !kPatch && !kResident;  // one stage holds a fill of activations and its weights
  static constexpr int kTeam = kPingpong ? 1 : kGroups;  // warpgroups that share a tile
  static constexpr int kBlocks = kM / kTeam / 64;        // blocks of 64 rows (m64) of each warpgroup
  // Two warpgroups with many accumulators and prefetched epilogue tensors need more registers than an equal share of
  // 65536. Then a whole warpgroup of loading warps is launched, two of its four warps idle, and setmaxnreg moves
  // registers from it to the multiplying warpgroups.
  static constexpr bool kSetMaxNreg = Config::kSetMaxNreg;
  static constexpr int kThreads = 128 * kGroups + (kSetMaxNreg ? 128 : 64);
  static constexpr int kRowBytes = kK * (int)sizeof(Element);
  // With a folded squeeze a tile has kHidden columns of hidden values beside its kN channels.
  static constexpr int kHidden = Config::kHidden, kColumns = kN + kHidden;
  static constexpr bool kFolded = kHidden > 0;
  static constexpr int kWeightBytes = kColumns * kRowBytes;
  static constexpr int kVector = 8;
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
  static constexpr int kVectors = kBlocks * 2 * (kN / 32);  // vectors of eight channels of a thread
  static constexpr int kOwnN = kN / kSlices,
                       kOwnColumns = kOwnN / 32;  // channels of a split tile that a slice finishes
  static constexpr int kExchangedBytes =
      2 * (kSlices - 1) * kM * (kOwnN + kHidden) * 4;  // sent to and received from the other slices
  static constexpr bool kGated = Config::kGated;
  using Excitation = SeGate<Element, kM, kOwnN, kClusterN * kSlices, 128 * kGroups>;
  static constexpr int kTiles = kPingpong ? kGroups : 1;  // tiles in flight
  using Folded = FoldedSeGate<Element, kM, kN, kHidden, 128 * kTeam, Config::kWarpImages>;
  // The projection of a skip connection: more products of the same tile, added to the gated sums.
  static constexpr bool kProjects = Config::kProjects;
  // Indices of the pointers: Problem.operands() of conv2d; of conv2d_se and conv2d_folded_se; or of conv2d_se_skip.
  enum {
    kX = 0,
    kWeight = 1,
    kFirstGate = 2,
    kSkip = 6,
    kProjection = 7,
    kY = kProjects      ? 8
    : kGated || kFolded ? 6
                        : 2
  };
  static_assert(!kProjects || kFolded && kJoint && kSlices == 1, "a projection follows streamed, gathered pixels");
  static_assert(kM % (64 * kTeam) == 0 && kN % 32 == 0 && kVectors % kSlices == 0, "no such tile");
  static_assert(kSlices == 1 || !kPingpong && kJoint, "a split tile belongs to the whole block, and streams");
  static_assert(kClusterN == 1 || kJoint, "only pixels gathered by TMA are shared");
  static_assert(!kGated || !kPingpong && kClusterM == 1 && kVectors / kSlices % (2 * kBlocks) == 0,
                "a gated tile belongs to the whole block, and a slice of it to whole columns");

  using Launch = typename Config::Launch;  // launch values by name, in the family's order

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
    int fills;  // of one tile
    int fill_slots, slot_bytes, fill_bytes, weight_slots;
    int squares_h, squares_w, patch_h, patch_w, images;
    int pixels, hidden, gate_bytes;  // of the gate
    float pixel_weight;
    FastDivmod slabs;
    int skip_channels, skip_fills;  // of a group of the projection
    FastDivmod skip_outputs;
    float scalars[AT_MAX_SCALARS];
    at_pointers p;
  };

  // ---- Before the launch ----

  // hidden: channels of the gate's hidden layer, or 0 without a gate.
  template <typename Problem>
  AT_DEVICE static void prepare(const Problem& a, int hidden, at_prepared* out) {
    Params x{};
    if constexpr (kGated || kFolded) {
      if (kPatch && (a.p != 8 * a.launch[Launch::kSquaresH] || a.q != 8 * a.launch[Launch::kSquaresW]))
        return refused(out, "with a gate a tile must hold whole images: squares_h * 8 = p, squares_w * 8 = q");
      x.pixels = a.p * a.q, x.hidden = hidden;
    }
    if constexpr (kGated) {
      const Excitation gate(x.pixels, hidden);
      if (!gate.fits())
        return refused(out, "a gate needs 4, 8 or a multiple of 16 pixels that divide tile_m, and hidden % 4 = 0");
      if (a.launch[Launch::kGrid] || a.launch[Launch::kStaged])
        return refused(out, "a gate needs grid = 0 and staging = 0");
      if (ceil_div(a.k, kN) != kClusterN) return refused(out, "with a gate a cluster must hold all output channels");
      x.gate_bytes = ceil_div(gate.bytes(), 128) * 128;
    }
    if constexpr (kFolded) {
      if (!Folded::fits(x.pixels, hidden) || a.groups > 1)
        return refused(
            out, "the gate's pixels or hidden values are not those that the kernel is compiled for, or groups > 1");
      x.gate_bytes = kTiles * Folded::kBytes, x.pixel_weight = 1.f / x.pixels;
      x.slabs = FastDivmod::make(max(x.pixels / 16, 1));
    }
    x.pointwise = !kPatch && a.r * a.s == 1 && a.stride_h * a.stride_w == 1 && a.pad_h + a.pad_w == 0;
    x.n = a.n, x.out_h = a.p, x.out_w = a.q, x.k = a.k, x.rows = a.n * a.p * a.q;
    x.r = a.r, x.s = a.s;
    x.stride_h = a.stride_h, x.stride_w = a.stride_w, x.pad_h = a.pad_h, x.pad_w = a.pad_w;
    x.dilation_h = a.dilation_h, x.dilation_w = a.dilation_w;
    const int groups =
        a.groups / Config::kMerge;  // kMerge groups are computed as one, with zeros between them (layout "wgmma<M>")
    x.group_channels = a.c / max(groups, 1), x.group_outputs = FastDivmod::make(groups > 1 ? a.k / groups : 1 << 30);
    x.chunks = ceil_div(x.group_channels, kK);
    x.phases_h = kPatch ? min(a.r, a.stride_h) : a.r, x.phases_w = kPatch ? min(a.s, a.stride_w) : a.s;
    x.fills = x.phases_h * x.phases_w * x.chunks;
    x.along_m = a.launch[Launch::kRaster];
    for (int i = 0; i < AT_MAX_SCALARS; ++i) x.scalars[i] = a.scalars[i];

    // TMA needs several cycles for each row of zeros beyond the last pixel. So the last tile ends with the last pixel
    // and recomputes some pixels of the tile before, to the same bits. If all pixels are fewer than a tile, only they
    // are loaded, and the rows behind them in shared memory are computed but not stored.
    const int pixels = kClusterN == 1 ? min(kM, x.rows) : kM / kClusterN;  // pixels of one load
    x.last_row = max(x.rows - kM, 0);
    int64_t tiles_m = ceil_div(x.rows, kM);
    x.fill_bytes = pixels * kClusterN * kRowBytes;
    x.out_area = FastDivmod::make(a.p * a.q), x.out_width = FastDivmod::make(a.q);
    if (kPatch) {
      x.squares_h = a.launch[Launch::kSquaresH], x.squares_w = a.launch[Launch::kSquaresW],
      x.images = a.launch[Launch::kImages];
      if (x.squares_h * x.squares_w * x.images * 64 != kM)
        return refused(out, "squares_h * squares_w * images * 64 must be tile_m");
      if (a.stride_h > 1 && a.dilation_h > 1 || a.stride_w > 1 && a.dilation_w > 1)
        return refused(out, "patches need stride 1 or dilation 1");
      // The first phase of the stride has the most taps.
      x.patch_h = 8 * x.squares_h + (ceil_div(a.r, x.phases_h) - 1) * a.dilation_h;
      x.patch_w = 8 * x.squares_w + (ceil_div(a.s, x.phases_w) - 1) * a.dilation_w;
      const int patches_h = ceil_div(a.p, 8 * x.squares_h), patches_w = ceil_div(a.q, 8 * x.squares_w);
      x.out_area = FastDivmod::make(patches_h * patches_w), x.out_width = FastDivmod::make(patches_w);
      tiles_m = ceil_div(a.n, x.images) * patches_h * patches_w;
      x.fill_bytes = x.images * x.patch_h * x.patch_w * kRowBytes;
      if ((x.patch_h - 1) * a.stride_h >= 256 || (x.patch_w - 1) * a.stride_w >= 256)
        return refused(out, "a patch is larger than a TMA box: at most 256 pixels a side");
    }
    x.ahead = a.launch[Launch::kStaged] > 1 ? a.launch[Launch::kStaged] : 0;
    x.staging_bytes = a.launch[Launch::kStaged] ? kGroups * 4 * (kStages + x.ahead) * kStageBytes : 0;
    x.fill_slots = a.launch[Launch::kFillSlots];
    x.slot_bytes = ceil_div(kPatch ? x.fill_bytes : kM * kRowBytes, 1024) * 1024 + (kJoint ? kWeightBytes : 0);
    x.weight_slots = kResident ? a.r * a.s * x.chunks : kPatch ? a.launch[Launch::kWeightSlots] : 0;

    const int columns = ceil_div(ceil_div(a.k, kN), kClusterN);
    x.cluster_rows = FastDivmod::make(ceil_div(tiles_m, kClusterM)), x.cluster_columns = FastDivmod::make(columns);
    x.cluster_tiles = x.cluster_rows.divisor * columns;
    int clusters = x.cluster_tiles;
    if (a.launch[Launch::kGrid] && kSlices == 1) clusters = min(clusters, max(1, a.launch[Launch::kGrid] / kCluster));
    if (kResident && clusters < x.cluster_tiles) {  // a block stays in its column of tiles
      clusters = max(clusters / columns, 1) * columns;
      x.along_m = 0;
    }

    if constexpr (kProjects) {
      x.skip_channels = a.skip_c / a.skip_groups, x.skip_fills = ceil_div(x.skip_channels, kK);
      x.skip_outputs = FastDivmod::make(a.skip_groups > 1 ? a.k / a.skip_groups : 1 << 30);
      const bool apart =
          a.skip_groups == 1 || x.skip_channels % kK == 0 && x.skip_outputs.divisor % (kN * kClusterN) == 0;
      if (a.skip_c % 8 || !apart)
        return refused(out, "the projection's groups must be multiples of tile_k and tile_n channels");
      // All skip fills wait in their stages until the sums are scaled.
      if (x.fill_slots <= x.skip_fills) return refused(out, "fill_slots must exceed the fills of the projection");
    }

    const int64_t shared = kSmemAlignment + x.staging_bytes + x.gate_bytes + 8 * (kGroups + 2 + kGroups * 4 * x.ahead) +
                           (int64_t)x.fill_slots * (x.slot_bytes + 16) + (int64_t)x.weight_slots * (kWeightBytes + 16);
    const bool fits = shared <= AT_MAX_SHARED_BYTES && kExchangedBytes <= x.fill_slots * x.slot_bytes;
    const bool counts =
        x.fill_slots >= 1 && x.fill_slots <= 32 && (kResident || x.weight_slots <= 32) && kSlices <= x.fills;
    // A fill must not cross into the next group, nor may a tile: the next group reads other activations.
    const bool apart = groups == 1 || x.group_channels % kK == 0 && x.group_outputs.divisor % (kN * kClusterN) == 0;
    if (!fits)
      return refused(out, "the tile needs more shared memory than the GPU has, or its split more than its stages have");
    if (!counts)
      return refused(out, "fill_slots and weight_slots must be 1 to 32, and slices at most the fills of a tile");
    if (!apart || a.groups % Config::kMerge)
      return refused(out, "a group must be a multiple of tile_k and tile_n channels");
    constexpr int kGranule = 16 / (int)sizeof(Element);  // channels in 16 bytes, the unit of TMA's strides
    if (a.c % kGranule || a.k % kGranule)
      return refused(out, kGranule == 8 ? "c and k must be multiples of 8" : "c and k must be multiples of 16");
    if (kSlices > 1 && x.staging_bytes) return refused(out, "a split tile needs staging = 0");
    if (x.ahead > (kAhead ? 8 : 0))
      return refused(out, "staging must be at most 8, and 0 or 1 without an added tensor");
    prepared(out, x, clusters * kCluster, 1, 1, kThreads, (int)shared, 0);

    const uint64_t c = a.c, h = a.h, w = a.w, n = a.n, taps = a.r * a.s, padded_k = ceil_div(a.k, 32) * 32;
    const uint64_t depth = x.group_channels;
    out->tensor_map_count = 2;
    at_tensor_map activation{kActivationMap, kX, Config::kMapElement, kSwizzle};
    if (x.pointwise) {
      ptx::describe_tensor_map<Element>(activation, {c, (uint64_t)x.rows}, {kK, (uint32_t)pixels}, {1, 1});
    } else {
      const uint32_t step_h = a.stride_h, step_w = a.stride_w;
      const uint32_t box_h = (x.patch_h - 1) * step_h + 1, box_w = (x.patch_w - 1) * step_w + 1;
      const uint32_t images = x.images;
      ptx::describe_tensor_map<Element>(activation, {c, w, h, n}, {kK, box_w, box_h, images}, {1, step_w, step_h, 1});
    }
    if (!kPatch && !x.pointwise) {
      activation.pixels = pixels;
      activation.lower[0] = -a.pad_w, activation.upper[0] = a.pad_w - (a.s - 1) * a.dilation_w;
      activation.lower[1] = -a.pad_h, activation.upper[1] = a.pad_h - (a.r - 1) * a.dilation_h;
    }
    at_tensor_map weight{kWeightMap, kWeight, Config::kMapElement, kSwizzle};
    ptx::describe_tensor_map<Element>(weight, {depth, taps, padded_k}, {kK, 1, kN / kClusterM}, {1, 1, 1});
    out->tensor_maps[0] = activation;
    out->tensor_maps[1] = weight;
    if constexpr (kFolded) {
      at_tensor_map filters{kHiddenMap, kFirstGate, Config::kMapElement, kSwizzle};
      ptx::describe_tensor_map<Element>(filters, {depth, taps, (uint64_t)hidden}, {kK, 1, kHidden}, {1, 1, 1});
      out->tensor_maps[out->tensor_map_count++] = filters;
    }
    if constexpr (kProjects) {
      at_tensor_map skip{kSkipMap, kSkip, Config::kMapElement, kSwizzle};
      ptx::describe_tensor_map<Element>(skip, {(uint64_t)a.skip_c, (uint64_t)x.rows}, {kK, (uint32_t)pixels}, {1, 1});
      at_tensor_map projection{kProjectionMap, kProjection, Config::kMapElement, kSwizzle};
      ptx::describe_tensor_map<Element>(projection, {(uint64_t)x.skip_channels, 1, padded_k}, {kK, 1, kN / kClusterM},
                                        {1, 1, 1});
      out->tensor_maps[out->tensor_map_count++] = skip;
      out->tensor_maps[out->tensor_map_count++] = projection;
    }
    if (x.staging_bytes) {
      at_tensor_map output{kOutputMap, kY, Config::kMapElement, ptx::swizzle_mode(kStageRowBytes)};
      const uint64_t k = a.k, p = a.p, q = a.q;
      if (kPatch) ptx::describe_tensor_map<Element>(output, {k, q, p, n}, {kStageChannels, 8, 2, 1}, {1, 1, 1, 1});
      else ptx::describe_tensor_map<Element>(output, {k, (uint64_t)x.rows}, {kStageChannels, 16}, {1, 1});
      out->tensor_maps[out->tensor_map_count++] = output;
      if (x.ahead) {
        output.params_offset = kAddedMap, output.pointer = Config::kAddedPointer;
        out->tensor_maps[out->tensor_map_count++] = output;
      }
    }
  }

 protected:
  static constexpr int kSwizzle = ptx::swizzle_mode(kRowBytes);
  static constexpr int kActivationMap = 0, kWeightMap = 128, kOutputMap = 256, kAddedMap = 384, kHiddenMap = 512,
                       kSkipMap = 640,
                       kProjectionMap = 768;  // offsets in Params

  struct ClusterCoord {
    int m, n, slice;
    AT_DEVICE int rank(int other_m, int other_n, int other_slice) const {
      return (other_slice * kClusterN + other_n) * kClusterM + other_m;
    }
  };

  // Addresses in shared memory. A joint stage holds a fill of activations, then its weights.
  struct Layout {
    uint32_t fills, weights, staging, gate, full, empty, weight_full, weight_empty, turn, gate_full, added, added_full;
    AT_DEVICE Layout(const Params& x, uint32_t memory) {
      fills = (memory + 1023) / 1024 * 1024;
      weights = fills + (kJoint ? kM * kRowBytes : x.fill_slots * x.slot_bytes);
      staging = fills + x.fill_slots * x.slot_bytes + x.weight_slots * kWeightBytes;
      gate = staging + x.staging_bytes;
      full = gate + x.gate_bytes;
      empty = full + 8 * x.fill_slots;
      turn = empty + 8 * x.fill_slots;
      gate_full = turn + 8 * kGroups;
      weight_full = gate_full + 8;
      weight_empty = weight_full + 8 * x.weight_slots;
      added = staging + kGroups * 4 * kStages * kStageBytes;
      added_full = weight_empty + 8 * x.weight_slots;
    }
  };

  struct Tile {
    int m, n;
    AT_DEVICE Tile(const Params& x, const ClusterCoord& me, int index) {
      int row, column;
      if (x.along_m) column = x.cluster_rows.divmod(index, row);
      else row = x.cluster_columns.divmod(index, column);
      m = row * kClusterM + me.m;
      n = column * kClusterN + me.n;
    }
    // The tile's first pixel, for im2col.
    AT_DEVICE int first_row(const Params& x) const { return min(m * kM, x.last_row); }
  };

  // The ring of activations, with their weights if those are joint, and the ring of weights alone.
  AT_DEVICE static Pipeline fill_pipeline(const Layout& smem) { return {smem.full, smem.empty}; }
  AT_DEVICE static Pipeline weight_pipeline(const Layout& smem) { return {smem.weight_full, smem.weight_empty}; }

  // A fill's place along K, in the order in which producers and consumers visit it: its chunk of kK channels, and an
  // offset in pixels. For patches w and h are the phase of the stride, else the offset of the filter tap.
  struct KCoord {
    int chunk, w, h, end_w, step_w, step_h;
    AT_DEVICE KCoord(const Params& x, int fill) : chunk(0), w(0), h(0) {
      if (kPatch) end_w = x.phases_w, step_w = step_h = 1;
      else end_w = x.s * x.dilation_w, step_w = x.dilation_w, step_h = x.dilation_h;
      if (kSlices > 1) chunk = fill % x.chunks, w = fill / x.chunks % x.s * step_w, h = fill / x.chunks / x.s * step_h;
    }
    AT_DEVICE void advance(const Params& x) {
      if (++chunk != x.chunks) return;
      chunk = 0, w += step_w;
      if (w == end_w) w = 0, h += step_h;
    }
  };

  AT_DEVICE static int first_tile() { return blockIdx.x / kCluster; }
  AT_DEVICE static int tile_step() { return gridDim.x / kCluster; }
  AT_DEVICE static int first_fill(const Params& x, int slice) { return x.fills * slice / kSlices; }

  using Sums = typename Config::Sum[kBlocks][kColumns / 2];
};

}  // namespace at
