// Host side and shared definitions of the kernel in se_down_block.cuh: sizes, parameters, prepare() and the
// shared-memory layout.
#pragma once
#include "sm90/pipeline.cuh"
#include "sm90/smem_layout.cuh"
#include "sm90/tensor_maps.cuh"
#include "common/se_gate.cuh"

namespace at {

template <typename Config>
struct DownPlan {
  using Element = typename Config::Element;
  static constexpr int kM = 64, kN = Config::kN, kK = 64;
  static constexpr int kP = Config::kP, kQ = Config::kQ,
                       kImages = kM / (kP * kQ);  // output height and width; images of a tile
  static constexpr int kParts = Config::kParts, kPeers = Config::kPeers, kCluster = kParts * kPeers;
  static constexpr int kOwn = kN / kK,
                       kInner = kParts * kOwn;  // chunks of 64 inner channels: of the block, of the tile
  static constexpr int kWide = 128,
                       kThreads = 2 * kWide + 64;  // kWide threads multiply, kWide add up the pool, two warps load
  static constexpr int kRowBytes = kK * (int)sizeof(Element);
  static constexpr int kTileBytes = kM * kRowBytes, kWeightBytes = kN * kRowBytes;
  static constexpr int kTaps = 9, kCopies = 3;
  // Bytes of the inner values: a line of all images; a copy with its lines of zeros.
  static constexpr int kLineBytes = kTileBytes / kP, kCopyBytes = (kP + 2) * kLineBytes;
  static constexpr int kVector = 8, kColumns = kN / 32;
  using Excitation = SeGate<Element, kM, kN, kParts, kWide>;
  // Indices of the pointers: Problem.operands() of se_down_block.
  enum { kX, kWeight1, kWeight2, kProjection, kFirstGate, kY = 8 };
  using Launch = typename Config::Launch;               // launch values by name, in the family's order
  enum NamedBarrier { kMultiply = 1, kPooled, kGate };  // kMultiply is SeGate::sync()
  static_assert(kN % 64 == 0 && (kP == 4 || kP == 8) && (kQ == 4 || kQ == 8) && kP % kParts == 0, "no such tile");
  static constexpr int kImageMap = 0, kWeightMaps = 128;  // offsets in Params

  struct alignas(64) Params {
    uint8_t image_map[128], weight_maps[3][128];  // weights in the order of their first use
    int n, chunks, k;                             // chunks: of 64 channels of x
    int activation_stages, weight_stages, gate_bytes, hidden;
    float scalars[AT_MAX_SCALARS];
    at_pointers p;
    AT_DEVICE int k_blocks() const { return kTaps * chunks; }
    AT_DEVICE int pieces() const { return k_blocks() + chunks + kTaps * kInner; }  // of the weights
  };

  // ---- Before the launch ----

  AT_DEVICE static void prepare(const at_conv2d_se& a, at_prepared* out) {
    Params params{};
    if (a.p != kP || a.q != kQ || a.k != kParts * kN)
      return refused(out, "the kernel is compiled for another output size or number of channels");
    if (a.c % kK) return refused(out, "c must be a multiple of 64");
    if (a.c / kK > kCopies * kOwn)
      return refused(out, "the pooled input has more channels than the inner values' buffers");
    const Excitation gate = excitation(a.hidden);
    params.n = a.n, params.chunks = a.c / kK, params.k = a.k, params.hidden = a.hidden;
    params.activation_stages = a.launch[Launch::kFillSlots], params.weight_stages = a.launch[Launch::kWeightSlots];
    params.gate_bytes = ceil_div(gate.bytes(), 128) * 128;
    for (int i = 0; i < AT_MAX_SCALARS; ++i) params.scalars[i] = a.scalars[i];

    const uint32_t shared = kSmemAlignment + Layout(params, 0).end;
    const bool counts = params.activation_stages >= 1 && params.activation_stages <= 32 && params.weight_stages >= 1 &&
                        params.weight_stages <= 32;
    if (!gate.fits()) return refused(out, "the gate's hidden values must be a multiple of 4");
    if (!counts) return refused(out, "fill_slots and weight_slots must be 1 to 32");
    if (shared > AT_MAX_SHARED_BYTES) return refused(out, "the tile needs more shared memory than the GPU has");
    prepared(out, params, ceil_div(ceil_div(a.n, kImages), kPeers) * kCluster, 1, 1, kThreads, shared, 0);

    const uint64_t c = a.c, h = a.h, w = a.w, n = a.n, k = a.k;
    at_tensor_map& image = add_tensor_map<Config>(out, kImageMap, kX, kRowBytes);
    ptx::describe_tensor_map<Element>(image, {c, w, n, h}, {kK, 2 * kQ - 1, kImages, 2 * (kP / kParts) - 1},
                                      {1, 2, 1, 2});
    image.strides[1] = h * w * c * sizeof(Element), image.strides[2] = w * c * sizeof(Element);
    for (int i = 0; i < 3; ++i) {
      const int weight = i == 0 ? kWeight1 : i == 1 ? kProjection : kWeight2;
      ptx::describe_tensor_map<Element>(add_tensor_map<Config>(out, kWeightMaps + 128 * i, weight, kRowBytes),
                                        {i == 2 ? k : c, i == 1 ? 1ull : kTaps, k}, {kK, 1, kN / kPeers}, {1, 1, 1});
    }
  }

  // ---- Of a block ----

  // The block's share of its cluster: `part` of the channels, `peer` among the cluster's tiles. tile: index in the
  // grid.
  struct ClusterCoord {
    int part, peer, tile;
    AT_DEVICE static int rank(int part, int peer) { return peer * kParts + part; }
  };

  // Addresses in shared memory.
  struct Layout {
    uint32_t inner, k_blocks, weights, gate, full, empty, weight_full, weight_empty, inner_full, gate_full, end;
    AT_DEVICE Layout(const Params& params, uint32_t memory) {
      SmemLayout layout(memory);
      inner = layout.add(kInner * kCopies * kCopyBytes);
      k_blocks = layout.add(params.activation_stages * kTileBytes);
      weights = layout.add(params.weight_stages * kWeightBytes);
      gate = layout.add(params.gate_bytes);
      full = layout.add_barriers(params.activation_stages);
      empty = layout.add_barriers(params.activation_stages);
      weight_full = layout.add_barriers(params.weight_stages);
      weight_empty = layout.add_barriers(params.weight_stages);
      inner_full = layout.add_barriers(kParts);
      gate_full = layout.add_barriers(1);
      end = layout.end;
    }
  };

  // The rings of activations and of weights.
  AT_DEVICE static Pipeline activation_pipeline(const Layout& smem) { return {smem.full, smem.empty}; }
  AT_DEVICE static Pipeline weight_pipeline(const Layout& smem) { return {smem.weight_full, smem.weight_empty}; }

  AT_DEVICE static Excitation excitation(int hidden) { return Excitation(kP * kQ, hidden, kImages == 1 ? 16 : kQ); }

  // Copy `copy` of 64 channels of the inner values. It begins with a line of zeros.
  AT_DEVICE static uint32_t copy_of(const Layout& smem, int chunk, int copy) {
    return smem.inner + (chunk * kCopies + copy) * kCopyBytes;
  }

  // The same without the line of zeros: a tile. The pooled input lies in this block's own copies until they are
  // written.
  AT_DEVICE static uint32_t own_copy(const Layout& smem, const ClusterCoord& cta, int i) {
    return copy_of(smem, cta.part * kOwn, i) + kLineBytes;
  }
};

}  // namespace at
