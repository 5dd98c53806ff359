// Host side and shared definitions of the kernel in small_image/conv2d.cuh: sizes, parameters, prepare() and the
// shared-memory layout.
#pragma once
#include "common/fast_divmod.cuh"
#include "common/folded_se_gate.cuh"
#include "sm90/ring.cuh"
#include "sm90/tensor_maps.cuh"

namespace at {

template <typename Config>
struct HopperImagePlan {
  using Element = typename Config::Element;
  static constexpr int kRowBytes = 128, kM = 64, kN = Config::kN, kK = kRowBytes / (int)sizeof(Element), kTaps = 9;
  static constexpr int kStride = Config::kStride, kPlanes = kStride * kStride, kPeers = Config::kPeers;
  static constexpr int kHidden = Config::kHidden,
                       kColumns = kN + kHidden;  // columns of a product: channels, then hidden values
  static constexpr bool kFolded = kHidden > 0, kProjects = Config::kProjects;
  static constexpr int kGroups = 2, kWide = 128, kThreads = kWide * kGroups + 32 * (1 + kGroups);
  static constexpr int kOwners = kN % 64 == 0 ? kGroups : 1,
                       kOwn = kN / kOwners;  // warpgroups that finish channels; channels of each
  static constexpr int kPlaneBytes = kM * kRowBytes;
  static constexpr int kChunkBytes = kPlanes * kPlaneBytes, kWeightBytes = kColumns * kRowBytes;
  // Whether a tile's images may leave rows of it empty. Not with elements of two bytes: that would change the machine
  // code of their kernels in databases.
  static constexpr bool kPartial = sizeof(Element) == 1;
  static constexpr int kVector = 8, kVectors = 2 * (kOwn / 32);  // vectors of eight channels of a thread
  static constexpr int kFours =
      (kOwn + kHidden) / 8;  // float4s of sums that a thread receives from the other warpgroup
  static constexpr int kFoursBytes = kWide * 16;
  using Folded = FoldedSeGate<Element, kM, kOwn, kHidden ? kHidden : 8, kWide, Config::kWarpImages>;  // unused with 0
  // Indices of the pointers: Problem.operands() of conv2d, of conv2d_folded_se, or of conv2d_se_skip.
  enum { kX = 0, kWeight = 1, kFirstGate = 2, kSkip = 6, kProjection = 7, kY = kProjects ? 8 : kFolded ? 6 : 2 };
  using Launch = typename Config::Launch;                        // launch values by name, in the family's order
  enum NamedBarrier { kGate = 1, kExchange = kGate + kGroups };  // kGate + group: the warpgroup's gates
  static_assert(kN % 32 == 0 && kOwn / kPeers % 8 == 0 && (kStride == 1 || kStride == 2), "no such tile");
  static constexpr int kImageMap = 0, kWeightMap = 128, kHiddenMap = 256, kSkipMap = 384,
                       kProjectionMap = 512;  // offsets in Params

  struct alignas(64) Params {
    uint8_t image_map[128], weight_map[128], hidden_map[128], skip_map[128], projection_map[128];
    int images, out_h, out_w, k, rows;  // images: loaded per tile; rows: pixels of the output
    int last_image, plane_bytes;        // first image of the last tile; bytes of a tile's pixels
    int chunks, skip_chunks;            // of kK channels
    int weight_stages;                  // of each warpgroup
    FastDivmod columns;                 // of tiles
    int pixels, hidden;                 // of the gate
    float pixel_weight;
    FastDivmod slabs;
    float scalars[AT_MAX_SCALARS];
    at_pointers p;
  };

  // ---- Before the launch ----

  // hidden: channels of the gate's hidden layer, or 0 without a gate.
  template <typename Problem>
  AT_DEVICE static void prepare(const Problem& a, int hidden, at_prepared* out) {
    Params params{};
    params.pixels = a.p * a.q, params.hidden = hidden, params.images = kM / max(params.pixels, 1);
    const bool square = a.r == 3 && a.s == 3 && a.pad_h == 1 && a.pad_w == 1 && a.dilation_h == 1 && a.dilation_w == 1;
    const bool strides = a.stride_h == kStride && a.stride_w == kStride && a.h == kStride * a.p && a.w == kStride * a.q;
    if (!square) return refused(out, "the filter must be 3 x 3 with padding 1 and dilation 1");
    if (!strides)
      return refused(out, "the kernel is compiled for another stride, or the stride does not divide the image");
    if (kPartial ? params.pixels > kM : params.images * params.pixels != kM)
      return refused(out, kPartial ? "an output image must have at most 64 pixels"
                                   : "the pixels of an output image must divide 64");
    if (a.groups > 1) return refused(out, "groups must be 1");
    constexpr int kGranule = 16 / (int)sizeof(Element);  // channels in 16 bytes, the unit of TMA's strides
    if (a.c % kGranule || a.k % 8)
      return refused(out, kGranule == 8 ? "c and k must be multiples of 8" : "c must be a multiple of 16, and k of 8");
    // The last tile ends with the last image, and a tile loads no more images than there are; see conv2d/plan.cuh.
    params.last_image = max(a.n - params.images, 0), params.images = min(params.images, a.n),
    params.plane_bytes = params.images * params.pixels * kRowBytes;
    if constexpr (kFolded) {
      if (!Folded::fits(params.pixels, hidden))
        return refused(out, "the gate's pixels or hidden values are not those that the kernel is compiled for");
      params.pixel_weight = 1.f / params.pixels, params.slabs = FastDivmod::make(max(params.pixels / 16, 1));
    }
    params.out_h = a.p, params.out_w = a.q, params.k = a.k, params.rows = a.n * params.pixels;
    params.chunks = ceil_div(a.c, kK), params.weight_stages = a.launch[Launch::kWeightSlots];
    if constexpr (kProjects) {
      params.skip_chunks = ceil_div(a.skip_c, kK);
      if (a.skip_groups > 1) return refused(out, "skip_groups must be 1");
      if (a.skip_c % 8) return refused(out, "skip_c must be a multiple of 8");
    }
    for (int i = 0; i < AT_MAX_SCALARS; ++i) params.scalars[i] = a.scalars[i];

    const int columns = ceil_div(a.k, kN), tiles = ceil_div(ceil_div(a.n, params.images), kPeers) * kPeers;
    params.columns = FastDivmod::make(columns);
    const int64_t shared = kSmemAlignment + Layout(params, 0).end;
    if (params.weight_stages < 2 || params.weight_stages > 32) return refused(out, "weight_slots must be 2 to 32");
    if (shared > AT_MAX_SHARED_BYTES) return refused(out, "the tile needs more shared memory than the GPU has");
    prepared(out, params, tiles * columns, 1, 1, kThreads, (int)shared, 0);

    const uint64_t c = a.c, h = a.h, w = a.w, n = a.n, padded_k = ceil_div(a.k, 32) * 32;
    const uint32_t box_h = (a.p - 1) * kStride + 1, box_w = (a.q - 1) * kStride + 1, images = params.images;
    const auto ask = [&](int offset, int pointer) -> at_tensor_map& {
      return add_tensor_map<Config>(out, offset, pointer, kRowBytes);
    };
    ptx::describe_tensor_map<Element>(ask(kImageMap, kX), {c, w, h, n}, {kK, box_w, box_h, images},
                                      {1, kStride, kStride, 1});
    ptx::describe_tensor_map<Element>(ask(kWeightMap, kWeight), {c, kTaps, padded_k}, {kK, 1, kN / kPeers}, {1, 1, 1});
    if constexpr (kFolded)
      ptx::describe_tensor_map<Element>(ask(kHiddenMap, kFirstGate), {c, kTaps, (uint64_t)hidden}, {kK, 1, kHidden},
                                        {1, 1, 1});
    if constexpr (kProjects) {
      const uint64_t skip_c = a.skip_c;
      ptx::describe_tensor_map<Element>(ask(kSkipMap, kSkip), {skip_c, (uint64_t)params.rows},
                                        {kK, images * (uint32_t)params.pixels}, {1, 1});
      ptx::describe_tensor_map<Element>(ask(kProjectionMap, kProjection), {skip_c, 1, padded_k}, {kK, 1, kOwn / kPeers},
                                        {1, 1, 1});
    }
  }

  // ---- Of a block ----

  struct ClusterCoord {
    int tile, column, peer;  // peer: rank in the cluster
    AT_DEVICE int first_image(const Params& params) const { return min(tile * params.images, params.last_image); }
  };

  // Addresses in shared memory.
  struct Layout {
    uint32_t images, skip, weights, zeros, gates, sums, full, end;
    Pipeline weight_pipeline;  // the rings of all warpgroups, which follow each other
    AT_DEVICE Layout(const Params& params, uint32_t memory) {
      SmemLayout layout(memory);
      images = layout.add(params.chunks * kChunkBytes);
      skip = layout.add(params.skip_chunks * kPlaneBytes);
      weights = layout.add(kGroups * params.weight_stages * kWeightBytes);
      zeros = layout.add(kRowBytes);
      gates = layout.add(kFolded ? kOwners * Folded::kBytes : 0);
      sums = layout.add(kOwners * kFours * kFoursBytes);
      full = layout.add_barriers(params.chunks + params.skip_chunks);
      weight_pipeline = add_pipeline(layout, kGroups * params.weight_stages);
      end = layout.end;
    }
  };
};

}  // namespace at
