// Host side and shared definitions of the kernel in conv2d_skip.cuh: sizes, parameters, prepare() and the shared-memory
// layout.
#pragma once
#include "common/fast_divmod.cuh"
#include "sm90/ring.cuh"
#include "sm90/row_stage.cuh"
#include "sm90/tensor_maps.cuh"

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
    int pixel_stages, filter_stages, pixel_bytes;
    FastDivmod parts;                // of a row of tiles
    FastDivmod out_area, out_width;  // in pixels
    float scalars[AT_MAX_SCALARS];
    at_pointers p;
  };

  // ---- Before the launch ----

  template <typename Problem>
  AT_DEVICE static void prepare(const Problem& a, at_prepared* out) {
    Params params{};
    const int64_t rows = (int64_t)a.n * a.p * a.q;
    constexpr int kGranule = 16 / (int)sizeof(Element);  // channels in 16 bytes, the unit of TMA's strides
    if (a.c % kGranule || a.skip_c % kGranule || a.k % kGranule)
      return refused(out, "c, skip_c and k must be multiples of 8, or of 16 in bytes");
    if (a.groups > 1) return refused(out, "groups must be 1");
    if (rows >= 1ll << 31) return refused(out, "there must be fewer than 2^31 pixels");
    const bool pointwise = a.r * a.s == 1 && a.stride_h * a.stride_w == 1 && a.pad_h + a.pad_w == 0;
    params.x = {(int)ceil_div(a.c, kK), pointwise, a.stride_h, a.stride_w, a.pad_h, a.pad_w};
    params.skip = {
        (int)ceil_div(a.skip_c, kK), a.skip_stride_h * a.skip_stride_w == 1, a.skip_stride_h, a.skip_stride_w, 0, 0};
    params.r = a.r, params.s = a.s, params.dilation_h = a.dilation_h, params.dilation_w = a.dilation_w;
    // The last tile ends with the last pixel and recomputes some of the tile before to the same bits; see
    // conv2d/plan.cuh.
    const int pixels = (int)min((int64_t)kRows, rows);
    params.rows = (int)rows, params.last_row = max(params.rows - kRows, 0), params.k = a.k;
    params.pixel_bytes = pixels * kRowBytes;
    params.columns = (int)ceil_div(a.k, kN), params.together = min(max(a.launch[Launch::kTogether], 1), params.columns);
    const int parts = ceil_div(params.columns, params.together);
    params.parts = FastDivmod::make(parts), params.tiles = (int)ceil_div(rows, kRows) * parts;
    params.out_area = FastDivmod::make(a.p * a.q), params.out_width = FastDivmod::make(a.q);
    params.pixel_stages = a.launch[Launch::kPixelSlots];
    params.filter_stages = kResident ? steps(params) * params.together : a.launch[Launch::kFilterSlots];
    if (params.pixel_stages < 2 || (params.together > 1 && params.pixel_stages < steps(params)))
      return refused(out, "pixel_slots must be at least 2, and hold a tile's pixels if they serve several columns");
    if (params.filter_stages < 2) return refused(out, "filter_slots must be at least 2");
    for (int i = 0; i < AT_MAX_SCALARS; ++i) params.scalars[i] = a.scalars[i];
    const int64_t loads = int64_t{params.pixel_stages} * kPixelBytes + int64_t{params.filter_stages} * kFilterBytes;
    const uint32_t shared = kSmemAlignment + Layout(params, 0).end;
    if (loads > AT_MAX_SHARED_BYTES || shared > AT_MAX_SHARED_BYTES)
      return refused(out, "the tile needs more shared memory than the GPU has");
    const int grid = min(a.launch[Launch::kGrid] ? a.launch[Launch::kGrid] : params.tiles, params.tiles);
    if (kResident && grid % parts) return refused(out, "grid must be a multiple of the parts of a row of tiles");
    prepared(out, params, grid, 1, 1, kThreads, shared, 0);

    const uint64_t c = a.c, h = a.h, w = a.w, n = a.n, taps = a.r * a.s, padded_k = ceil_div(a.k, 32) * 32;
    const auto ask = [&](int offset, int pointer) -> at_tensor_map& {
      return add_tensor_map<Config>(out, offset, pointer, kRowBytes);
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
      set_im2col_box(map, pixels, of.pad_h, of.pad_w, reach_h, reach_w);
    };
    ask_pixels(kXMap, kX, params.x, c, h, w, (a.r - 1) * a.dilation_h, (a.s - 1) * a.dilation_w);
    ptx::describe_tensor_map<Element>(ask(kWeightMap, kWeight), {c, taps, padded_k}, {kK, 1, kN}, {1, 1, 1});
    const uint64_t skip_c = a.skip_c, skip_h = a.skip_h, skip_w = a.skip_w;
    ask_pixels(kSkipMap, kSkip, params.skip, skip_c, skip_h, skip_w, 0, 0);
    ptx::describe_tensor_map<Element>(ask(kProjectionMap, kProjection), {skip_c, 1, padded_k}, {kK, 1, kN}, {1, 1, 1});
    Stage::describe(out->tensor_maps[out->tensor_map_count++], kOutputMap, kY, Config::kMapElement, a.k, rows);
  }

 protected:
  // ---- Of a block ----

  // Addresses in shared memory. A stage holds a step's pixels or filters.
  struct Layout {
    uint32_t pixels, filters, staging, end;
    Pipeline pixel_pipeline, filter_pipeline;
    AT_DEVICE Layout(const Params& params, uint32_t memory) {
      SmemLayout layout(memory);
      pixels = layout.add(params.pixel_stages * kPixelBytes);
      filters = layout.add(params.filter_stages * kFilterBytes);
      staging = layout.add(kStagingBytes);
      pixel_pipeline = add_pipeline(layout, params.pixel_stages);
      filter_pipeline = add_pipeline(layout, params.filter_stages);
      end = layout.end;
    }
  };

  // A row of pixels and some columns of channels. Those that follow each other have the same pixels.
  struct Tile {
    int row, column, end;
    AT_DEVICE Tile(const Params& params, int index) {
      int part;
      row = min(params.parts.divmod(index, part) * kRows, params.last_row);
      column = part * params.together;
      end = min(column + params.together, params.columns);
    }
  };

  AT_DEVICE static int own_steps(const Params& params) { return params.r * params.s * params.x.chunks; }
  AT_DEVICE static int steps(const Params& params) { return own_steps(params) + params.skip.chunks; }
};

}  // namespace at
