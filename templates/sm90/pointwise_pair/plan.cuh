// Host side and shared definitions of the kernel in pointwise_pair.cuh: sizes, parameters, prepare() and the
// shared-memory layout.
#pragma once
#include "sm90/ring.cuh"
#include "sm90/tensor_maps.cuh"

namespace at {

template <typename Config>
struct PointwisePairPlan {
  using Element = typename Config::Element;
  using Launch = typename Config::Launch;
  // Output channels, hidden channels at a time, and input channels of a row in shared memory.
  static constexpr int kRowBytes = Config::kRowBytes, kRow = kRowBytes / (int)sizeof(Element);
  static constexpr int kN = Config::kN, kChunk = Config::kChunk;
  static constexpr int kGroups = Config::kGroups, kRows = 64 * kGroups, kThreads = 128 * (kGroups + 1);
  static constexpr bool kResident = Config::kResident, kAhead = Config::kAhead;
  // Hidden channels of a row of weight2 in shared memory, at most 128 bytes; a chunk may have two for each output
  // channel.
  static constexpr int kWide = 128 / (int)sizeof(Element);
  static constexpr int kDepth = kChunk < kWide ? kChunk : kWide, kDepthBytes = kDepth * (int)sizeof(Element);
  static constexpr int kSlabBytes = kRows * kRowBytes;      // kRow channels of a tile's pixels
  static constexpr int kWeight1Bytes = kChunk * kRowBytes;  // the same of a chunk's filters
  static constexpr int kWeight2Bytes = kN * kChunk * (int)sizeof(Element);
  static_assert(kN % 32 == 0 && kN <= 256 && kChunk % 32 == 0 && kChunk <= 128, "no such product");
  enum { kX = 0, kWeight1 = 1, kWeight2 = 2, kY = 3 };                   // PointwisePair.operands()
  static constexpr int kXMap = 0, kWeight1Map = 128, kWeight2Map = 256;  // offsets in Params

  struct alignas(64) Params {
    uint8_t x_map[128], weight1_map[128], weight2_map[128];
    int rows, hidden, k;            // pixels and channels
    int slabs, chunks, tiles;       // of kRow input channels, kChunk hidden channels, kRows pixels
    int x_stages, weight_stages;    // buffers of a tile's pixels, and of a chunk's filters
    int stage_bytes, weight_bytes;  // of each
    float scalars[AT_MAX_SCALARS];
    at_pointers p;
  };

  // ---- Before the launch ----

  template <typename Problem>
  AT_DEVICE static void prepare(const Problem& a, at_prepared* out) {
    Params params{};
    const int64_t rows = (int64_t)a.n * a.h * a.w;
    constexpr int kGranule = 16 / (int)sizeof(Element);  // channels in 16 bytes, the unit of TMA's strides
    if (a.c % kGranule || a.hidden % kGranule || a.k % kGranule)
      return refused(out, "c, hidden and k must be multiples of 8, or of 16 in bytes");
    if (a.k > kN) return refused(out, "k must be at most the columns that the kernel is compiled for");
    if (rows >= 1ll << 31) return refused(out, "there must be fewer than 2^31 pixels");
    params.rows = (int)rows, params.hidden = a.hidden, params.k = a.k;
    params.slabs = ceil_div(a.c, kRow), params.chunks = ceil_div(a.hidden, kChunk),
    params.tiles = ceil_div(rows, kRows);
    params.stage_bytes = params.slabs * kSlabBytes, params.weight_bytes = params.slabs * kWeight1Bytes + kWeight2Bytes;
    for (int i = 0; i < AT_MAX_SCALARS; ++i) params.scalars[i] = a.scalars[i];
    params.x_stages = a.launch[Launch::kXSlots],
    params.weight_stages = kResident ? params.chunks : a.launch[Launch::kWeightSlots];
    // The filters of a chunk are in use until the next chunk's are, and with kAhead those of a third one, too.
    if (params.x_stages < 1 || params.x_stages > 32 || (!kResident && params.weight_stages < 2 + kAhead))
      return refused(out, "x_slots must be 1 to 32, and weight_slots at least 2, or 3 with the next product ahead");
    const int64_t loads =
        int64_t{params.x_stages} * params.stage_bytes + int64_t{params.weight_stages} * params.weight_bytes;
    const uint32_t shared = kSmemAlignment + Layout(params, 0).end;
    if (loads > AT_MAX_SHARED_BYTES || shared > AT_MAX_SHARED_BYTES)
      return refused(out, "the tile needs more shared memory than the GPU has");
    const int grid = a.launch[Launch::kGrid] ? a.launch[Launch::kGrid] : params.tiles;
    prepared(out, params, min(params.tiles, grid), 1, 1, kThreads, shared, 0);

    const auto ask = [&](int offset, int pointer, int row_bytes) -> at_tensor_map& {
      return add_tensor_map<Config>(out, offset, pointer, row_bytes);
    };
    const uint64_t c = a.c, hidden = ceil_div(a.hidden, 32) * 32,
                   k = ceil_div(a.k, 32) * 32;  // as the weights' layouts
    ptx::describe_tensor_map<Element>(ask(kXMap, kX, kRowBytes), {c, (uint64_t)rows}, {kRow, kRows}, {1, 1});
    ptx::describe_tensor_map<Element>(ask(kWeight1Map, kWeight1, kRowBytes), {c, hidden}, {kRow, kChunk}, {1, 1});
    ptx::describe_tensor_map<Element>(ask(kWeight2Map, kWeight2, kDepthBytes), {hidden, k}, {kDepth, kN}, {1, 1});
  }

 protected:
  // ---- Of a block ----

  // Addresses in shared memory. A buffer of filters has those of the first product, then those of the second.
  struct Layout {
    uint32_t x, weights, end;
    Pipeline x_pipeline, weight_pipeline;
    AT_DEVICE Layout(const Params& params, uint32_t memory) {
      SmemLayout layout(memory);
      x = layout.add(params.x_stages * params.stage_bytes);
      weights = layout.add(params.weight_stages * params.weight_bytes);
      x_pipeline = add_pipeline(layout, params.x_stages);
      weight_pipeline = add_pipeline(layout, params.weight_stages);
      end = layout.end;
    }
  };
};

}  // namespace at
