// A persistent, warp-specialized implicit-GEMM convolution for Hopper: TMA loads, wgmma, NHWC.
//
// One warp loads activations, one loads weights, and kGroups warpgroups multiply. Rings of shared-memory stages
// (Pipeline) connect them, so the loads of the next tile overlap this tile's epilogue. A fill is one load of kK
// channels of activations. There are two kinds:
// - im2col: a fill is one filter tap of the tile's pixels, gathered by TMA.
// - patch: a fill is the input patch under the tile, with its halo, and serves all taps of one phase of the stride. A
//   tap shifts the start address of wgmma's descriptor. The input is read from L2 once instead of once per tap. The
//   tile's pixels form squares of 8 x 8, since wgmma reads groups of eight rows at any constant distance.
// Weights are streamed, kK channels of a tap at a time, or resident: loaded once for a column of tiles.
//
// With grouped convolutions a column of tiles lies within one group and reads only its channels.
//
// A cluster of kClusterM x kClusterN tiles shares loads by multicast. With kSlices > 1 blocks of a cluster split the
// channels and taps of a tile. They add their sums through distributed shared memory in a fixed order.
//
// The weights' rows are permuted (layout "wgmma", autotune/ir/weight_layout.py), so that each thread's accumulators are
// eight neighbouring channels of a pixel and the epilogue needs no exchange between threads.
//
// This file has the producer and consumer warps. plan.cuh has prepare() and the layout; stage.cuh, store.cuh and
// gate.cuh have the epilogues.
#pragma once
#include "sm90/conv2d/gate.cuh"
#include "sm90/pipeline.cuh"
#include "common/ptx/cluster.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/registers.cuh"
#include "common/ptx/shared_memory.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/wgmma.cuh"

namespace at {

template <typename Config>
struct HopperConv2d : Conv2dGate<Config> {
  using P = Conv2dPlan<Config>;
  using Params = typename P::Params;
  using Layout = typename P::Layout;
  using ClusterCoord = typename P::ClusterCoord;
  using KCoord = typename P::KCoord;
  using Sums = typename P::Sums;
  using Tile = typename P::Tile;
  using Store = Conv2dStore<Config>;
  using Gate = Conv2dGate<Config>;

  AT_DEVICE static void run(const Params& x, char* memory) {
    const Layout smem(x, ptx::cast_smem_ptr_to_uint(memory));
    const int rank = P::kCluster > 1 ? (int)ptx::block_rank_in_cluster() : 0;
    const ClusterCoord me{rank % P::kClusterM, rank / P::kClusterM % P::kClusterN,
                          rank / (P::kClusterM * P::kClusterN)};
    const int warp = ptx::warp_uniform(threadIdx.x / 32);
    // The multiplying warps compute what does not need the barriers while the barriers are initialized.
    if (warp < 4 * P::kGroups) {
      init_barriers(x, smem, warp);
      multiply_all(x, smem, me);
    } else {
      const TileOrigin first(x, me, P::first_tile());
      const bool activations = warp == 4 * P::kGroups;
      prefetch_maps(x, activations);
      ptx::cluster_or_block_sync<P::kCluster>();
      if constexpr (P::kSetMaxNreg) ptx::warpgroup_reg_dealloc<40>();
      if (ptx::elect_one_sync()) {
        if (activations) load_activations(x, smem, me, first);
        else if (warp == 4 * P::kGroups + 1) load_weights(x, smem, me, first);
      }
      __syncwarp();
      if constexpr (P::kSlices > 1) ptx::cluster_sync();
    }
  }

 private:
  // The first load or store through a tensor map would wait for the map.
  AT_DEVICE static void prefetch_maps(const Params& x, bool activations) {
    ptx::prefetch_tensormap(activations ? x.activation_map : x.weight_map);
    if constexpr (P::kProjects) ptx::prefetch_tensormap(activations ? x.skip_map : x.projection_map);
    if constexpr (P::kFolded)
      if (!activations) ptx::prefetch_tensormap(x.hidden_map);
    if (activations && x.staging_bytes) ptx::prefetch_tensormap(x.output_map);
    if (activations && x.staging_bytes && x.ahead) ptx::prefetch_tensormap(x.added_map);
  }

  // Each warp initializes one kind of barrier.
  AT_DEVICE static void init_barriers(const Params& x, const Layout& smem, int warp) {
    constexpr int kPeers = P::kJoint ? P::kClusterM + P::kClusterN - 1 : 1;
    if (warp == 0) {
      ptx::mbarrier_init_array(smem.full, x.fill_slots, P::kJoint ? 2 : 1);
    } else if (warp == 1) {
      ptx::mbarrier_init_array(smem.empty, x.fill_slots, P::kTeam * kPeers);
    } else if (warp == 2) {
      if (!P::kJoint) ptx::mbarrier_init_array(smem.weight_full, P::kResident ? 1 : x.weight_slots, 1);
      if (P::kPingpong || P::kSlices > 1) ptx::mbarrier_init_array(smem.turn, P::kGroups, P::kPingpong ? 4 : 1);
      if (P::kGated) ptx::mbarrier_init_array(smem.gate_full, 1, 1);
    } else if (warp == 3) {
      if (!P::kJoint && !P::kResident)
        ptx::mbarrier_init_array(smem.weight_empty, x.weight_slots, P::kTeam * P::kClusterM);
      if (P::kAhead) ptx::mbarrier_init_array(smem.added_full, 4 * P::kGroups * x.ahead, 1);
    }
    ptx::fence_barrier_init();
  }

  // The coordinates at which the loads of a tile begin.
  struct TileOrigin {
    int pixel, n, h, w, c;  // of the activations
    int row;                // of the weights
    int skip_c;             // of the projected tensor
    AT_DEVICE TileOrigin(const Params& x, const ClusterCoord& me, int index) {
      const Tile tile(x, me, index);
      pixel = tile.first_row(x) + me.n * (P::kM / P::kClusterN);
      row = tile.n * P::kN + me.m * (P::kN / P::kClusterM);
      c = x.group_outputs.divide(tile.n * P::kN) * x.group_channels;
      if (P::kProjects) skip_c = x.skip_outputs.divide(tile.n * P::kN) * x.skip_channels;
      n = x.out_area.divmod(P::kPatch ? tile.m : pixel, h);
      h = x.out_width.divmod(h, w);
      if (P::kPatch) n *= x.images, h *= 8 * x.squares_h, w *= 8 * x.squares_w;
      h = h * x.stride_h - x.pad_h, w = w * x.stride_w - x.pad_w;
    }
  };

  // A single thread issues the loads, so nothing hides the latency of its instructions, and small tiles wait for it.
  // Its loops therefore only increment: no divisions.
  AT_DEVICE static void load_activations(const Params& x, const Layout& smem, const ClusterCoord& me, TileOrigin from) {
    uint16_t peers = 0;
    if constexpr (P::kClusterN > 1)
      for (int i = 0; i < P::kClusterN; ++i) peers |= 1 << me.rank(me.m, i, me.slice);
    const int begin = P::first_fill(x, me.slice), end = P::first_fill(x, me.slice + 1);
    const uint32_t fills = smem.fills + me.n * (P::kM / P::kClusterN) * P::kRowBytes;
    const KCoord first(x, begin);
    const Pipeline pipeline = P::fill_pipeline(smem);
    PipelineState state{0, 1};
    griddepcontrol_wait();
    for (int index = P::first_tile(); index < x.cluster_tiles;) {
      KCoord place = first;
      const auto next_fill = [&](const auto& load) {
        // This is pipeline.producer_acquire(), written out: a call reorders the loop's instructions.
        const uint32_t full = smem.full + ptx::kMbarrierBytes * state.index;
        ptx::mbarrier_wait(smem.empty + ptx::kMbarrierBytes * state.index, state.phase);
        ptx::mbarrier_arrive_expect_tx(full, x.fill_bytes);
        load(fills + state.index * x.slot_bytes, full);
        state.advance(x.fill_slots);
      };
      const auto each_fill = [&](const auto& load) {
#pragma unroll 1
        for (int fill = begin; fill < end; ++fill) {
          next_fill([&](uint32_t to, uint32_t full) { load(to, full, from.c + place.chunk * P::kK); });
          place.advance(x);
        }
      };
      if (P::kPatch)
        each_fill([&](uint32_t to, uint32_t full, int c) {
          ptx::tma_load_4d(to, x.activation_map, full, c, from.w + place.w, from.h + place.h, from.n);
        });
      else if (x.pointwise)
        each_fill([&](uint32_t to, uint32_t full, int c) {
          ptx::tma_load_2d<(P::kClusterN > 1)>(to, x.activation_map, full, c, from.pixel, peers);
        });
      else
        each_fill([&](uint32_t to, uint32_t full, int c) {
          ptx::tma_load_im2col<(P::kClusterN > 1)>(to, x.activation_map, full, c, from.w, from.h, from.n, place.w,
                                                   place.h, peers);
        });
      if constexpr (P::kProjects)
        for (int i = 0; i < x.skip_fills; ++i)
          next_fill([&](uint32_t to, uint32_t full) {
            ptx::tma_load_2d<(P::kClusterN > 1)>(to, x.skip_map, full, from.skip_c + i * P::kK, from.pixel, peers);
          });
      index += P::tile_step();
      from = TileOrigin(x, me, index);
    }
    launch_dependents();
    if constexpr (P::kClusterM * P::kClusterN > 1) pipeline.producer_tail(state, x.fill_slots);
  }

  AT_DEVICE static void load_weights(const Params& x, const Layout& smem, const ClusterCoord& me, TileOrigin from) {
    constexpr int kRows = P::kN / P::kClusterM;
    constexpr bool kShared = P::kClusterM > 1;
    uint16_t peers = 0;
    if constexpr (kShared)
      for (int i = 0; i < P::kClusterM; ++i) peers |= 1 << me.rank(i, me.n, me.slice);
    const int begin = P::first_fill(x, me.slice), end = P::first_fill(x, me.slice + 1);
    const Pipeline pipeline = P::kJoint ? P::fill_pipeline(smem) : P::weight_pipeline(smem);
    const int slots = P::kJoint ? x.fill_slots : x.weight_slots;
    const int slot_bytes = P::kJoint ? x.slot_bytes : P::kWeightBytes;
    PipelineState state{0, 1};
    if (P::kResident) ptx::mbarrier_arrive_expect_tx(smem.weight_full, x.weight_slots * P::kWeightBytes);
    for (int index = P::first_tile(); index < x.cluster_tiles;) {
      const auto next = [&](const void* map, int bytes, int chunk, int tap) {
        const uint32_t full = P::kResident ? smem.weight_full : pipeline.full_barrier(state.index);
        const uint32_t slot = smem.weights + state.index * slot_bytes, to = slot + me.m * kRows * P::kRowBytes;
        if (!P::kResident) {
          pipeline.producer_acquire(state);
          ptx::mbarrier_arrive_expect_tx(full, bytes);
        }
        ptx::tma_load_3d<kShared>(to, map, full, chunk * P::kK, tap, from.row, peers);
        if (bytes > P::kN * P::kRowBytes && me.m == 0)  // the filters of the hidden values
          ptx::tma_load_3d<kShared>(slot + P::kN * P::kRowBytes, x.hidden_map, full, chunk * P::kK, tap, 0, peers);
        state.advance(slots);
      };
      const auto load = [&](int chunk, int tap) { next(x.weight_map, P::kWeightBytes, chunk, tap); };
      if constexpr (P::kPatch) {
        KCoord place(x, begin);
        for (int fill = begin; fill < end; ++fill) {
          for (int r = place.h; r < x.r; r += x.phases_h)
            for (int tap = r * x.s + place.w; tap < (r + 1) * x.s; tap += x.phases_w) load(place.chunk, tap);
          place.advance(x);
        }
      } else {  // one tap per fill
        int chunk = P::kSlices > 1 ? begin % x.chunks : 0, tap = P::kSlices > 1 ? begin / x.chunks : 0;
#pragma unroll 1
        for (int fill = begin; fill < end; ++fill) {
          load(chunk, tap);
          if (++chunk == x.chunks) chunk = 0, ++tap;
        }
      }
      if constexpr (P::kProjects)
        for (int i = 0; i < x.skip_fills; ++i) next(x.projection_map, P::kN * P::kRowBytes, i, 0);
      if (P::kResident) break;
      index += P::tile_step();
      from = TileOrigin(x, me, index);
    }
    launch_dependents();
    if constexpr (kShared && !P::kResident) pipeline.producer_tail(state, slots);
  }

  // Releases a stage of activations to the loading warps of this block and, where loads are multicast, of the blocks
  // that load into it.
  AT_DEVICE static void release_fill(const Pipeline& pipeline, const ClusterCoord& me, int stage) {
    const int thread = threadIdx.x % 128;
    if constexpr (P::kClusterM * P::kClusterN == 1 || !P::kJoint) {
      if (thread == 0) pipeline.consumer_release(stage);
    } else if (thread < P::kClusterM + P::kClusterN - 1) {
      const int other = thread - P::kClusterM;  // among the other blocks of the cluster's row
      const int to =
          thread < P::kClusterM ? me.rank(thread, me.n, me.slice) : me.rank(me.m, other + (other >= me.n), me.slice);
      pipeline.consumer_release(stage, to);
    }
  }

  AT_DEVICE static void release_weight(const Pipeline& pipeline, const ClusterCoord& me, int stage) {
    const int thread = threadIdx.x % 128;
    if constexpr (P::kClusterM == 1) {
      if (thread == 0) pipeline.consumer_release(stage);
    } else {
      if (thread < P::kClusterM) pipeline.consumer_release(stage, me.rank(thread, me.n, me.slice));
    }
  }

  // The A operand's blocks of 64 rows: the offset of each in a fill, in units of 16 bytes, and the descriptor's hi.
  struct Rows {
    uint32_t block[P::kBlocks], hi;
    AT_DEVICE Rows(const Params& x, int first_block) {
#pragma unroll
      for (int m = 0; m < P::kBlocks; ++m) {
        const int i = first_block + m;
        int row = 64 * i;
        if (P::kPatch) {
          const int square_w = i % x.squares_w, square_h = i / x.squares_w % x.squares_h;
          const int image = i / (x.squares_w * x.squares_h);
          row = (image * x.patch_h + 8 * square_h) * x.patch_w + 8 * square_w;
        }
        block[m] = ptx::warp_uniform(row * P::kRowBytes / 16);
      }
      hi = ptx::descriptor_hi<P::kRowBytes>((P::kPatch ? x.patch_w : 8) * P::kRowBytes);
    }
  };

  // Adds the product of kK channels. a, b: SmemDescriptor::lo of the operands.
  AT_DEVICE static void multiply(Sums& sums, const Rows& rows, uint32_t a, uint32_t b, int& accumulate) {
    const uint32_t b_hi = ptx::descriptor_hi<P::kRowBytes>(8 * P::kRowBytes);
    ptx::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < P::kRowBytes / 32; ++k) {
#pragma unroll
      for (int m = 0; m < P::kBlocks; ++m)
        Config::wgmma(sums[m], ptx::SmemDescriptor{a + rows.block[m] + 2 * k, rows.hi},
                      ptx::SmemDescriptor{b + 2 * k, b_hi}, accumulate);
      accumulate = 1;
    }
  }

  // Adds the projection of the skip connection, whose fills have arrived; the hidden columns' sums are no longer
  // needed. Each product is waited for: with several in flight behind branches the compiler would serialize them all.
  AT_DEVICE static void add_skip(const Params& x, const Layout& smem, const ClusterCoord& me, const Rows& rows,
                                 PipelineState state, Sums& sums) {
    const Pipeline pipeline = P::fill_pipeline(smem);
    const uint32_t fill_lo = ptx::descriptor_lo(smem.fills), weight_lo = ptx::descriptor_lo(smem.weights);
    int accumulate = 1;
    ptx::warpgroup_fence_operand(sums);
    for (int i = 0; i < x.skip_fills; ++i, state.advance(x.fill_slots)) {
      const uint32_t offset = state.index * (x.slot_bytes >> 4);
      multiply(sums, rows, fill_lo + offset, weight_lo + offset, accumulate);
      ptx::warpgroup_commit_batch();
      ptx::warpgroup_wait<0>();
      release_fill(pipeline, me, state.index);
    }
    ptx::warpgroup_fence_operand(sums);
  }

  AT_DEVICE static void multiply_all(const Params& x, const Layout& smem, const ClusterCoord& me) {
    const int group = ptx::warp_uniform(threadIdx.x / 128);
    const int first_block = P::kPingpong ? 0 : group * P::kBlocks;
    const Rows rows(x, first_block);
    const int fills = P::first_fill(x, me.slice + 1) - P::first_fill(x, me.slice);
    const uint32_t fill_lo = ptx::descriptor_lo(smem.fills), weight_lo = ptx::descriptor_lo(smem.weights);
    constexpr int kWeightStep = P::kWeightBytes / 16;

    const Pipeline pipeline = P::fill_pipeline(smem), weight_pipeline = P::weight_pipeline(smem);
    PipelineState state{0, 0}, weight{0, 0};
    typename Store::Added added{P::first_tile() + (P::kPingpong ? group * P::tile_step() : 0)};
    int tiles = 0;
    ptx::cluster_or_block_sync<P::kCluster>();
    if constexpr (P::kSetMaxNreg) ptx::warpgroup_reg_alloc<232>();
    if constexpr (P::kGated)
      Gate::excitation(x).load_weights(Gate::gate_memory(smem), x.p.p + P::kFirstGate,
                                       Gate::own_channel(me, Tile(x, me, P::first_tile())), x.k, threadIdx.x);
    // The gates' weights are constants, so they are loaded before griddepcontrol_wait() and stay for the column of
    // tiles.
    int gates_of = 0;
    if constexpr (P::kFolded) {
      const Tile first(x, me, min(added.index, x.cluster_tiles - 1));
      Gate::load_folded(x, smem, first, group);
      gates_of = first.n;
    }
    griddepcontrol_wait();
    if constexpr (P::kAhead)
      for (int i = 0; i < x.ahead; ++i) Store::load_added(x, smem, me, first_block, added, i);
    if (P::kResident) ptx::mbarrier_wait(smem.weight_full, 0);
    for (int index = P::first_tile(); index < x.cluster_tiles; index += P::tile_step()) {
      if constexpr (P::kPingpong) {
        const int turn = tiles++;
        if (turn % P::kGroups != group) {
          state.skip(x.fills + x.skip_fills, x.fill_slots);
          if (P::kPatch && !P::kResident) weight.skip(x.r * x.s * x.chunks, x.weight_slots);
          continue;
        }
        // Parities only tell neighbouring rounds of a ring apart. So a warpgroup enters the rings when the one before
        // has waited for all its fills. This also gives it the tensor cores alone.
        ptx::mbarrier_wait(smem.turn + 8 * group, (turn / P::kGroups & 1) ^ (group == 0));
      }
      if constexpr (P::kFolded && !P::kResident) {
        const Tile tile(x, me, index);
        if (tile.n != gates_of) {
          Gate::meet_for_tile(group);
          Gate::load_folded(x, smem, tile, group);
          gates_of = tile.n;
        }
      }
      Sums sums;
      int accumulate = 0, used = -1, used_weight = -1;
      uint32_t resident = weight_lo;
      KCoord place(x, 0);  // only counted for patches
      ptx::warpgroup_fence_operand(sums);
      for (int i = 0; i < fills; ++i) {
        pipeline.consumer_wait(state);
        const uint32_t a = fill_lo + state.index * (x.slot_bytes >> 4);
        if constexpr (P::kJoint) {
          multiply(sums, rows, a, weight_lo + state.index * (x.slot_bytes >> 4), accumulate);
          ptx::warpgroup_commit_batch();
        } else if constexpr (!P::kPatch) {
          multiply(sums, rows, a, resident, accumulate);
          ptx::warpgroup_commit_batch();
          resident += kWeightStep;
        } else {
          uint32_t line = a;
          for (int r = place.h; r < x.r; r += x.phases_h, line += x.dilation_h * x.patch_w * (P::kRowBytes / 16)) {
            uint32_t tap = line;
            for (int s = place.w; s < x.s; s += x.phases_w, tap += x.dilation_w * (P::kRowBytes / 16)) {
              if constexpr (P::kResident) {
                multiply(sums, rows, tap, resident, accumulate);
                resident += kWeightStep;
              } else {
                weight_pipeline.consumer_wait(weight);
                multiply(sums, rows, tap, weight_lo + weight.index * kWeightStep, accumulate);
                ptx::warpgroup_commit_batch();
                ptx::warpgroup_wait<1>();
                if (used_weight >= 0) release_weight(weight_pipeline, me, used_weight);
                if (used >= 0) release_fill(pipeline, me, used), used = -1;
                used_weight = weight.index;
                weight.advance(x.weight_slots);
              }
            }
          }
          if constexpr (P::kResident) ptx::warpgroup_commit_batch();
          place.advance(x);
        }
        // With one stage the next fill needs this very stage; else the fill before is no longer read.
        const bool alone = x.fill_slots == 1;
        if (alone) ptx::warpgroup_wait<0>();
        else ptx::warpgroup_wait<1>();
        if (used >= 0) release_fill(pipeline, me, used);
        used = alone ? -1 : state.index;
        if (alone) release_fill(pipeline, me, state.index);
        state.advance(x.fill_slots);
      }
      // The skip connection's fills are the tile's last. They are waited for during this warpgroup's turn and used
      // later.
      const PipelineState skip = state;
      if constexpr (P::kProjects)
        for (int i = 0; i < x.skip_fills; ++i) {
          pipeline.consumer_wait(state);
          state.advance(x.fill_slots);
        }
      if constexpr (P::kPingpong) {
        // Every warp arrives, so that none is left behind at the turn before.
        if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(smem.turn + 8 * ((group + 1) % P::kGroups));
      }
      ptx::warpgroup_wait<0>();
      ptx::warpgroup_fence_operand(sums);
      if (used_weight >= 0) release_weight(weight_pipeline, me, used_weight);
      if (used >= 0) release_fill(pipeline, me, used);
      if (index + P::tile_step() >= x.cluster_tiles) launch_dependents();
      if constexpr (P::kSlices > 1) Store::gather_slices(smem, me, sums);
      const Tile tile(x, me, index);
      if constexpr (P::kGated) {
        Gate::store_gated(x, smem, me, tile, first_block, sums);
      } else {
        const bool staged = P::kSlices == 1 && x.staging_bytes;
        typename Store::Early early;
        if (!staged) early.begin(x, me, tile, first_block);
        if constexpr (P::kFolded) Gate::scale_folded(x, smem, tile, group, first_block, sums);
        if constexpr (P::kProjects) add_skip(x, smem, me, rows, skip, sums);
        if (staged) Store::stage_tile(x, smem, me, tile, first_block, sums, added);
        else Store::store_tile(x, me, tile, sums, early);
      }
    }
    ptx::tma_store_wait<0>();
    if constexpr (P::kSlices > 1) ptx::cluster_wait();
  }
};

}  // namespace at
