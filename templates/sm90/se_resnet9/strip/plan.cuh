// Host side and shared definitions of the kernel in strip_se_block.cuh: sizes, parameters, prepare() and the
// shared-memory layout.
#pragma once
#include "sm90/register_budget.cuh"
#include "sm90/smem_layout.cuh"
#include "sm90/tensor_maps.cuh"
#include "common/ptx/registers.cuh"

namespace at {

template <typename Config>
struct StripPlan {
  using Element = typename Config::Element;
  static constexpr int kChannels = 64, kRowBytes = kChannels * (int)sizeof(Element), kVectors = kRowBytes / 16;
  static constexpr int kH = Config::kH, kW = Config::kW, kPixels = kH * kW;  // of the block's image
  static constexpr int kImage = Config::kImage, kSide = 4;  // channels of the network's image; side of its patches
  static constexpr int kCluster = Config::kCluster;
  static constexpr int kStrips = kW / 8, kN = 8 * kH, kStripThreads = 128, kThreads = kStrips * kStripThreads,
                       kWarps = kThreads / 32;
  static constexpr int kPooled = Config::kPooled;  // index of the pooled output's pointer, or 0
  static constexpr int kPoolThreads = 96;
  static constexpr int kAllThreads = kThreads + 128;                     // with the loading warps
  static constexpr int kReadyThreads = kThreads + (kPooled ? 128 : 96);  // that wait for the initialized barriers
  static constexpr bool kSetMaxNreg = kStrips > 1;                       // from the loading to the multiplying warps
  static constexpr bool kManyStrips = kStrips > 2;
  using Registers = RegisterBudget<kAllThreads - kThreads, kThreads,
                                   kManyStrips ? 24
                                   : kPooled   ? 56
                                               : 40,
                                   kManyStrips ? 112
                                   : kPooled   ? 224
                                               : 232>;
  static constexpr int kTaps = 9, kLoads = 1 + 2 * kTaps, kTapBytes = kChannels * kRowBytes;
  static constexpr int kPatchW = kW + 2, kPatchBytes = (kH + 2) * kPatchW * kRowBytes;
  static constexpr int kLines = kSide * kH * 8 / kStripThreads;  // patch lines of four pixels that a thread reads
  static constexpr int kLineBytes =
      kN * kSide * kSide * (int)sizeof(Element);  // a strip's patches, of one image channel
  static constexpr int kStepBytes =
      kChannels * kSide * kSide * (int)sizeof(Element);  // the stem's weights, of one image channel
  enum { kX, kStemWeight, kWeight, kFirstGate = kWeight + 2, kY = kFirstGate + 4 };
  enum NamedBarrier { kReady = 1, kAll, kPool, kStrip };  // kStrip + strip: the strip's warpgroup
  using Launch = typename Config::Launch;                 // launch values by name, in the family's order
  static_assert(kH % 4 == 0 && kH <= 16 && kW % 8 == 0, "no such image");

  struct alignas(64) Params {
    uint8_t stem_map[128], weight_maps[2][128], output_map[128];
    int tiles, hidden, early_loads, channels_last;
    float scalars[AT_MAX_SCALARS];
    at_pointers p;
  };

  // ---- Before the launch ----

  AT_DEVICE static void prepare(const at_stem_se_block& a, at_prepared* out) {
    Params params{};
    if (a.c != kImage || a.k != kChannels || a.block != kSide || a.h != kSide * kH || a.w != kSide * kW)
      return refused(out, "the kernel is compiled for another image, patch or number of channels");
    if (a.hidden % 4) return refused(out, "hidden must be a multiple of 4");
    params.tiles = a.n, params.hidden = a.hidden, params.channels_last = a.launch[Launch::kChannelsLast];
    params.early_loads = a.launch[Launch::kEarlyTaps] ? min(a.launch[Launch::kEarlyTaps] + 1, kLoads) : 0;
    for (int i = 0; i < AT_MAX_SCALARS; ++i) params.scalars[i] = a.scalars[i];
    const int shared = kSmemAlignment + Layout(params, 0).end;
    if (shared > AT_MAX_SHARED_BYTES) return refused(out, "the block needs more shared memory than the GPU has");
    const int blocks = a.launch[Launch::kGrid] ? min(params.tiles, a.launch[Launch::kGrid]) : params.tiles;
    prepared(out, params, ceil_div(blocks, kCluster) * kCluster, 1, 1, kAllThreads, shared, 0);

    const uint64_t c = kChannels;
    const auto ask = [&](int offset, int pointer, int row_bytes) -> at_tensor_map& {
      return add_tensor_map<Config>(out, offset, pointer, row_bytes);
    };
    ptx::describe_tensor_map<Element>(ask(0, kStemWeight, 32), {16, kImage, c}, {16, 1, kChannels}, {1, 1, 1});
    for (int i = 0; i < 2; ++i)
      ptx::describe_tensor_map<Element>(ask(128 + 128 * i, kWeight + i, kRowBytes), {c, kTaps, c},
                                        {kChannels, 1, kChannels / kCluster}, {1, 1, 1});
    ptx::describe_tensor_map<Element>(ask(384, kY, kRowBytes), {c, kW, kH, (uint64_t)a.n}, {kChannels, kPatchW, kH, 1},
                                      {1, 1, 1, 1});
  }

  // ---- Of a block ----

  static constexpr int kBarriers = kLoads + 4;

  // Addresses in shared memory. Barriers: `full` for each load (the stem's weights, then every tap), `zeros` for the
  // halo, `gate` for the gate's weights, `image` for an image that is in global memory, `pooled` for one that is
  // pooled.
  struct Layout {
    uint32_t weights, patch, lines, stem, sums, w1, b2, b1, w2, full, zeros, gate, image, pooled, end;
    AT_DEVICE Layout(const Params& params, uint32_t memory) {
      SmemLayout layout(memory);
      weights = layout.add(2 * kTaps * kTapBytes);
      patch = layout.add(ceil_div(kPatchBytes, 256) * 256);
      lines = layout.add(kImage * kStrips * kLineBytes);
      stem = layout.add(kImage * kStepBytes);
      sums = layout.add(kStrips * kChannels * 4);
      w1 = layout.add(params.hidden * kRowBytes);
      b2 = layout.add(kChannels * 4);
      b1 = layout.add(params.hidden * 4);
      w2 = layout.add(params.hidden * kRowBytes);
      full = layout.add_barriers(kLoads);
      zeros = layout.add_barriers(1);
      gate = layout.add_barriers(1);
      image = layout.add_barriers(1);
      pooled = layout.add_barriers(1);
      end = layout.end;
    }
  };

  // A thread's part of its warpgroup's strip: channels `channel` and `channel + 8`, columns 2 (lane % 4) and the next,
  // in every line.
  struct WarpCoord {
    int strip, thread, warp, lane, channel;
    AT_DEVICE WarpCoord() {
      const int all = ptx::warp_uniform(threadIdx.x / 32);
      strip = all / 4, thread = threadIdx.x % kStripThreads, warp = all % 4, lane = threadIdx.x % 32,
      channel = 16 * warp + lane / 4;
    }
  };
};

}  // namespace at
