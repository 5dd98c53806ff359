// Host side and shared definitions of the kernel in wgrad/conv2d.cuh: sizes, parameters, prepare() and the
// shared-memory layout.
#pragma once
#include "common/fast_divmod.cuh"
#include "sm90/ring.cuh"
#include "sm90/tensor_maps.cuh"

namespace at {

template <typename Config>
struct WgradPlan {
  using Element = typename Config::Element;
  using Steps = typename Config::Steps;
  static constexpr int kChunk = 64;  // channels of a box: a row of 128 bytes in shared memory
  static constexpr int kM = Config::kM, kN = Config::kN, kMChunks = kM / kChunk, kNChunks = kN / kChunk;
  static constexpr int kFilterRows = Config::kFilterRows, kFilterColumns = Config::kFilterColumns;
  static constexpr bool kJoined = Config::kJoined;  // the filter columns are one product
  static constexpr int kImages = Config::kImages;   // of a box
  static constexpr int kSlices = Config::kSlices;   // blocks of a cluster that split the pixels
  static constexpr int kClusterBlocks = kSlices;
  static constexpr int kGroups = kMChunks * kFilterRows, kThreads = 128 * kGroups + 64;
  static constexpr int kTaps = kFilterRows * kFilterColumns;
  static constexpr int kProductN = kJoined ? kFilterColumns * kN : kN, kProducts = kJoined ? 1 : kFilterColumns;
  static constexpr int kPixelBytes = kImages * kChunk * (int)sizeof(Element);  // one pixel of a box's images
  static constexpr int kK = 16, kKBytes = kK * kChunk * (int)sizeof(Element);  // of a product
  // Sums in shared memory: rows of kN floats, padded so that a warp's accumulators meet all banks.
  static constexpr int kSumRows = kTaps * kM, kSumPitch = kN + 8, kSumBytes = kSumRows * kSumPitch * 4;
  static constexpr int kShareRows = kSumRows / kSlices;  // rows that a block of the cluster finishes
  static constexpr int kVector = 4, kRowVectors = kN / kVector;
  enum { kDy = 0, kX = 1, kDw = 2, kFirstOperand = 3 };  // indices of the pointers: Problem.operands()
  using Launch = typename Config::Launch;                // launch values by name, in the family's order
  enum NamedBarrier { kConsumers = 1 };
  static constexpr int kDyMap = 0, kXMap = 128;  // offsets in Params
  static_assert(kM % kChunk == 0 && kN % kChunk == 0 && kProductN <= 256, "no such tile");
  static_assert(kImages % kK == 0 && kSumRows % kSlices == 0, "no such box, or no such split");

  struct alignas(64) Params {
    uint8_t dy_map[128], x_map[128];
    int h, w, k, c, r, s, out_h, out_w;
    int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    int columns, width;  // output columns of a box, and pixels of its input
    int step_w;          // from one output column to the next in a box of x
    int whole;           // a box of x is the whole width of the image
    int dy_stages, x_stages;
    int rows, workers;         // rows of all strips; blocks that split them
    FastDivmod strip_columns;  // boxes across an image
    FastDivmod out_rows;
    FastDivmod tiles_n, column_groups, row_groups, tiles;
    int splits;  // clusters that split the pixels
    float scalars[AT_MAX_SCALARS];
    at_pointers p;
  };

  // ---- Before the launch ----

  AT_DEVICE static void prepare(const at_conv2d& a, at_prepared* out) {
    Params params{};
    params.h = a.h, params.w = a.w, params.k = a.k, params.c = a.c, params.r = a.r, params.s = a.s, params.out_h = a.p,
    params.out_w = a.q;
    params.stride_h = a.stride_h, params.stride_w = a.stride_w, params.pad_h = a.pad_h, params.pad_w = a.pad_w;
    params.dilation_h = a.dilation_h, params.dilation_w = a.dilation_w;
    params.columns = a.launch[Launch::kColumns], params.splits = a.launch[Launch::kSplits];
    params.dy_stages = a.launch[Launch::kDySlots], params.x_stages = a.launch[Launch::kXSlots];
    for (int i = 0; i < AT_MAX_SCALARS; ++i) params.scalars[i] = a.scalars[i];
    if (a.groups > 1) return refused(out, "groups must be 1");
    if (a.c % 8 || a.k % 8) return refused(out, "c and k must be multiples of 8");
    if (params.columns < 1 || params.splits < 1) return refused(out, "columns and splits must be at least 1");

    const int row_groups = ceil_div(a.r, kFilterRows), column_groups = ceil_div(a.s, kFilterColumns);
    const int strips_across = ceil_div(a.q, params.columns);
    params.step_w = kFilterColumns == 1 ? 1 : a.stride_w;
    params.width = (params.columns - 1) * params.step_w + (kFilterColumns - 1) * a.dilation_w + 1;
    // Products of single taps skip the padding, so a box of all columns needs none.
    params.whole = !kJoined && kFilterColumns > 1 && strips_across == 1;
    if (params.whole) params.width = a.w;
    params.strip_columns = FastDivmod::make(strips_across), params.out_rows = FastDivmod::make(a.p);
    params.rows = ceil_div(a.n, kImages) * strips_across * a.p;
    const int tiles_m = ceil_div(a.k, kM), tiles_n = ceil_div(a.c, kN);
    params.tiles_n = FastDivmod::make(tiles_n);
    params.column_groups = FastDivmod::make(column_groups), params.row_groups = FastDivmod::make(row_groups);
    const int tiles = tiles_m * tiles_n * row_groups * column_groups;
    params.tiles = FastDivmod::make(tiles);
    params.workers = kSlices * params.splits;

    // The rows of dy that a row of x meets must be there at a time. A warpgroup releases the stages of a row when it
    // has the next one that it meets.
    const int apart = kFilterRows == 1 ? 1 : a.stride_h;
    const int span = (kFilterRows - 1) * a.dilation_h / a.stride_h + 1;
    const int64_t shared = kSmemAlignment + Layout(params, 0).end;
    const int box_w = kFilterColumns == 1 ? (params.columns - 1) * a.stride_w + 1 : params.width;
    if (params.dy_stages <= span || params.dy_stages > 64 || params.x_stages <= apart || params.x_stages > 64)
      return refused(out,
                     "a ring must have up to 64 slots: of dy more than a filter's rows, of x more than the stride");
    if (shared > AT_MAX_SHARED_BYTES || params.columns > 256 || box_w > 256)
      return refused(out, "the boxes need more shared memory than the GPU has, or are wider than 256 pixels");
    if (params.workers > params.rows) return refused(out, "splits must leave a row of pixels to each block");
    const int64_t sums = (int64_t)params.splits * tiles * kSumRows * kN * 4;
    const int64_t workspace = params.splits > 1 ? counter_bytes(tiles) + sums : 0;
    prepared(out, params, tiles * params.workers, 1, 1, kThreads, (int)shared, workspace);

    const uint32_t stride = kFilterColumns == 1 ? a.stride_w : 1;
    describe(add_tensor_map<Config>(out, kDyMap, kDy, 128), a.n, a.p, a.q, a.k, params.columns, 1);
    describe(add_tensor_map<Config>(out, kXMap, kX, 128), a.n, a.h, a.w, a.c, box_w, stride);
  }

  AT_DEVICE static int tile_count(const Params& params) { return params.tiles.divisor; }
  // The workspace begins with a counter for each part of a tile; the sums of the clusters follow.
  AT_DEVICE static int64_t counter_bytes(int64_t tiles) { return ceil_div(tiles * kSlices * 4, 256) * 256; }

  // A map of an NHWC tensor in which images follow channels: a box has 64 channels of kImages images, by pixel.
  AT_DEVICE static void describe(at_tensor_map& map, uint64_t n, uint64_t h, uint64_t w, uint64_t c, uint32_t box_w,
                                 uint32_t stride_w) {
    ptx::describe_tensor_map<Element>(map, {c, n, w, h}, {kChunk, kImages, box_w, 1}, {1, 1, stride_w, 1});
    const uint64_t pixel = c * sizeof(Element);
    map.strides[0] = h * w * pixel, map.strides[1] = pixel, map.strides[2] = w * pixel;
  }

  // ---- Of a block ----

  // Addresses in shared memory. The sums replace the rings when these are empty.
  struct Layout {
    uint32_t dy, x, sums, end;
    Pipeline dy_pipeline, x_pipeline;
    AT_DEVICE Layout(const Params& params, uint32_t memory) {
      SmemLayout layout(memory);
      sums = memory;
      dy = layout.add(params.dy_stages * dy_bytes(params));
      x = layout.add(params.x_stages * x_bytes(params));
      if (layout.end < memory + kSumBytes) layout.end = memory + kSumBytes;
      dy_pipeline = add_pipeline(layout, params.dy_stages), x_pipeline = add_pipeline(layout, params.x_stages);
      end = layout.end;
    }
  };

  AT_DEVICE static int dy_bytes(const Params& params) { return kMChunks * params.columns * kPixelBytes; }
  AT_DEVICE static int x_bytes(const Params& params) { return kNChunks * params.width * kPixelBytes; }

  // The tile of a block, and its place among the blocks that share the tile's pixels.
  struct Tile {
    int index, k, c, r, s;  // the first channels and the first tap
    int split, slice;
    AT_DEVICE explicit Tile(const Params& params) {
      const int cluster = blockIdx.x / kSlices;
      slice = blockIdx.x % kSlices;
      split = params.tiles.divmod(cluster, index);
      int rest = index, at;
      rest = params.column_groups.divmod(rest, at), s = at * kFilterColumns;
      rest = params.row_groups.divmod(rest, at), r = at * kFilterRows;
      rest = params.tiles_n.divmod(rest, at), c = at * kN;
      k = rest * kM;
    }
    AT_DEVICE int rank(int slice) const { return slice; }  // in the cluster
    AT_DEVICE int first_row(const Params& params, int next = 0) const {
      return (int)((int64_t)params.rows * (split * kSlices + slice + next) / params.workers);
    }
  };

  // Neighbouring rows of the output in one strip of images and columns, and the rows of the input that they meet.
  struct Segment {
    int n, q, begin, end;  // first image, first column, rows
    int first_h, end_h;    // rows of the input, of which every step_h-th
    AT_DEVICE Segment(const Params& params, const Tile& tile, int row, int last) {
      int across;
      const int strip = params.out_rows.divmod(row, begin);
      n = params.strip_columns.divmod(strip, across) * kImages, q = across * params.columns;
      end = min(params.out_h, begin + last - row);
      const int top = params.pad_h - tile.r * params.dilation_h;
      first_h = begin * params.stride_h - top;
      end_h = min((end - 1) * params.stride_h - top + (kFilterRows - 1) * params.dilation_h + 1, params.h);
      while (first_h < 0) first_h += step_h(params);
    }
    AT_DEVICE static int step_h(const Params& params) { return kFilterRows == 1 ? params.stride_h : 1; }
    // The column of the input at which a box begins.
    AT_DEVICE int first_w(const Params& params, const Tile& tile) const {
      return params.whole ? 0 : q * params.stride_w - params.pad_w + tile.s * params.dilation_w;
    }
  };

  // Where the sums of a column of a tile belong: their input channel, and the offset in dw of each row.
  struct Place {
    int c, k, r, s;  // the column's channel; the tile's first channel and tap
    AT_DEVICE Place(const Params&, const Tile& tile, int column)
        : c(tile.c + column), k(tile.k), r(tile.r), s(tile.s) {}
    // Returns -1 if dw has no such element.
    AT_DEVICE int64_t offset(const Params& params, int row) const {
      const int tap = row / kM, at_k = k + row % kM, at_r = r + tap / kFilterColumns, at_s = s + tap % kFilterColumns;
      if (c >= params.c || at_k >= params.k || at_r >= params.r || at_s >= params.s) return -1;
      return (((int64_t)at_k * params.r + at_r) * params.s + at_s) * params.c + c;
    }
  };

  using Accum = float[kProducts][kProductN / 2];
};

}  // namespace at
