// Host side and shared definitions of the kernel in wgrad/im2col.cuh: sizes, parameters, prepare() and the
// shared-memory layout.
#pragma once
#include "common/fast_divmod.cuh"
#include "sm90/ring.cuh"
#include "sm90/tensor_maps.cuh"

namespace at {

template <typename Config>
struct Im2colWgradPlan {
  using Element = typename Config::Element;
  using Steps = typename Config::Steps;
  static constexpr int kChunk = 64;   // channels of a box: a row of 128 bytes in shared memory
  static constexpr int kPixels = 64;  // of a stage
  static constexpr int kM = Config::kM, kN = Config::kN, kMChunks = kM / kChunk, kNChunks = kN / kChunk;
  static constexpr int kGroups = Config::kGroups, kBlocks = kMChunks / kGroups;  // blocks of 64 rows of a warpgroup
  // Blocks of a cluster: those that split the pixels, times neighbouring tiles that share loads.
  static constexpr int kSlices = Config::kSlices, kClusterK = Config::kClusterK, kClusterN = Config::kClusterN;
  static constexpr int kPeers = kClusterK * kClusterN, kClusterBlocks = kSlices * kPeers;
  static constexpr int kThreads = 128 * kGroups + 32;
  static constexpr int kChunkBytes = kPixels * kChunk * (int)sizeof(Element);
  static constexpr int kXOffset = kMChunks * kChunkBytes, kStageBytes = (kMChunks + kNChunks) * kChunkBytes;
  static constexpr int kK = 16, kKBytes = kK * kChunk * (int)sizeof(Element);  // of a product
  // Sums in shared memory: rows of kN floats, padded so that a warp's accumulators meet all banks.
  static constexpr int kSumRows = kM, kSumPitch = kN + 8, kSumBytes = kSumRows * kSumPitch * 4;
  static constexpr int kShareRows = kSumRows / kSlices;  // rows that a block of the cluster finishes
  static constexpr int kVector = 4, kRowVectors = kN / kVector;
  enum { kDy = 0, kX = 1, kDw = 2 };       // indices of the pointers: Problem.operands()
  using Launch = typename Config::Launch;  // launch values by name, in the family's order
  enum NamedBarrier { kConsumers = 1 };
  static constexpr int kDyMap = 0, kXMap = 128;  // offsets in Params
  static_assert(kMChunks % kGroups == 0 && kN % kChunk == 0 && kN <= 256, "no such tile");
  static_assert(kSumRows % kSlices == 0, "no such split");
  static_assert((kClusterK == 1 || kClusterN == 1) && kNChunks % kClusterK == 0 && kMChunks % kClusterN == 0,
                "peers load equal parts of one operand");

  struct alignas(64) Params {
    uint8_t dy_map[128], x_map[128];
    int k, c, r, s;
    int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    int pointwise;               // x is loaded by boxes of its pixels, as dy
    int stages, steps, workers;  // stages; boxes of pixels; blocks that split them
    int columns;                 // chunks of 64 channels of all taps
    FastDivmod chunks, filter_width, area, width;
    FastDivmod tiles_n, tiles;  // in units of the tiles of a cluster
    int splits;                 // clusters that split the pixels
    float scalars[AT_MAX_SCALARS];
    at_pointers p;
  };

  // ---- Before the launch ----

  AT_DEVICE static void prepare(const at_conv2d& a, at_prepared* out) {
    Params params{};
    params.k = a.k, params.c = a.c, params.r = a.r, params.s = a.s;
    params.stride_h = a.stride_h, params.stride_w = a.stride_w, params.pad_h = a.pad_h, params.pad_w = a.pad_w;
    params.dilation_h = a.dilation_h, params.dilation_w = a.dilation_w;
    params.pointwise = a.r * a.s * a.stride_h * a.stride_w == 1 && a.pad_h + a.pad_w == 0;
    params.stages = a.launch[Launch::kSlots], params.splits = a.launch[Launch::kSplits];
    for (int i = 0; i < AT_MAX_SCALARS; ++i) params.scalars[i] = a.scalars[i];
    if (a.groups > 1) return refused(out, "groups must be 1");
    if (a.c % 8 || a.k % 8) return refused(out, "c and k must be multiples of 8");
    const int pixels = a.n * a.p * a.q;
    params.steps = ceil_div(pixels, kPixels), params.workers = kSlices * params.splits;
    if (params.splits < 1 || params.workers > params.steps)
      return refused(out, "splits must leave 64 pixels to each block");
    const int64_t shared = kSmemAlignment + Layout(params, 0).end;
    if (params.stages < 2 || params.stages > 32 || shared > AT_MAX_SHARED_BYTES)
      return refused(out, "slots must be 2 to 32, and fit the GPU's shared memory");
    params.chunks = FastDivmod::make(ceil_div(a.c, kChunk)), params.filter_width = FastDivmod::make(a.s);
    params.area = FastDivmod::make(a.p * a.q), params.width = FastDivmod::make(a.q);
    params.columns = a.r * a.s * params.chunks.divisor;
    const int tiles_n = ceil_div(params.columns, kNChunks * kClusterN), tiles_k = ceil_div(a.k, kM * kClusterK);
    params.tiles_n = FastDivmod::make(tiles_n), params.tiles = FastDivmod::make(tiles_k * tiles_n);
    const int tiles = tile_count(params);
    const int64_t sums = (int64_t)params.splits * tiles * kSumRows * kN * 4;
    prepared(out, params, tiles * params.workers, 1, 1, kThreads, (int)shared,
             params.splits > 1 ? counter_bytes(tiles) + sums : 0);

    describe(add_tensor_map<Config>(out, kDyMap, kDy, 128), pixels, a.k);
    at_tensor_map& x_map = add_tensor_map<Config>(out, kXMap, kX, 128);
    if (params.pointwise) describe(x_map, pixels, a.c);
    else describe_im2col(x_map, a);
  }

  AT_DEVICE static int tile_count(const Params& params) { return params.tiles.divisor * kPeers; }
  // The workspace begins with a counter for each part of a tile; the sums of the clusters follow.
  AT_DEVICE static int64_t counter_bytes(int64_t tiles) { return ceil_div(tiles * kSlices * 4, 256) * 256; }

  AT_DEVICE static void describe(at_tensor_map& map, uint64_t pixels, uint64_t channels) {
    ptx::describe_tensor_map<Element>(map, {channels, pixels}, {kChunk, kPixels}, {1, 1});
  }

  AT_DEVICE static void describe_im2col(at_tensor_map& map, const at_conv2d& a) {
    const uint64_t n = a.n, h = a.h, w = a.w, c = a.c;
    ptx::describe_tensor_map<Element>(map, {c, w, h, n}, {kChunk, 1, 1, 1},
                                      {1, (uint32_t)a.stride_w, (uint32_t)a.stride_h, 1});
    set_im2col_box(map, kPixels, a.pad_h, a.pad_w, (a.r - 1) * a.dilation_h, (a.s - 1) * a.dilation_w);
  }

  // ---- Of a block ----

  // Addresses in shared memory. A stage holds 64 pixels: kMChunks boxes of dy, then kNChunks of x. The sums replace the
  // stages when these are empty.
  struct Layout {
    uint32_t stages, sums, end;
    Pipeline pipeline;
    AT_DEVICE Layout(const Params& params, uint32_t memory) {
      SmemLayout layout(memory);
      sums = memory;
      stages = layout.add(params.stages * kStageBytes);
      if (layout.end < memory + kSumBytes) layout.end = memory + kSumBytes;
      pipeline = add_pipeline(layout, params.stages);
      end = layout.end;
    }
  };

  // A chunk of the channels of one tap.
  struct Column {
    int c, r, s;
    AT_DEVICE Column() {}
    AT_DEVICE Column(const Params& params, int chunk) {
      r = params.filter_width.divmod(params.chunks.divmod(chunk, c), s), c *= kChunk;
    }
  };

  // The tile of a block, its place among the peers that share its loads, and among the blocks that split its pixels.
  // column: its first chunk.
  struct Tile {
    int index, k, column, peer, split, slice;
    AT_DEVICE explicit Tile(const Params& params) {
      const int at = blockIdx.x % kClusterBlocks;
      peer = at % kPeers, slice = at / kPeers;
      split = params.tiles.divmod(blockIdx.x / kClusterBlocks, index);
      k = params.tiles_n.divmod(index, column);
      k = (k * kClusterK + peer % kClusterK) * kM, column = (column * kClusterN + peer / kClusterK) * kNChunks;
      index = index * kPeers + peer;
    }
    AT_DEVICE int rank(int slice) const { return slice * kPeers + peer; }               // in the cluster
    AT_DEVICE uint16_t peers() const { return ((1 << kPeers) - 1) << slice * kPeers; }  // a bit for each rank
    AT_DEVICE int first_step(const Params& params, int next = 0) const {
      return (int)((int64_t)params.steps * (split * kSlices + slice + next) / params.workers);
    }
  };

  // Where the sums of a column of a tile belong: their input channel, and the offset in dw of each row.
  struct Place {
    int c, k, first;  // channels of the input and of the output; offset of the column in a filter, -1 if dw has no such
    AT_DEVICE Place(const Params& params, const Tile& tile, int column) : k(tile.k) {
      const int chunk = tile.column + column / kChunk;
      const Column at(params, chunk);
      c = at.c + column % kChunk;
      first = chunk < params.columns && c < params.c ? (at.r * params.s + at.s) * params.c + c : -1;
    }
    // Returns -1 if dw has no such element.
    AT_DEVICE int64_t offset(const Params& params, int row) const {
      return first >= 0 && k + row < params.k ? (int64_t)(k + row) * params.r * params.s * params.c + first : -1;
    }
  };

  using Accum = float[kBlocks][kN / 2];
};

}  // namespace at
