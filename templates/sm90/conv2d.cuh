// A persistent, warp-specialised implicit-GEMM convolution for Hopper: TMA loads, wgmma products, NHWC, groups = 1.
//
// One warp loads activations, one loads weights, and `kGroups` warpgroups multiply. Between them are two rings of
// buffers in shared memory, so the loads of the next tile run during this tile's epilogue. Activations come in fills
// of kK channels, in one of two ways:
// - im2col: a fill is one filter tap of the tile's pixels, gathered by TMA;
// - patch: a fill is the input patch under the tile, with its halo, and serves all taps (of one phase of the stride): a
//   tap is a shift of the address that wgmma reads from. It reads the input from L2 once, not once a tap. The
//   tile's pixels form squares of 8 x 8, because wgmma takes rows in groups of eight at any constant distance.
// With `resident` the weights of a tile column are loaded once and stay.
//
// A cluster of kClusterM x kClusterN tiles shares its loads by multicast. kSlices > 1 splits the channels and
// taps of one tile over blocks of a cluster, which add their sums through distributed shared memory in a fixed order.
//
// The weights' rows are permuted (layout "wgmma", fused_resnet/layout.py), so that each thread's accumulators are eight
// neighbouring channels of a pixel: the epilogue needs no exchange between threads.
#pragma once
#include "sm90/hopper.cuh"

namespace at {

// Places of the pointers: Problem.operands() of conv2d.
enum { kX = 0, kWeight = 1, kY = 2, kFirstStep = 3 };

// Where in a ring of buffers, and which round.
struct Ring {
  int slot;
  uint32_t parity;
  AT_DEVICE void advance(int slots) {
    if (++slot == slots) slot = 0, parity ^= 1;
  }
  AT_DEVICE void skip(int count, int slots) {
    slot += count;
    parity ^= slot / slots & 1;
    slot %= slots;
  }
};

template <typename Config>
struct HopperConv2d {
  using Element = typename Config::Element;
  static constexpr int kM = Config::kM, kN = Config::kN, kK = Config::kK;
  static constexpr int kGroups = Config::kGroups, kSlices = Config::kSlices;
  static constexpr int kClusterM = Config::kClusterM, kClusterN = Config::kClusterN;
  static constexpr int kCluster = kClusterM * kClusterN * kSlices;
  static constexpr bool kPingpong = Config::kPingpong;
  static constexpr int kTeam = kPingpong ? 1 : kGroups;  // warpgroups that share a tile
  static constexpr int kBlocks = kM / kTeam / 64;        // wgmma's blocks of rows for each
  static constexpr int kThreads = 128 * kGroups + 64;
  static constexpr int kRowBytes = kK * (int)sizeof(Element);
  static constexpr int kWeightBytes = kN * kRowBytes;
  static constexpr int kVector = 8;
  static constexpr int kUnits = kBlocks * 2 * (kN / 32);  // of eight channels, for each thread
  static_assert(kM % (64 * kTeam) == 0 && kN % 32 == 0 && kUnits % kSlices == 0, "no such tile");
  static_assert(kSlices == 1 || !kPingpong, "a split tile belongs to the whole block");

  enum Launch { kMode, kActivationSlots, kWeightSlots, kGrid, kRaster, kSquaresH, kSquaresW, kImages };
  enum Mode { kIm2col, kPatch };

  struct alignas(64) Params {
    uint8_t activation_map[128], weight_map[128];
    int pointwise, patch, resident, along_m;
    int n, out_h, out_w, k, rows;
    int tiles_n, cluster_tiles, cluster_rows, cluster_columns;
    int chunks, r, s, phases_h, phases_w, phase_stride_h, phase_stride_w;
    int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    int fills, products;  // of one tile
    int activation_slots, activation_bytes, fill_bytes, weight_slots;
    int squares_h, squares_w, patch_h, patch_w, patches_h, patches_w, images;
    float scalars[AT_MAX_SCALARS];
    at_pointers p;
  };

  // ---- Before the launch ----

  AT_DEVICE static void prepare(const at_conv2d& a, at_prepared* out) {
    Params x{};
    const bool pointwise = a.r * a.s == 1 && a.stride_h * a.stride_w == 1 && a.pad_h + a.pad_w == 0;
    x.patch = a.launch[kMode] == kPatch;
    x.pointwise = pointwise && !x.patch;
    x.n = a.n, x.out_h = a.p, x.out_w = a.q, x.k = a.k, x.rows = a.n * a.p * a.q;
    x.r = a.r, x.s = a.s;
    x.stride_h = a.stride_h, x.stride_w = a.stride_w, x.pad_h = a.pad_h, x.pad_w = a.pad_w;
    x.dilation_h = a.dilation_h, x.dilation_w = a.dilation_w;
    x.chunks = ceil_div(a.c, kK);
    x.phases_h = x.patch ? min(a.r, a.stride_h) : a.r, x.phases_w = x.patch ? min(a.s, a.stride_w) : a.s;
    x.phase_stride_h = x.patch ? a.stride_h : a.r, x.phase_stride_w = x.patch ? a.stride_w : a.s;
    x.fills = x.phases_h * x.phases_w * x.chunks;
    x.products = a.r * a.s * x.chunks;
    x.along_m = a.launch[kRaster];

    int64_t tiles_m = ceil_div(x.rows, kM);
    x.fill_bytes = kM * kRowBytes;
    if (x.patch) {
      x.squares_h = a.launch[kSquaresH], x.squares_w = a.launch[kSquaresW], x.images = a.launch[kImages];
      if (x.squares_h * x.squares_w * x.images * 64 != kM || kClusterN > 1) return refused(out);
      if (a.stride_h > 1 && a.dilation_h > 1 || a.stride_w > 1 && a.dilation_w > 1) return refused(out);
      x.patch_h = 8 * x.squares_h + ((a.r - 1) / a.stride_h) * a.dilation_h;
      x.patch_w = 8 * x.squares_w + ((a.s - 1) / a.stride_w) * a.dilation_w;
      x.patches_h = ceil_div(a.p, 8 * x.squares_h), x.patches_w = ceil_div(a.q, 8 * x.squares_w);
      tiles_m = ceil_div(a.n, x.images) * x.patches_h * x.patches_w;
      x.fill_bytes = x.images * x.patch_h * x.patch_w * kRowBytes;
      if ((x.patch_h - 1) * a.stride_h >= 256 || (x.patch_w - 1) * a.stride_w >= 256) return refused(out);
    }
    x.activation_bytes = ceil_div(x.fill_bytes, 1024) * 1024;
    x.activation_slots = a.launch[kActivationSlots];
    x.resident = a.launch[kWeightSlots] == 0;
    x.weight_slots = x.resident ? x.products : a.launch[kWeightSlots];

    x.tiles_n = ceil_div(a.k, kN);
    x.cluster_rows = ceil_div(tiles_m, kClusterM), x.cluster_columns = ceil_div(x.tiles_n, kClusterN);
    x.cluster_tiles = x.cluster_rows * x.cluster_columns;
    int clusters = x.cluster_tiles;
    if (a.launch[kGrid] && kSlices == 1) clusters = min(clusters, max(1, a.launch[kGrid] / kCluster));
    if (x.resident && clusters < x.cluster_tiles) {  // a block keeps its column
      clusters = max(clusters / x.cluster_columns, 1) * x.cluster_columns;
      x.along_m = 0;
    }
    for (int i = 0; i < AT_MAX_SCALARS; ++i) x.scalars[i] = a.scalars[i];

    const int64_t shared = 1024 + 8 * kGroups + (int64_t)x.activation_slots * (x.activation_bytes + 16) +
                           (int64_t)x.weight_slots * (kWeightBytes + 16);
    const bool fits = shared <= 232448 && (kSlices == 1 || kM * kN * 4 <= x.activation_slots * x.activation_bytes +
                                                                              x.weight_slots * kWeightBytes);
    if (!fits || a.groups != 1 || a.c % 8 || a.k % 8 || x.activation_slots < 1 || kSlices > x.fills)
      return refused(out);
    prepared(out, x, clusters * kCluster, 1, 1, kThreads, (int)shared, 0);

    constexpr int kBytes = sizeof(Element);
    const uint64_t c = a.c, h = a.h, w = a.w, n = a.n, taps = a.r * a.s, padded_k = ceil_div(a.k, 32) * 32;
    constexpr uint32_t kPixels = kM / kClusterN;
    out->tensor_map_count = 2;
    at_tensor_map activation{kActivationMap, kX, Config::kMapElement, kSwizzle};
    if (x.pointwise) {
      describe(activation, {c, (uint64_t)x.rows}, {kK, kPixels}, {1, 1}, kBytes);
    } else {
      const uint32_t step_h = a.stride_h, step_w = a.stride_w;
      const uint32_t box_h = (x.patch_h - 1) * step_h + 1, box_w = (x.patch_w - 1) * step_w + 1;
      describe(activation, {c, w, h, n}, {kK, box_w, box_h, (uint32_t)x.images}, {1, step_w, step_h, 1}, kBytes);
    }
    if (!x.patch && !x.pointwise) {
      activation.pixels = kPixels;
      activation.lower[0] = -a.pad_w, activation.upper[0] = a.pad_w - (a.s - 1) * a.dilation_w;
      activation.lower[1] = -a.pad_h, activation.upper[1] = a.pad_h - (a.r - 1) * a.dilation_h;
    }
    at_tensor_map weight{kWeightMap, kWeight, Config::kMapElement, kSwizzle};
    describe(weight, {c, taps, padded_k}, {kK, 1, kN / kClusterM}, {1, 1, 1}, kBytes);
    out->tensor_maps[0] = activation;
    out->tensor_maps[1] = weight;
  }

  // ---- The kernel ----

  AT_DEVICE static void run(const Params& x, char* memory) {
    const Layout at(x, hopper::shared_address(memory));
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
      for (int i = 0; i < x.activation_slots; ++i) {
        hopper::init_barrier(at.activation_full + 8 * i, 1);
        hopper::init_barrier(at.activation_empty + 8 * i, kTeam * kClusterN);
      }
      for (int i = 0; i < x.weight_slots; ++i) {
        hopper::init_barrier(at.weight_full + 8 * i, 1);
        hopper::init_barrier(at.weight_empty + 8 * i, kTeam * kClusterM);
      }
      for (int i = 0; i < kGroups; ++i) hopper::init_barrier(at.turn + 8 * i, 1);
      hopper::publish_barriers();
    }
    if constexpr (kCluster > 1) hopper::sync_cluster();
    else __syncthreads();

    const int rank = kCluster > 1 ? (int)hopper::rank_in_cluster() : 0;
    const Member me{rank % kClusterM, rank / kClusterM % kClusterN, rank / (kClusterM * kClusterN)};
    if (warp < 4 * kGroups) {
      multiply_all(x, at, me);
    } else {
      if (threadIdx.x == 128 * kGroups) load_activations(x, at, me);
      if (threadIdx.x == 128 * kGroups + 32) load_weights(x, at, me);
      __syncwarp();
      if constexpr (kSlices > 1) hopper::sync_cluster(), hopper::sync_cluster();
    }
    // A block must not end while another may still write into its memory.
    if constexpr (kCluster > 1 && kSlices == 1) hopper::sync_cluster();
  }

 private:
  static constexpr int kSwizzle = kRowBytes == 128 ? 3 : kRowBytes == 64 ? 2 : 1;  // CUtensorMapSwizzle
  static constexpr int kActivationMap = 0, kWeightMap = 128;                       // in Params

  struct Member {
    int m, n, slice;
    AT_DEVICE int rank(int other_m, int other_n, int other_slice) const {
      return (other_slice * kClusterN + other_n) * kClusterM + other_m;
    }
  };

  // Addresses in shared memory.
  struct Layout {
    uint32_t activations, weights, activation_full, activation_empty, weight_full, weight_empty, turn;
    AT_DEVICE Layout(const Params& x, uint32_t memory) {
      activations = (memory + 1023) / 1024 * 1024;
      weights = activations + x.activation_slots * x.activation_bytes;
      activation_full = weights + x.weight_slots * kWeightBytes;
      activation_empty = activation_full + 8 * x.activation_slots;
      weight_full = activation_empty + 8 * x.activation_slots;
      weight_empty = weight_full + 8 * x.weight_slots;
      turn = weight_empty + 8 * x.weight_slots;
    }
  };

  struct Tile {
    int m, n;
    AT_DEVICE Tile(const Params& x, const Member& me, int index) {
      const int row = x.along_m ? index % x.cluster_rows : index / x.cluster_columns;
      const int column = x.along_m ? index / x.cluster_rows : index % x.cluster_columns;
      m = row * kClusterM + me.m;
      n = column * kClusterN + me.n;
    }
  };

  template <int rank>
  AT_DEVICE static void describe(at_tensor_map& map, const uint64_t (&sizes)[rank], const uint32_t (&box)[rank],
                                 const uint32_t (&element_strides)[rank], int bytes) {
    map.rank = rank;
    uint64_t stride = bytes;
    for (int i = 0; i < rank; ++i) {
      map.sizes[i] = sizes[i], map.box[i] = box[i], map.element_strides[i] = element_strides[i];
      stride *= sizes[i];
      if (i + 1 < rank) map.strides[i] = stride;
    }
  }

  AT_DEVICE static int first_tile() { return blockIdx.x / kCluster; }
  AT_DEVICE static int tile_step() { return gridDim.x / kCluster; }
  AT_DEVICE static int first_fill(const Params& x, int slice) { return x.fills * slice / kSlices; }

  AT_DEVICE static void load_activations(const Params& x, const Layout& at, const Member& me) {
    hopper::prefetch_map(x.activation_map);
    constexpr int kPixels = kM / kClusterN;
    uint16_t peers = 0;
    if constexpr (kClusterN > 1)
      for (int i = 0; i < kClusterN; ++i) peers |= 1 << me.rank(me.m, i, me.slice);
    const int last_fill = first_fill(x, me.slice + 1);
    Ring ring{0, 1};
    wait_for_previous();
    for (int index = first_tile(); index < x.cluster_tiles; index += tile_step()) {
      const Tile tile(x, me, index);
      int w, h, n;
      const int pixel = tile.m * kM + me.n * kPixels;
      if (x.patch) {
        n = tile.m / (x.patches_h * x.patches_w) * x.images;
        h = tile.m / x.patches_w % x.patches_h * 8 * x.squares_h * x.stride_h - x.pad_h;
        w = tile.m % x.patches_w * 8 * x.squares_w * x.stride_w - x.pad_w;
      } else if (!x.pointwise) {
        n = pixel / (x.out_h * x.out_w);
        h = pixel / x.out_w % x.out_h * x.stride_h - x.pad_h;
        w = pixel % x.out_w * x.stride_w - x.pad_w;
      }
      int fill = first_fill(x, me.slice);
      int chunk = fill % x.chunks, phase_w = fill / x.chunks % x.phases_w, phase_h = fill / x.chunks / x.phases_w;
      for (; fill < last_fill; ++fill) {
        const uint32_t full = at.activation_full + 8 * ring.slot;
        hopper::wait(at.activation_empty + 8 * ring.slot, ring.parity);
        hopper::expect_bytes(full, x.fill_bytes);
        const uint32_t to = at.activations + ring.slot * x.activation_bytes + me.n * kPixels * kRowBytes;
        if (x.patch)
          hopper::load_4d(to, x.activation_map, full, chunk * kK, w + phase_w, h + phase_h, n);
        else if (x.pointwise)
          hopper::load_2d(to, x.activation_map, full, chunk * kK, pixel, peers);
        else
          hopper::load_im2col(to, x.activation_map, full, chunk * kK, w, h, n, phase_w * x.dilation_w,
                              phase_h * x.dilation_h, peers);
        ring.advance(x.activation_slots);
        if (++chunk == x.chunks) {
          chunk = 0;
          if (++phase_w == x.phases_w) phase_w = 0, ++phase_h;
        }
      }
    }
    launch_next();
  }

  AT_DEVICE static void load_weights(const Params& x, const Layout& at, const Member& me) {
    hopper::prefetch_map(x.weight_map);
    constexpr int kRows = kN / kClusterM;
    uint16_t peers = 0;
    if constexpr (kClusterM > 1)
      for (int i = 0; i < kClusterM; ++i) peers |= 1 << me.rank(i, me.n, me.slice);
    const int last_fill = first_fill(x, me.slice + 1);
    Ring ring{0, 1};
    for (int index = first_tile(); index < x.cluster_tiles; index += tile_step()) {
      const Tile tile(x, me, index);
      int fill = first_fill(x, me.slice);
      int chunk = fill % x.chunks, phase_w = fill / x.chunks % x.phases_w, phase_h = fill / x.chunks / x.phases_w;
      for (; fill < last_fill; ++fill) {
        for (int r = phase_h; r < x.r; r += x.phase_stride_h)
          for (int s = phase_w; s < x.s; s += x.phase_stride_w) {
            const uint32_t full = at.weight_full + 8 * ring.slot;
            hopper::wait(at.weight_empty + 8 * ring.slot, ring.parity);
            hopper::expect_bytes(full, kWeightBytes);
            hopper::load_3d(at.weights + ring.slot * kWeightBytes + me.m * kRows * kRowBytes, x.weight_map, full,
                            chunk * kK, r * x.s + s, tile.n * kN + me.m * kRows, peers);
            ring.advance(x.weight_slots);
          }
        if (++chunk == x.chunks) {
          chunk = 0;
          if (++phase_w == x.phases_w) phase_w = 0, ++phase_h;
        }
      }
      if (x.resident) break;
    }
    launch_next();
  }

  // Tells the blocks that fill a buffer that this warpgroup is done with it.
  AT_DEVICE static void release_activation(const Layout& at, const Member& me, int slot) {
    const int thread = threadIdx.x % 128;
    if constexpr (kClusterN == 1) {
      if (thread == 0) hopper::arrive(at.activation_empty + 8 * slot);
    } else {
      if (thread < kClusterN) hopper::arrive_at(at.activation_empty + 8 * slot, me.rank(me.m, thread, me.slice));
    }
  }

  AT_DEVICE static void release_weight(const Layout& at, const Member& me, int slot) {
    const int thread = threadIdx.x % 128;
    if constexpr (kClusterM == 1) {
      if (thread == 0) hopper::arrive(at.weight_empty + 8 * slot);
    } else {
      if (thread < kClusterM) hopper::arrive_at(at.weight_empty + 8 * slot, me.rank(thread, me.n, me.slice));
    }
  }

  AT_DEVICE static void multiply_all(const Params& x, const Layout& at, const Member& me) {
    const int group = threadIdx.x / 128;
    const int first_block = kPingpong ? 0 : group * kBlocks;
    int block_bytes[kBlocks];  // where each block of 64 rows begins in a fill
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      const int i = first_block + m;
      int row = 64 * i;
      if (x.patch) {
        const int square_w = i % x.squares_w, square_h = i / x.squares_w % x.squares_h;
        const int image = i / (x.squares_w * x.squares_h);
        row = (image * x.patch_h + 8 * square_h) * x.patch_w + 8 * square_w;
      }
      block_bytes[m] = row * kRowBytes;
    }
    const int group_bytes = (x.patch ? x.patch_w : 8) * kRowBytes;
    const int products = x.products;  // of a whole tile, unsplit
    const int begin = first_fill(x, me.slice), end = first_fill(x, me.slice + 1);

    Ring activation{0, 0}, weight{0, 0};
    int tiles = 0;
    wait_for_previous();
    for (int index = first_tile(); index < x.cluster_tiles; index += tile_step()) {
      if constexpr (kPingpong) {
        const int turn = tiles++;
        if (turn % kGroups != group) {
          activation.skip(x.fills, x.activation_slots);
          if (!x.resident) weight.skip(products, x.weight_slots);
          continue;
        }
        // A parity tells only neighbouring rounds of the rings apart, so a warpgroup enters them when the one before
        // has waited for all its fills; this also gives it the tensor cores to itself.
        hopper::wait(at.turn + 8 * group, (turn / kGroups & 1) ^ (group == 0));
      }
      if (x.resident) weight = Ring{0, 0};
      const Tile tile(x, me, index);
      float sums[kBlocks][kN / 2];
      int accumulate = 0, used_activation = -1, used_weight = -1;
      int fill = begin;
      int phase_w = fill / x.chunks % x.phases_w, phase_h = fill / x.chunks / x.phases_w, chunk = fill % x.chunks;
      for (; fill < end; ++fill) {
        hopper::wait(at.activation_full + 8 * activation.slot, activation.parity);
        const uint32_t fill_address = at.activations + activation.slot * x.activation_bytes;
        int tap_row = 0;
        for (int r = phase_h; r < x.r; r += x.phase_stride_h, tap_row += x.dilation_h) {
          int tap = tap_row * x.patch_w;
          for (int s = phase_w; s < x.s; s += x.phase_stride_w, tap += x.dilation_w) {
            hopper::wait(at.weight_full + 8 * weight.slot, weight.parity);
            const uint64_t b = hopper::operand<kRowBytes>(at.weights + weight.slot * kWeightBytes, 8 * kRowBytes);
            const uint64_t a = hopper::operand<kRowBytes>(fill_address + tap * kRowBytes, group_bytes);
#pragma unroll
            for (int m = 0; m < kBlocks; ++m) hopper::pin(sums[m]);
            hopper::begin_products();
#pragma unroll
            for (int k = 0; k < kK / 16; ++k) {
#pragma unroll
              for (int m = 0; m < kBlocks; ++m)
                Config::multiply(sums[m], a + ((block_bytes[m] + 32 * k) >> 4), b + 2 * k, accumulate);
              accumulate = 1;
            }
            hopper::commit_products();
#pragma unroll
            for (int m = 0; m < kBlocks; ++m) hopper::pin(sums[m]);
            hopper::wait_for_products<1>();
            if (used_weight >= 0) release_weight(at, me, used_weight);
            if (used_activation >= 0) release_activation(at, me, used_activation), used_activation = -1;
            used_weight = x.resident ? -1 : weight.slot;
            weight.advance(x.weight_slots);
          }
        }
        used_activation = activation.slot;
        activation.advance(x.activation_slots);
        if (x.activation_slots == 1) {  // the next fill waits for this very buffer
          hopper::wait_for_products<0>();
          release_activation(at, me, used_activation), used_activation = -1;
        }
        if (++chunk == x.chunks) {
          chunk = 0;
          if (++phase_w == x.phases_w) phase_w = 0, ++phase_h;
        }
      }
      if constexpr (kPingpong) {
        if (threadIdx.x % 128 == 0) hopper::arrive(at.turn + 8 * ((group + 1) % kGroups));
      }
      hopper::wait_for_products<0>();
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) hopper::pin(sums[m]);
      if (used_weight >= 0) release_weight(at, me, used_weight);
      if (used_activation >= 0) release_activation(at, me, used_activation);
      if constexpr (kSlices > 1) gather_slices(at, me, sums);
      store_tile(x, me, tile, first_block, sums);
    }
    launch_next();
  }

  // A unit is eight neighbouring channels of one pixel: which of a thread's accumulators hold it.
  AT_DEVICE static void unit(int i, int& block, int& half, int& columns) {
    columns = i % (kN / 32), half = i / (kN / 32) % 2, block = i / (kN / 32) / 2;
  }

  // Each slice keeps a part of the tile's units, gets the others' sums of it and gives away the rest.
  AT_DEVICE static void gather_slices(const Layout& at, const Member& me, float (&sums)[kBlocks][kN / 2]) {
    constexpr int kOwn = kUnits / kSlices, kWide = 128 * kGroups;
    hopper::sync_cluster();  // all loads have been used: the rings are free
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      int m, half, columns;
      unit(i, m, half, columns);
      const int owner = i / kOwn;
      if (owner == me.slice) continue;
      const int to = me.rank(me.m, me.n, owner);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float* d = &sums[m][16 * columns + 8 * j + 2 * half];
        const uint32_t place = ((me.slice * kOwn + i % kOwn) * 2 + j) * kWide + threadIdx.x;
        hopper::store_in(at.activations + place * 16, to, make_float4(d[0], d[1], d[4], d[5]));
      }
    }
    hopper::sync_cluster();
    const uint32_t start = at.activations;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      int m, half, columns;
      unit(i, m, half, columns);
      if (i / kOwn != me.slice) continue;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float* d = &sums[m][16 * columns + 8 * j + 2 * half];
        float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
        for (int slice = 0; slice < kSlices; ++slice) {
          float4 part = make_float4(d[0], d[1], d[4], d[5]);
          if (slice != me.slice) {
            const uint32_t place = ((slice * kOwn + i % kOwn) * 2 + j) * kWide + threadIdx.x;
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(part.x), "=f"(part.y), "=f"(part.z), "=f"(part.w)
                         : "r"(start + place * 16));
          }
          total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
        }
        d[0] = total.x, d[1] = total.y, d[4] = total.z, d[5] = total.w;
      }
    }
  }

  // The place of an output pixel among all, or -1: row `row` of 64 in block `block` of a tile.
  AT_DEVICE static int64_t output_pixel(const Params& x, const Tile& tile, int block, int row) {
    if (!x.patch) {
      const int64_t pixel = (int64_t)tile.m * kM + 64 * block + row;
      return pixel < x.rows ? pixel : -1;
    }
    const int image = block / (x.squares_w * x.squares_h);
    const int n = tile.m / (x.patches_h * x.patches_w) * x.images + image;
    const int h = (tile.m / x.patches_w % x.patches_h * x.squares_h + block / x.squares_w % x.squares_h) * 8 + row / 8;
    const int w = (tile.m % x.patches_w * x.squares_w + block % x.squares_w) * 8 + row % 8;
    return n < x.n && h < x.out_h && w < x.out_w ? ((int64_t)n * x.out_h + h) * x.out_w + w : -1;
  }

  AT_DEVICE static void store_tile(const Params& x, const Member& me, const Tile& tile, int first_block,
                                   float (&sums)[kBlocks][kN / 2]) {
    constexpr int kOwn = kUnits / kSlices;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int first_channel = tile.n * kN + 8 * (lane % 4);
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t pixel = output_pixel(x, tile, first_block + m, 16 * warp + 8 * half + lane / 4);
        if (pixel < 0) continue;
#pragma unroll
        for (int columns = 0; columns < kN / 32; ++columns) {
          const int channel = first_channel + 32 * columns;
          const int i = (m * 2 + half) * (kN / 32) + columns;
          if (channel >= x.k || kSlices > 1 && i / kOwn != me.slice) continue;
          float v[kVector];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            v[2 * j] = sums[m][16 * columns + 4 * j + 2 * half];
            v[2 * j + 1] = sums[m][16 * columns + 4 * j + 2 * half + 1];
          }
          const int64_t offset = pixel * x.k + channel;
          Config::Steps::apply(v, x.p.p, x.scalars, channel, offset);
          store(v, (Element*)x.p.p[kY] + offset);
        }
      }
    }
  }
};

}  // namespace at
