// A persistent, warp-specialised implicit-GEMM convolution for Hopper: TMA loads, wgmma products, NHWC, groups = 1.
//
// One warp loads activations, one loads weights, and `kGroups` warpgroups multiply. Between them are rings of buffers in
// shared memory, so the loads of the next tile run during this tile's epilogue. Activations come in fills of kK
// channels, in one of two ways:
// - im2col: a fill is one filter tap of the tile's pixels, gathered by TMA;
// - patch: a fill is the input patch under the tile, with its halo, and serves all taps (of one phase of the stride): a
//   tap is a shift of the address that wgmma reads from. It reads the input from L2 once, not once a tap. The
//   tile's pixels form squares of 8 x 8, because wgmma takes rows in groups of eight at any constant distance.
// Weights are streamed, a tap's kK channels at a time, or resident: those of a tile column are loaded once and stay.
//
// A cluster of kClusterM x kClusterN tiles shares its loads by multicast. kSlices > 1 splits the channels and
// taps of one tile over blocks of a cluster, which add their sums through distributed shared memory in a fixed order.
//
// The weights' rows are permuted (layout "wgmma", fused_resnet/layout.py), so that each thread's accumulators are eight
// neighbouring channels of a pixel: the epilogue needs no exchange between threads.
//
// With a gate in the epilogue (problem conv2d_se) the steps before it are applied to the sums in registers, the tile's
// images are summed up, and the sums are scaled before the other steps: see gate.cuh.
#pragma once
#include "sm90/gate.cuh"
#include "sm90/hopper.cuh"

namespace at {

// Divides what is below 2^31 by a number known before the launch: a multiplication and a shift.
struct Divider {
  int divisor;
  uint32_t factor, shift;
  AT_DEVICE static Divider by(int divisor) {
    uint32_t log = 0;
    while ((1ll << log) < divisor) ++log;
    if (log == 0) return {divisor, 0, 0};
    return {divisor, (uint32_t)(((1ull << (31 + log)) + divisor - 1) / divisor), log - 1};
  }
  AT_DEVICE int quotient(int n) const { return divisor == 1 ? n : (int)(__umulhi(n, factor) >> shift); }
  AT_DEVICE int split(int n, int& remainder) const {
    const int q = quotient(n);
    remainder = n - q * divisor;
    return q;
  }
};

template <typename Config>
struct HopperConv2d {
  using Element = typename Config::Element;
  static constexpr int kM = Config::kM, kN = Config::kN, kK = Config::kK;
  static constexpr int kGroups = Config::kGroups, kSlices = Config::kSlices;
  static constexpr int kClusterM = Config::kClusterM, kClusterN = Config::kClusterN;
  static constexpr int kCluster = kClusterM * kClusterN * kSlices;
  static constexpr bool kPingpong = Config::kPingpong, kPatch = Config::kPatch, kResident = Config::kResident;
  static constexpr bool kJoint = !kPatch && !kResident;  // weights come with the activations, one tap with one fill
  static constexpr int kTeam = kPingpong ? 1 : kGroups;  // warpgroups that share a tile
  static constexpr int kBlocks = kM / kTeam / 64;        // wgmma's blocks of rows for each
  // Two warpgroups with many sums, and tensors read ahead, need more registers than an equal share: a whole warpgroup of
  // loading warps, two of them idle, gives its own away.
  static constexpr bool kMoves = Config::kMovesRegisters;
  static constexpr int kThreads = 128 * kGroups + (kMoves ? 128 : 64);
  static constexpr int kRowBytes = kK * (int)sizeof(Element);
  static constexpr int kWeightBytes = kN * kRowBytes;
  static constexpr int kVector = 8;
  // Where it is staged, the output goes through shared memory, 16 pixels of a warp at a time, and out by TMA in whole
  // lines; else straight from registers, which takes less time to begin with.
  static constexpr int kStages = 2;
  static constexpr int kStageChannels = kN % 64 == 0 ? 64 : 32;
  static constexpr int kStageBytes = 16 * kStageChannels * (int)sizeof(Element);
  static constexpr int kPieces = kN / kStageChannels * kBlocks;  // of a warp, in a tile
  // A tensor that the epilogue adds can come the same way: each warp loads its pieces ahead of their use, also those of
  // its next tile, so that memory is kept busy while the tensor cores are.
  static constexpr bool kAhead = Config::kAddedPointer >= 0 && !Config::kGated && kSlices == 1;
  static constexpr int kUnits = kBlocks * 2 * (kN / 32);  // of eight channels, for each thread
  static constexpr int kOwnN = kN / kSlices, kOwnColumns = kOwnN / 32;  // of a split tile, in the end
  static constexpr bool kGated = Config::kGated;
  using Excitation = Gate<Element, kM, kOwnN, kClusterN * kSlices, 128 * kGroups>;
  // Places of the pointers: Problem.operands() of conv2d, or of conv2d_se.
  enum { kX = 0, kWeight = 1, kFirstGate = 2, kY = kGated ? 6 : 2 };
  static_assert(kM % (64 * kTeam) == 0 && kN % 32 == 0 && kUnits % kSlices == 0, "no such tile");
  static_assert(kSlices == 1 || !kPingpong && kJoint, "a split tile belongs to the whole block, and streams");
  static_assert(kClusterN == 1 || kJoint, "only pixels gathered by TMA are shared");
  static_assert(!kGated || !kPingpong && kClusterM == 1 && kUnits / kSlices % (2 * kBlocks) == 0,
                "a gated tile belongs to the whole block, and a slice of it to whole columns");

  enum Launch { kFillSlots, kWeightSlots, kGrid, kRaster, kSquaresH, kSquaresW, kImages, kStaging };

  struct alignas(64) Params {
    uint8_t activation_map[128], weight_map[128], output_map[128], added_map[128];
    int pointwise, along_m, staging_bytes;
    int ahead;  // pieces of the added tensor for which each warp has room; 0: it is read when it is needed
    int n, out_h, out_w, k, rows;
    int cluster_tiles;
    Divider cluster_rows, cluster_columns, out_area, out_width;  // out_*: of pixels, or of patches
    int chunks, r, s, phases_h, phases_w;
    int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    int fills;  // of one tile
    int fill_slots, slot_bytes, fill_bytes, weight_slots;
    int squares_h, squares_w, patch_h, patch_w, images;
    int pixels, hidden, gate_bytes;  // of the gate
    float scalars[AT_MAX_SCALARS];
    at_pointers p;
  };

  // ---- Before the launch ----

  // hidden: of the gate; 0 without one.
  template <typename Problem>
  AT_DEVICE static void prepare(const Problem& a, int hidden, at_prepared* out) {
    Params x{};
    if constexpr (kGated) {
      const Excitation gate(a.p * a.q, hidden);
      const bool whole = !kPatch || a.p == 8 * a.launch[kSquaresH] && a.q == 8 * a.launch[kSquaresW];
      if (!gate.fits() || !whole || a.launch[kGrid] || a.launch[kStaging] || ceil_div(a.k, kN) != kClusterN)
        return refused(out);
      x.pixels = a.p * a.q, x.hidden = hidden, x.gate_bytes = ceil_div(gate.bytes(), 128) * 128;
    }
    x.pointwise = !kPatch && a.r * a.s == 1 && a.stride_h * a.stride_w == 1 && a.pad_h + a.pad_w == 0;
    x.n = a.n, x.out_h = a.p, x.out_w = a.q, x.k = a.k, x.rows = a.n * a.p * a.q;
    x.r = a.r, x.s = a.s;
    x.stride_h = a.stride_h, x.stride_w = a.stride_w, x.pad_h = a.pad_h, x.pad_w = a.pad_w;
    x.dilation_h = a.dilation_h, x.dilation_w = a.dilation_w;
    x.chunks = ceil_div(a.c, kK);
    x.phases_h = kPatch ? min(a.r, a.stride_h) : a.r, x.phases_w = kPatch ? min(a.s, a.stride_w) : a.s;
    x.fills = x.phases_h * x.phases_w * x.chunks;
    x.along_m = a.launch[kRaster];
    for (int i = 0; i < AT_MAX_SCALARS; ++i) x.scalars[i] = a.scalars[i];

    int64_t tiles_m = ceil_div(x.rows, kM);
    x.fill_bytes = kM * kRowBytes;
    x.out_area = Divider::by(a.p * a.q), x.out_width = Divider::by(a.q);
    if (kPatch) {
      x.squares_h = a.launch[kSquaresH], x.squares_w = a.launch[kSquaresW], x.images = a.launch[kImages];
      if (x.squares_h * x.squares_w * x.images * 64 != kM) return refused(out);
      if (a.stride_h > 1 && a.dilation_h > 1 || a.stride_w > 1 && a.dilation_w > 1) return refused(out);
      // The first phase has the most taps.
      x.patch_h = 8 * x.squares_h + (ceil_div(a.r, x.phases_h) - 1) * a.dilation_h;
      x.patch_w = 8 * x.squares_w + (ceil_div(a.s, x.phases_w) - 1) * a.dilation_w;
      const int patches_h = ceil_div(a.p, 8 * x.squares_h), patches_w = ceil_div(a.q, 8 * x.squares_w);
      x.out_area = Divider::by(patches_h * patches_w), x.out_width = Divider::by(patches_w);
      tiles_m = ceil_div(a.n, x.images) * patches_h * patches_w;
      x.fill_bytes = x.images * x.patch_h * x.patch_w * kRowBytes;
      if ((x.patch_h - 1) * a.stride_h >= 256 || (x.patch_w - 1) * a.stride_w >= 256) return refused(out);
    }
    x.ahead = a.launch[kStaging] > 1 ? a.launch[kStaging] : 0;
    x.staging_bytes = a.launch[kStaging] ? kGroups * 4 * (kStages + x.ahead) * kStageBytes : 0;
    x.fill_slots = a.launch[kFillSlots];
    x.slot_bytes = ceil_div(x.fill_bytes, 1024) * 1024 + (kJoint ? kWeightBytes : 0);
    x.weight_slots = kResident ? a.r * a.s * x.chunks : kPatch ? a.launch[kWeightSlots] : 0;

    const int columns = ceil_div(ceil_div(a.k, kN), kClusterN);
    x.cluster_rows = Divider::by(ceil_div(tiles_m, kClusterM)), x.cluster_columns = Divider::by(columns);
    x.cluster_tiles = x.cluster_rows.divisor * columns;
    int clusters = x.cluster_tiles;
    if (a.launch[kGrid] && kSlices == 1) clusters = min(clusters, max(1, a.launch[kGrid] / kCluster));
    if (kResident && clusters < x.cluster_tiles) {  // a block keeps its column
      clusters = max(clusters / columns, 1) * columns;
      x.along_m = 0;
    }

    const int64_t shared = 1024 + x.staging_bytes + x.gate_bytes + 8 * (kGroups + 2 + kGroups * 4 * x.ahead) + (int64_t)x.fill_slots * (x.slot_bytes + 16) +
                           (int64_t)x.weight_slots * (kWeightBytes + 16);
    const bool fits = shared <= 232448 && (kSlices == 1 || kM * kN * 4 <= x.fill_slots * x.slot_bytes);
    const bool counts = x.fill_slots >= 1 && x.fill_slots <= 32 && (kResident || x.weight_slots <= 32) && kSlices <= x.fills;
    if (!fits || !counts || a.groups != 1 || a.c % 8 || a.k % 8 || kSlices > 1 && x.staging_bytes || x.ahead > (kAhead ? 8 : 0))
      return refused(out);
    prepared(out, x, clusters * kCluster, 1, 1, kThreads, (int)shared, 0);

    const uint64_t c = a.c, h = a.h, w = a.w, n = a.n, taps = a.r * a.s, padded_k = ceil_div(a.k, 32) * 32;
    constexpr uint32_t kPixels = kM / kClusterN;
    out->tensor_map_count = 2;
    at_tensor_map activation{kActivationMap, kX, Config::kMapElement, kSwizzle};
    if (x.pointwise) {
      hopper::describe<Element>(activation, {c, (uint64_t)x.rows}, {kK, kPixels}, {1, 1});
    } else {
      const uint32_t step_h = a.stride_h, step_w = a.stride_w;
      const uint32_t box_h = (x.patch_h - 1) * step_h + 1, box_w = (x.patch_w - 1) * step_w + 1;
      hopper::describe<Element>(activation, {c, w, h, n}, {kK, box_w, box_h, (uint32_t)x.images}, {1, step_w, step_h, 1});
    }
    if (!kPatch && !x.pointwise) {
      activation.pixels = kPixels;
      activation.lower[0] = -a.pad_w, activation.upper[0] = a.pad_w - (a.s - 1) * a.dilation_w;
      activation.lower[1] = -a.pad_h, activation.upper[1] = a.pad_h - (a.r - 1) * a.dilation_h;
    }
    at_tensor_map weight{kWeightMap, kWeight, Config::kMapElement, kSwizzle};
    hopper::describe<Element>(weight, {c, taps, padded_k}, {kK, 1, kN / kClusterM}, {1, 1, 1});
    out->tensor_maps[0] = activation;
    out->tensor_maps[1] = weight;
    if (x.staging_bytes) {
      out->tensor_map_count = 3;
      at_tensor_map output{kOutputMap, kY, Config::kMapElement, kStageChannels == 64 ? 3 : 2};
      const uint64_t k = a.k, p = a.p, q = a.q;
      if (kPatch) hopper::describe<Element>(output, {k, q, p, n}, {kStageChannels, 8, 2, 1}, {1, 1, 1, 1});
      else hopper::describe<Element>(output, {k, (uint64_t)x.rows}, {kStageChannels, 16}, {1, 1});
      out->tensor_maps[2] = output;
      if (x.ahead) {
        out->tensor_map_count = 4;
        output.params_offset = kAddedMap, output.pointer = Config::kAddedPointer;
        out->tensor_maps[3] = output;
      }
    }
  }

  // ---- The kernel ----

  AT_DEVICE static void run(const Params& x, char* memory) {
    const Layout at(x, hopper::shared_address(memory));
    if (threadIdx.x < 32) {  // a warp has room for every barrier: at most 32 of a kind
      const int i = threadIdx.x;
      constexpr int kPeers = kJoint ? kClusterM + kClusterN - 1 : 1;
      if (i < x.fill_slots) {
        hopper::init_barrier(at.full + 8 * i, kJoint ? 2 : 1);
        hopper::init_barrier(at.empty + 8 * i, kTeam * kPeers);
      }
      if (i < (kResident ? 1 : x.weight_slots)) {
        hopper::init_barrier(at.weight_full + 8 * i, 1);
        hopper::init_barrier(at.weight_empty + 8 * i, kTeam * kClusterM);
      }
      if (i <= kGroups) hopper::init_barrier(at.turn + 8 * i, kPingpong ? 4 : 1);
      for (int j = i; j < 4 * kGroups * x.ahead; j += 32) hopper::init_barrier(at.added_full + 8 * j, 1);
      hopper::publish_barriers();
    }
    if constexpr (kCluster > 1) hopper::sync_cluster();
    else __syncthreads();

    const int rank = kCluster > 1 ? (int)hopper::rank_in_cluster() : 0;
    const Member me{rank % kClusterM, rank / kClusterM % kClusterN, rank / (kClusterM * kClusterN)};
    const int warp = hopper::uniform(threadIdx.x / 32);
    if (warp < 4 * kGroups) {
      if constexpr (kMoves) hopper::take_registers<232>();
      multiply_all(x, at, me);
    } else {
      if constexpr (kMoves) hopper::give_registers<40>();
      if (hopper::elect()) {
        if (warp == 4 * kGroups) load_activations(x, at, me);
        else if (warp == 4 * kGroups + 1) load_weights(x, at, me);
      }
      __syncwarp();
      if constexpr (kSlices > 1) hopper::sync_cluster();
    }
  }

 private:
  static constexpr int kSwizzle = hopper::swizzle_of(kRowBytes);
  static constexpr int kActivationMap = 0, kWeightMap = 128, kOutputMap = 256, kAddedMap = 384;  // in Params

  struct Member {
    int m, n, slice;
    AT_DEVICE int rank(int other_m, int other_n, int other_slice) const {
      return (other_slice * kClusterN + other_n) * kClusterM + other_m;
    }
  };

  // Addresses in shared memory. A joint slot holds a fill, then its weights.
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
    AT_DEVICE Tile(const Params& x, const Member& me, int index) {
      int row, column;
      if (x.along_m) column = x.cluster_rows.split(index, row);
      else row = x.cluster_columns.split(index, column);
      m = row * kClusterM + me.m;
      n = column * kClusterN + me.n;
    }
  };

  // The filter taps and channels that a fill stands for, in the order in which all roles take them.
  struct Place {
    int chunk, phase_w, phase_h;
    AT_DEVICE Place(const Params& x, int fill) {
      if (kSlices == 1) {
        chunk = phase_w = phase_h = 0;
      } else {
        chunk = fill % x.chunks, phase_w = fill / x.chunks % x.phases_w, phase_h = fill / x.chunks / x.phases_w;
      }
    }
    AT_DEVICE void advance(const Params& x) {
      if (++chunk < x.chunks) return;
      chunk = 0;
      if (++phase_w < x.phases_w) return;
      phase_w = 0, ++phase_h;
    }
  };

  AT_DEVICE static int first_tile() { return blockIdx.x / kCluster; }
  AT_DEVICE static int tile_step() { return gridDim.x / kCluster; }
  AT_DEVICE static int first_fill(const Params& x, int slice) { return x.fills * slice / kSlices; }

  AT_DEVICE static void load_activations(const Params& x, const Layout& at, const Member& me) {
    constexpr int kPixels = kM / kClusterN;
    uint16_t peers = 0;
    if constexpr (kClusterN > 1)
      for (int i = 0; i < kClusterN; ++i) peers |= 1 << me.rank(me.m, i, me.slice);
    const int begin = first_fill(x, me.slice), end = first_fill(x, me.slice + 1);
    Ring ring{0, 1};
    hopper::prefetch_map(x.activation_map);
    wait_for_previous();
    for (int index = first_tile(); index < x.cluster_tiles; index += tile_step()) {
      const Tile tile(x, me, index);
      const int pixel = tile.m * kM + me.n * kPixels;
      int n, h, w;
      if (kPatch) {
        n = x.out_area.split(tile.m, h) * x.images;
        h = x.out_width.split(h, w);
        h = h * 8 * x.squares_h * x.stride_h - x.pad_h, w = w * 8 * x.squares_w * x.stride_w - x.pad_w;
      } else if (!x.pointwise) {
        n = x.out_area.split(pixel, h);
        h = x.out_width.split(h, w);
        h = h * x.stride_h - x.pad_h, w = w * x.stride_w - x.pad_w;
      }
      Place place(x, begin);
      for (int fill = begin; fill < end; ++fill) {
        const uint32_t full = at.full + 8 * ring.slot;
        const uint32_t to = at.fills + ring.slot * x.slot_bytes + me.n * kPixels * kRowBytes;
        hopper::wait(at.empty + 8 * ring.slot, ring.parity);
        hopper::expect_bytes(full, x.fill_bytes);
        const int c = place.chunk * kK;
        if (kPatch)
          hopper::load_4d(to, x.activation_map, full, c, w + place.phase_w, h + place.phase_h, n);
        else if (x.pointwise)
          hopper::load_2d<(kClusterN > 1)>(to, x.activation_map, full, c, pixel, peers);
        else
          hopper::load_im2col<(kClusterN > 1)>(to, x.activation_map, full, c, w, h, n, place.phase_w * x.dilation_w,
                                               place.phase_h * x.dilation_h, peers);
        ring.advance(x.fill_slots);
        place.advance(x);
      }
    }
    launch_next();
    if constexpr (kClusterM * kClusterN > 1) drain(at.empty, ring, x.fill_slots);
  }

  // A block must not end while another may still arrive at its barriers.
  AT_DEVICE static void drain(uint32_t empties, Ring ring, int slots) {
    for (int i = 0; i < slots; ++i, ring.advance(slots)) hopper::wait(empties + 8 * ring.slot, ring.parity);
  }

  AT_DEVICE static void load_weights(const Params& x, const Layout& at, const Member& me) {
    constexpr int kRows = kN / kClusterM;
    constexpr bool kShared = kClusterM > 1;
    uint16_t peers = 0;
    if constexpr (kShared)
      for (int i = 0; i < kClusterM; ++i) peers |= 1 << me.rank(i, me.n, me.slice);
    const int begin = first_fill(x, me.slice), end = first_fill(x, me.slice + 1);
    const int slots = kJoint ? x.fill_slots : x.weight_slots;
    const int slot_bytes = kJoint ? x.slot_bytes : kWeightBytes;
    const uint32_t fulls = kJoint ? at.full : at.weight_full, empties = kJoint ? at.empty : at.weight_empty;
    Ring ring{0, 1};
    hopper::prefetch_map(x.weight_map);
    if (kResident) hopper::expect_bytes(at.weight_full, x.weight_slots * kWeightBytes);
    for (int index = first_tile(); index < x.cluster_tiles; index += tile_step()) {
      const Tile tile(x, me, index);
      const int channel = tile.n * kN + me.m * kRows;
      Place place(x, begin);
      for (int fill = begin; fill < end; ++fill) {
        for (int r = place.phase_h; r < x.r; r += x.phases_h)
          for (int s = place.phase_w; s < x.s; s += x.phases_w) {
            const uint32_t full = kResident ? at.weight_full : fulls + 8 * ring.slot;
            if (!kResident) {
              hopper::wait(empties + 8 * ring.slot, ring.parity);
              hopper::expect_bytes(full, kWeightBytes);
            }
            hopper::load_3d<kShared>(at.weights + ring.slot * slot_bytes + me.m * kRows * kRowBytes, x.weight_map, full,
                                     place.chunk * kK, r * x.s + s, channel, peers);
            ring.advance(slots);
          }
        place.advance(x);
      }
      if (kResident) break;
    }
    launch_next();
    if constexpr (kShared && !kResident) drain(empties, ring, slots);
  }

  // Tells those who fill a buffer that this warpgroup is done with it: the loading warps of this block and, where loads
  // are shared, of the blocks that load into it.
  AT_DEVICE static void release_fill(const Layout& at, const Member& me, int slot) {
    const int thread = threadIdx.x % 128;
    if constexpr (kClusterM * kClusterN == 1 || !kJoint) {
      if (thread == 0) hopper::arrive(at.empty + 8 * slot);
    } else if (thread < kClusterM + kClusterN - 1) {
      const int other = thread - kClusterM;  // of the row's others, me left out
      const int to = thread < kClusterM ? me.rank(thread, me.n, me.slice)
                                        : me.rank(me.m, other + (other >= me.n), me.slice);
      hopper::arrive_at(at.empty + 8 * slot, to);
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

  using Sums = float[kBlocks][kN / 2];

  // The first operand's blocks of rows: where each begins in a fill, in units of 16 bytes, and the descriptor's half.
  struct Rows {
    uint32_t block[kBlocks], high;
    AT_DEVICE Rows(const Params& x, int first_block) {
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        const int i = first_block + m;
        int row = 64 * i;
        if (kPatch) {
          const int square_w = i % x.squares_w, square_h = i / x.squares_w % x.squares_h;
          const int image = i / (x.squares_w * x.squares_h);
          row = (image * x.patch_h + 8 * square_h) * x.patch_w + 8 * square_w;
        }
        block[m] = hopper::uniform(row * kRowBytes / 16);
      }
      high = hopper::high<kRowBytes>((kPatch ? x.patch_w : 8) * kRowBytes);
    }
  };

  // Adds the product of kK channels. a, b: low halves of the operands' descriptors.
  AT_DEVICE static void multiply(Sums& sums, const Rows& rows, uint32_t a, uint32_t b, int& accumulate) {
    const uint32_t b_high = hopper::high<kRowBytes>(8 * kRowBytes);
    hopper::begin_products();
#pragma unroll
    for (int k = 0; k < kK / 16; ++k) {
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
        Config::multiply(sums[m], hopper::descriptor(a + rows.block[m] + 2 * k, rows.high),
                         hopper::descriptor(b + 2 * k, b_high), accumulate);
      accumulate = 1;
    }
  }

  AT_DEVICE static void multiply_all(const Params& x, const Layout& at, const Member& me) {
    const int group = hopper::uniform(threadIdx.x / 128);
    const int first_block = kPingpong ? 0 : group * kBlocks;
    const Rows rows(x, first_block);
    const int fills = first_fill(x, me.slice + 1) - first_fill(x, me.slice);
    const uint32_t fill_low = hopper::low(at.fills), weight_low = hopper::low(at.weights);
    constexpr int kWeightStep = kWeightBytes / 16;

    Ring ring{0, 0}, weight{0, 0};
    Added added{first_tile() + (kPingpong ? group * tile_step() : 0), 0, {0, 0}};
    int tiles = 0;
    touch_parameters(x, Tile(x, me, first_tile()));
    if constexpr (kGated)
      excitation(x).load_weights(gate_memory(at), x.p.p + kFirstGate, own_channel(me, Tile(x, me, first_tile())), x.k);
    wait_for_previous();
    if constexpr (kAhead) {
      Ring slot{0, 0};
      for (int i = 0; i < x.ahead; ++i, slot.advance(x.ahead)) load_added(x, at, me, first_block, added, slot.slot);
    }
    if (kResident) hopper::wait(at.weight_full, 0);
    for (int index = first_tile(); index < x.cluster_tiles; index += tile_step()) {
      if constexpr (kPingpong) {
        const int turn = tiles++;
        if (turn % kGroups != group) {
          ring.skip(x.fills, x.fill_slots);
          if (kPatch && !kResident) weight.skip(x.r * x.s * x.chunks, x.weight_slots);
          continue;
        }
        // A parity tells only neighbouring rounds of the rings apart, so a warpgroup enters them when the one before
        // has waited for all its fills; this also gives it the tensor cores to itself.
        hopper::wait(at.turn + 8 * group, (turn / kGroups & 1) ^ (group == 0));
      }
      Sums sums;
      int accumulate = 0, used = -1, used_weight = -1;
      uint32_t resident = weight_low;
      Place place(x, 0);  // only counted where there is no split
      hopper::pin(sums);
      for (int i = 0; i < fills; ++i) {
        hopper::wait(at.full + 8 * ring.slot, ring.parity);
        const uint32_t a = fill_low + ring.slot * (x.slot_bytes >> 4);
        if constexpr (kJoint) {
          multiply(sums, rows, a, weight_low + ring.slot * (x.slot_bytes >> 4), accumulate);
          hopper::commit_products();
        } else if constexpr (!kPatch) {
          multiply(sums, rows, a, resident, accumulate);
          hopper::commit_products();
          resident += kWeightStep;
        } else {
          uint32_t line = a;
          for (int r = place.phase_h; r < x.r; r += x.phases_h, line += x.dilation_h * x.patch_w * (kRowBytes / 16)) {
            uint32_t tap = line;
            for (int s = place.phase_w; s < x.s; s += x.phases_w, tap += x.dilation_w * (kRowBytes / 16)) {
              if constexpr (kResident) {
                multiply(sums, rows, tap, resident, accumulate);
                resident += kWeightStep;
              } else {
                hopper::wait(at.weight_full + 8 * weight.slot, weight.parity);
                      multiply(sums, rows, tap, weight_low + weight.slot * kWeightStep, accumulate);
                hopper::commit_products();
                hopper::wait_for_products<1>();
                if (used_weight >= 0) release_weight(at, me, used_weight);
                if (used >= 0) release_fill(at, me, used), used = -1;
                used_weight = weight.slot;
                weight.advance(x.weight_slots);
              }
            }
          }
          if constexpr (kResident) hopper::commit_products();
          place.advance(x);
        }
        // The next fill waits for this very buffer, or the one before is no longer read.
        const bool alone = x.fill_slots == 1;
        if (alone) hopper::wait_for_products<0>();
        else hopper::wait_for_products<1>();
        if (used >= 0) release_fill(at, me, used);
        used = alone ? -1 : ring.slot;
        if (alone) release_fill(at, me, ring.slot);
        ring.advance(x.fill_slots);
      }
      if constexpr (kPingpong) {
        // Every warp tells, so that none is left behind at the turn before.
        if (threadIdx.x % 32 == 0) hopper::arrive(at.turn + 8 * ((group + 1) % kGroups));
      }
      hopper::wait_for_products<0>();
      hopper::pin(sums);
      if (used_weight >= 0) release_weight(at, me, used_weight);
      if (used >= 0) release_fill(at, me, used);
      if (index + tile_step() >= x.cluster_tiles) launch_next();
      if constexpr (kSlices > 1) gather_slices(at, me, sums);
      const Tile tile(x, me, index);
      if constexpr (kGated) store_gated(x, at, me, tile, first_block, sums);
      else if (kSlices == 1 && x.staging_bytes) stage_tile(x, at, me, tile, first_block, sums, added);
      else store_tile(x, me, tile, first_block, sums);
    }
    hopper::wait_for_stores<0>();
  }

  // A unit is eight neighbouring channels of one pixel: which of a thread's accumulators hold it.
  AT_DEVICE static void unit(int i, int& block, int& half, int& columns) {
    columns = i / (2 * kBlocks), half = i % 2, block = i / 2 % kBlocks;
  }

  // Each slice keeps a part of the tile's units, gets the others' sums of it and gives away the rest.
  AT_DEVICE static void gather_slices(const Layout& at, const Member& me, Sums& sums) {
    constexpr int kOwn = kUnits / kSlices, kWide = 128 * kGroups;
    hopper::sync_cluster();  // all loads have been used: the rings are free
    if (threadIdx.x == 0) hopper::expect_bytes(at.turn, (kSlices - 1) * kOwn * 32 * kWide);
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
        hopper::send(at.fills + place * 16, at.turn, to, make_float4(d[0], d[1], d[4], d[5]));
      }
    }
    hopper::wait(at.turn, 0);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      int m, half, columns;
      unit(i, m, half, columns);
      if (i / kOwn != me.slice) continue;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float* d = &sums[m][16 * columns + 8 * j + 2 * half];
        const float4 own = make_float4(d[0], d[1], d[4], d[5]);
        float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int slice = 0; slice < kSlices; ++slice) {
          const uint32_t place = ((slice * kOwn + i % kOwn) * 2 + j) * kWide + threadIdx.x;
          const float4 part = slice == me.slice ? own : hopper::load_own(at.fills + place * 16);
          total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
        }
        d[0] = total.x, d[1] = total.y, d[4] = total.z, d[5] = total.w;
      }
    }
  }

  // ---- The gate ----

  AT_DEVICE static Excitation excitation(const Params& x) { return Excitation(x.pixels, x.hidden); }
  AT_DEVICE static char* gate_memory(const Layout& at) { return (char*)__cvta_shared_to_generic(at.gate); }
  AT_DEVICE static int own_channel(const Member& me, const Tile& tile) { return tile.n * kN + me.slice * kOwnN; }

  // Applies the steps before the gate to the sums, adds up each image's pixels, and finds the gates.
  AT_DEVICE static Excitation excite(const Params& x, const Layout& at, const Member& me, const Tile& tile,
                                     int first_block, Sums& sums) {
    // A mask, because of a comparison for equality the compiler would make an index of the sums: they would leave registers.
    const uint32_t own = kSlices == 1 ? ~0u : ((1u << kOwnColumns) - 1) << me.slice * kOwnColumns;
    const Excitation gate = excitation(x);
    char* memory = gate_memory(at);
    const int lane = threadIdx.x % 32, warp = hopper::uniform(threadIdx.x / 32) % 4;
    const int first_channel = tile.n * kN + 8 * (lane % 4);
#pragma unroll
    for (int columns = 0; columns < kN / 32; ++columns) {
      if (!(own >> columns & 1)) continue;
      const int channel = first_channel + 32 * columns;
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        float v[2][kVector];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          hopper::take(v[half], sums, m, half, columns);
          if (channel < x.k) Config::Steps::before(v[half], x.p.p, x.scalars, channel);
          hopper::put(v[half], sums, m, half, columns);
        }
        gate.collect(v, memory, 4 * (first_block + m) + warp, 32 * (columns % kOwnColumns) + 8 * (lane % 4));
      }
    }
    gate.excite(memory, own_channel(me, tile), x.k, me.n * kSlices + me.slice, at.gate_full,
                [&](int peer) { return me.rank(me.m, peer / kSlices, peer % kSlices); });
    return gate;
  }

  // The image and the square of 8 x 8 pixels that are a tile's block of 64 rows.
  AT_DEVICE static void square(const Params& x, const Tile& tile, int block, int& n, int& h, int& w) {
    n = x.out_area.split(tile.m, h) * x.images;
    h = x.out_width.split(h, w);
    if (kM == 64) return;
    n += block / (x.squares_w * x.squares_h);
    h = h * x.squares_h + block / x.squares_w % x.squares_h, w = w * x.squares_w + block % x.squares_w;
  }

  // The place of an output pixel among all, or -1: row `row` of 64 in block `block` of a tile.
  AT_DEVICE static int output_pixel(const Params& x, const Tile& tile, int block, int row) {
    if (!kPatch) {
      const int pixel = tile.m * kM + 64 * block + row;
      return pixel < x.rows ? pixel : -1;
    }
    int n, h, w;
    square(x, tile, block, n, h, w);
    h = 8 * h + row / 8, w = 8 * w + row % 8;
    return n < x.n && h < x.out_h && w < x.out_w ? (n * x.out_h + h) * x.out_w + w : -1;
  }

  // Brings the epilogue's vectors near while the first loads are on their way.
  AT_DEVICE static void touch_parameters(const Params& x, const Tile& tile) {
    const int channel = tile.n * kN + threadIdx.x % 32 * 8;  // a line of 32 floats by every fourth lane
    if (threadIdx.x % 4 == 0 && channel < min(x.k, tile.n * kN + kN)) Config::Steps::touch(x.p.p, channel);
  }

  // What a warp loads next of the added tensor, piece by piece, and which of its buffers it uses next.
  struct Added {
    int index, piece;
    Ring ring;
  };

  // Where a warp's piece of a tile is: piece / kBlocks counts its channels, piece % kBlocks its rows.
  template <typename Move>
  AT_DEVICE static void at_piece(const Params& x, const Tile& tile, int first_block, int piece, const Move& move) {
    const int warp = threadIdx.x / 32 % 4;
    const int channel = tile.n * kN + piece / kBlocks * kStageChannels, block = first_block + piece % kBlocks;
    if (kPatch) {
      int n, h, w;
      square(x, tile, block, n, h, w);
      move(channel, 8 * w, 8 * h + 2 * warp, n);
    } else {
      move(channel, tile.m * kM + 64 * block + 16 * warp, 0, 0);
    }
  }

  AT_DEVICE static void load_added(const Params& x, const Layout& at, const Member& me, int first_block, Added& next,
                                   int slot) {
    if (next.index >= x.cluster_tiles) return;
    const int warp = hopper::uniform(threadIdx.x / 32), buffer = warp * x.ahead + slot;
    if (hopper::elect()) {
      const uint32_t full = at.added_full + 8 * buffer, to = at.added + buffer * kStageBytes;
      hopper::expect_bytes(full, kStageBytes);
      at_piece(x, Tile(x, me, next.index), first_block, next.piece, [&](int c, int w, int h, int n) {
        if (kPatch) hopper::load_4d(to, x.added_map, full, c, w, h, n);
        else hopper::load_2d<false>(to, x.added_map, full, c, w, 0);
      });
    }
    __syncwarp();
    if (++next.piece == kPieces) next.piece = 0, next.index += tile_step() * (kPingpong ? kGroups : 1);
  }

  AT_DEVICE static void stage_tile(const Params& x, const Layout& at, const Member& me, const Tile& tile, int first_block,
                                   Sums& sums, Added& added) {
    constexpr int kColumns = kStageChannels / 32;
    const int lane = threadIdx.x % 32, warp = hopper::uniform(threadIdx.x / 32);
    int pixels[kBlocks][2];
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i)
      pixels[i / 2][i % 2] =
          Config::kAtPixels ? output_pixel(x, tile, first_block + i / 2, 16 * (warp % 4) + 8 * (i % 2) + lane / 4) : 0;
    auto channel_of = [&](int batch, int i) {
      return tile.n * kN + 32 * (batch / kBlocks * kColumns + i) + 8 * (lane % 4);
    };
    typename Config::Steps::Fetched fetched[2][2 * kColumns];
    auto fetch = [&](int batch) {
      if (kAhead && x.ahead) return;
#pragma unroll
      for (int i = 0; i < 2 * kColumns; ++i) {
        const int pixel = pixels[batch % kBlocks][i % 2], channel = channel_of(batch, i / 2);
        if (pixel >= 0 && channel < x.k)
          Config::Steps::fetch(fetched[batch % 2][i], x.p.p, (int64_t)pixel * x.k + channel);
      }
    };
    fetch(0);
#pragma unroll
    for (int batch = 0; batch < kPieces; ++batch) {
      const int chunk = batch / kBlocks, m = batch % kBlocks;
      const uint32_t buffer = at.staging + (kStages * warp + batch % kStages) * kStageBytes;
      if (batch + 1 < kPieces) fetch(batch + 1);
      // Until the buffer's last store has read it: kStages ago, or one of the tile before.
      if (batch == 0 && kPieces % kStages != 0) hopper::wait_for_stores<0>();
      else hopper::wait_for_stores<kStages - 1>();
      __syncwarp();
      // Of eight channels in a piece, which is swizzled as TMA has it.
      auto place_of = [&](int i) {
        const int row = 8 * (i % 2) + lane / 4, place = 4 * (i / 2) + lane % 4;
        return row * kStageChannels * (int)sizeof(Element) + 16 * (place ^ (kStageChannels == 64 ? row % 8 : row / 2 % 4));
      };
      if constexpr (kAhead) {
        if (x.ahead) {
          const int slot = added.ring.slot, piece = warp * x.ahead + slot;
          hopper::wait(at.added_full + 8 * piece, added.ring.parity);
#pragma unroll
          for (int i = 0; i < 2 * kColumns; ++i)
            fetched[batch % 2][i][0].words[0] = hopper::read(at.added + piece * kStageBytes + place_of(i));
          __syncwarp();
          load_added(x, at, me, first_block, added, slot);
          added.ring.advance(x.ahead);
        }
      }
#pragma unroll
      for (int i = 0; i < 2 * kColumns; ++i) {
        const int half = i % 2, columns = chunk * kColumns + i / 2;
        const int pixel = pixels[m][half], channel = channel_of(batch, i / 2);
        float v[kVector];
        hopper::take(v, sums, m, half, columns);
        if (pixel >= 0 && channel < x.k)
          Config::Steps::apply(v, x.p.p, x.scalars, channel, (int64_t)pixel * x.k + channel, fetched[batch % 2][i]);
        hopper::write(buffer + place_of(i), rounded<Element>(v).words[0]);
      }
      hopper::publish_shared();
      __syncwarp();
      if (lane == 0)
        at_piece(x, tile, first_block, batch, [&](int c, int w, int h, int n) {
          if (kPatch) hopper::store_4d(x.output_map, buffer, c, w, h, n);
          else hopper::store_2d(x.output_map, buffer, c, w);
        });
      hopper::commit_stores();
    }
  }

  // Units of eight channels whose tensors are read at once, while the units before are worked on.
  static constexpr int kGroup = kUnits < 4 ? kUnits : 4, kUnitGroups = (kUnits + kGroup - 1) / kGroup;

  // Calls work(place in the group, block, half, columns, channel, offset) for this thread's units of a group.
  template <typename Work>
  AT_DEVICE static void each_unit(const Params& x, const Member& me, const Tile& tile, const int (&pixels)[kBlocks][2],
                                  int group, const Work& work) {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const int i = group * kGroup + j;
      if (i >= kUnits) continue;
      int m, half, columns;
      unit(i, m, half, columns);
      const int channel = tile.n * kN + 32 * columns + threadIdx.x % 4 * 8;
      if (pixels[m][half] < 0 || channel >= x.k || i / (kUnits / kSlices) != me.slice) continue;
      work(j, m, half, columns, channel, (int64_t)pixels[m][half] * x.k + channel);
    }
  }

  AT_DEVICE static void find_pixels(const Params& x, const Tile& tile, int first_block, int (&pixels)[kBlocks][2]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i)
      pixels[i / 2][i % 2] = output_pixel(x, tile, first_block + i / 2, 16 * warp + 8 * (i % 2) + lane / 4);
  }

  AT_DEVICE static void store_tile(const Params& x, const Member& me, const Tile& tile, int first_block, Sums& sums) {
    int pixels[kBlocks][2];
    find_pixels(x, tile, first_block, pixels);
    typename Config::Steps::Fetched fetched[2][kGroup];
    auto fetch = [&](int group) {
      each_unit(x, me, tile, pixels, group, [&](int j, int, int, int, int, int64_t offset) {
        Config::Steps::fetch(fetched[group % 2][j], x.p.p, offset);
      });
    };
    fetch(0);
#pragma unroll
    for (int group = 0; group < kUnitGroups; ++group) {
      if (group + 1 < kUnitGroups) fetch(group + 1);
      each_unit(x, me, tile, pixels, group, [&](int j, int m, int half, int columns, int channel, int64_t offset) {
        float v[kVector];
        hopper::take(v, sums, m, half, columns);
        Config::Steps::apply(v, x.p.p, x.scalars, channel, offset, fetched[group % 2][j]);
        store(v, (Element*)x.p.p[kY] + offset);
      });
    }
  }

  // With a gate: sums up, scales and stores. What the steps read of tensors is on its way while the gate is computed.
  AT_DEVICE static void store_gated(const Params& x, const Layout& at, const Member& me, const Tile& tile,
                                    int first_block, Sums& sums) {
    int pixels[kBlocks][2];
    find_pixels(x, tile, first_block, pixels);
    constexpr int kEarly = kUnitGroups < 2 ? kUnitGroups : 2;
    typename Config::Steps::Fetched fetched[kEarly][kGroup];
    auto fetch = [&](int group) {
      each_unit(x, me, tile, pixels, group, [&](int j, int, int, int, int, int64_t offset) {
        Config::Steps::fetch(fetched[group % kEarly][j], x.p.p, offset);
      });
    };
#pragma unroll
    for (int group = 0; group < kEarly; ++group) fetch(group);
    const Excitation gate = excite(x, at, me, tile, first_block, sums);
    const float* gates = (const float*)(gate_memory(at) + gate.mean());
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int group = 0; group < kUnitGroups; ++group) {
      each_unit(x, me, tile, pixels, group, [&](int j, int m, int half, int columns, int channel, int64_t offset) {
        const int image = (64 * (first_block + m) + 16 * warp + 8 * half + lane / 4) / gate.pixels;
        float v[kVector], factor[kVector];
        hopper::take(v, sums, m, half, columns);
        load(factor, gates + image * kOwnN + 32 * (columns % kOwnColumns) + 8 * (lane % 4));
#pragma unroll
        for (int e = 0; e < kVector; ++e) v[e] *= factor[e];
        Config::Steps::apply(v, x.p.p, x.scalars, channel, offset, fetched[group % kEarly][j]);
        store(v, (Element*)x.p.p[kY] + offset);
      });
      if (group + kEarly < kUnitGroups) fetch(group + kEarly);
    }
  }
};

}  // namespace at
