// Host side and shared definitions of the kernel in conv2d_skip.cuh: sizes, parameters, prepare() and the shared-memory
// layout.
#pragma once
#include "common/fast_divmod.cuh"
#include "sm90/pipeline.cuh"
#include "sm90/row_stage.cuh"
#include "sm90/smem_layout.cuh"
#include "common/ptx/tma.cuh"

namespace at {

template <typename Config>
struct Conv2dSkipPlan {
  using Element = typename Config::Element;
  using Launch = typename Config::Launch;
  using Stage = RowStage<Element, Config::kN>;
  static constexpr int kN = Config::kN, kGroups = Config::kGroups;
  static constexpr int kRows = 64 * kGroups, kThreads = 128 * (kGroups + 1);
  // Swizzled bytes of a step, and channels.
  static constexpr int kRowBytes = Config::kRowBytes, kK = kRowBytes / (int)sizeof(Element);
  static constexpr bool kResident = Config::kResident;
  static constexpr bool kScaled = sizeof(Element) == 1;  // the sums of both convolutions have scales
  static constexpr int kPixelBytes = kRows * kRowBytes, kFilterBytes = kN * kRowBytes;  // of a step
  static constexpr int kStagingBytes = 4 * kGroups * Stage::kWarpBytes;
  static_assert(kN % 32 == 0 && kN <= 256, "no such tile");
  // Conv2dSkip.operands()
  enum { kX = 0, kWeight = 1, kSkip = 2, kProjection = 3, kScale = 4, kSkipScale = 5, kY = kScaled ? 6 : 4 };
  // Offsets in Params.
  static constexpr int kXMap = 0, kWeightMap = 128, kSkipMap = 256, kProjectionMap = 384, kOutputMap = 512;

  // An input: how its pixels follow from those of the output.
  struct Input {
    int chunks;     // of kK channels
    int pointwise;  // output pixels are its pixels
    int stride_h, stride_w, pad_h, pad_w;
  };

  struct alignas(64) Params {
    uint8_t x_map[128], weight_map[128], skip_map[128], projection_map[128], output_map[128];
    Input x, skip;
    int r, s, dilation_h, dilation_w;
    int rows, last_row, k;         // pixels of the output, the first of the last tile; channels
    int tiles, columns, together;  // rows of tiles times parts; columns of tiles, and those of a part
    int pixel_slots, filter_slots, pixel_bytes;
    FastDivmod parts;                // of a row of tiles
    FastDivmod out_area, out_width;  // in pixels
    float scalars[AT_MAX_SCALARS];
    at_pointers p;
  };

  // ---- Before the launch ----

  template <typename Problem>
  AT_DEVICE static void prepare(const Problem& a, at_prepared* out) {
    Params x{};
    const int64_t rows = (int64_t)a.n * a.p * a.q;
    constexpr int kGranule = 16 / (int)sizeof(Element);  // channels in 16 bytes, the unit of TMA's strides
    if (a.c % kGranule || a.skip_c % kGranule || a.k % kGranule)
      return refused(out, "c, skip_c and k must be multiples of 8, or of 16 in bytes");
    if (a.groups > 1) return refused(out, "groups must be 1");
    if (rows >= 1ll << 31) return refused(out, "there must be fewer than 2^31 pixels");
    const bool pointwise = a.r * a.s == 1 && a.stride_h * a.stride_w == 1 && a.pad_h + a.pad_w == 0;
    x.x = {(int)ceil_div(a.c, kK), pointwise, a.stride_h, a.stride_w, a.pad_h, a.pad_w};
    x.skip = {
        (int)ceil_div(a.skip_c, kK), a.skip_stride_h * a.skip_stride_w == 1, a.skip_stride_h, a.skip_stride_w, 0, 0};
    x.r = a.r, x.s = a.s, x.dilation_h = a.dilation_h, x.dilation_w = a.dilation_w;
    // The last tile ends with the last pixel and recomputes some of the tile before to the same bits; see
    // conv2d/plan.cuh.
    const int pixels = (int)min((int64_t)kRows, rows);
    x.rows = (int)rows, x.last_row = max(x.rows - kRows, 0), x.k = a.k;
    x.pixel_bytes = pixels * kRowBytes;
    x.columns = (int)ceil_div(a.k, kN), x.together = min(max(a.launch[Launch::kTogether], 1), x.columns);
    const int parts = ceil_div(x.columns, x.together);
    x.parts = FastDivmod::make(parts), x.tiles = (int)ceil_div(rows, kRows) * parts;
    x.out_area = FastDivmod::make(a.p * a.q), x.out_width = FastDivmod::make(a.q);
    x.pixel_slots = a.launch[Launch::kPixelSlots];
    x.filter_slots = kResident ? steps(x) * x.together : a.launch[Launch::kFilterSlots];
    if (x.pixel_slots < 2 || (x.together > 1 && x.pixel_slots < steps(x)))
      return refused(out, "pixel_slots must be at least 2, and hold a tile's pixels if they serve several columns");
    if (x.filter_slots < 2) return refused(out, "filter_slots must be at least 2");
    for (int i = 0; i < AT_MAX_SCALARS; ++i) x.scalars[i] = a.scalars[i];
    const int64_t shared = kSmemAlignment + kStagingBytes +
                           (int64_t)x.pixel_slots * (kPixelBytes + 2 * ptx::kMbarrierBytes) +
                           (int64_t)x.filter_slots * (kFilterBytes + 2 * ptx::kMbarrierBytes);
    if (shared > AT_MAX_SHARED_BYTES) return refused(out, "the tile needs more shared memory than the GPU has");
    const int grid = min(a.launch[Launch::kGrid] ? a.launch[Launch::kGrid] : x.tiles, x.tiles);
    if (kResident && grid % parts) return refused(out, "grid must be a multiple of the parts of a row of tiles");
    prepared(out, x, grid, 1, 1, kThreads, (int)shared, 0);

    const uint64_t c = a.c, h = a.h, w = a.w, n = a.n, taps = a.r * a.s, padded_k = ceil_div(a.k, 32) * 32;
    const auto ask = [&](int offset, int pointer) -> at_tensor_map& {
      at_tensor_map& map = out->tensor_maps[out->tensor_map_count++];
      map = {offset, pointer, Config::kMapElement, ptx::swizzle_mode(kRowBytes)};
      return map;
    };
    const auto ask_pixels = [&](int offset, int pointer, const Input& of, uint64_t c, uint64_t h, uint64_t w,
                                int reach_h, int reach_w) {
      at_tensor_map& map = ask(offset, pointer);
      if (of.pointwise) {
        ptx::describe_tensor_map<Element>(map, {c, (uint64_t)rows}, {kK, (uint32_t)pixels}, {1, 1});
        return;
      }
      const uint32_t step_h = of.stride_h, step_w = of.stride_w;
      ptx::describe_tensor_map<Element>(map, {c, w, h, n}, {kK, 1, 1, 1}, {1, step_w, step_h, 1});
      map.pixels = pixels;
      map.lower[0] = -of.pad_w, map.upper[0] = of.pad_w - reach_w;
      map.lower[1] = -of.pad_h, map.upper[1] = of.pad_h - reach_h;
    };
    ask_pixels(kXMap, kX, x.x, c, h, w, (a.r - 1) * a.dilation_h, (a.s - 1) * a.dilation_w);
    ptx::describe_tensor_map<Element>(ask(kWeightMap, kWeight), {c, taps, padded_k}, {kK, 1, kN}, {1, 1, 1});
    const uint64_t skip_c = a.skip_c, skip_h = a.skip_h, skip_w = a.skip_w;
    ask_pixels(kSkipMap, kSkip, x.skip, skip_c, skip_h, skip_w, 0, 0);
    ptx::describe_tensor_map<Element>(ask(kProjectionMap, kProjection), {skip_c, 1, padded_k}, {kK, 1, kN}, {1, 1, 1});
    Stage::describe(out->tensor_maps[out->tensor_map_count++], kOutputMap, kY, Config::kMapElement, a.k, rows);
  }

 protected:
  // ---- Of a block ----

  // Addresses in shared memory. A slot holds a step's pixels or filters.
  struct Layout {
    uint32_t pixels, filters, staging, pixel_full, pixel_empty, filter_full, filter_empty;
    AT_DEVICE Layout(const Params& x, uint32_t memory) {
      SmemLayout layout(memory);
      pixels = layout.add(x.pixel_slots * kPixelBytes);
      filters = layout.add(x.filter_slots * kFilterBytes);
      staging = layout.add(kStagingBytes);
      pixel_full = layout.add_barriers(x.pixel_slots);
      pixel_empty = layout.add_barriers(x.pixel_slots);
      filter_full = layout.add_barriers(x.filter_slots);
      filter_empty = layout.add_barriers(x.filter_slots);
    }
  };

  AT_DEVICE static Pipeline pixel_pipeline(const Layout& smem) { return {smem.pixel_full, smem.pixel_empty}; }
  AT_DEVICE static Pipeline filter_pipeline(const Layout& smem) { return {smem.filter_full, smem.filter_empty}; }

  // A row of pixels and some columns of channels. Those that follow each other have the same pixels.
  struct Tile {
    int row, column, end;
    AT_DEVICE Tile(const Params& x, int index) {
      int part;
      row = min(x.parts.divmod(index, part) * kRows, x.last_row);
      column = part * x.together;
      end = min(column + x.together, x.columns);
    }
  };

  AT_DEVICE static int own_steps(const Params& x) { return x.r * x.s * x.x.chunks; }
  AT_DEVICE static int steps(const Params& x) { return own_steps(x) + x.skip.chunks; }
};

}  // namespace at
