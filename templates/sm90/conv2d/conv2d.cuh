// A persistent, warp-specialized implicit-GEMM convolution for Hopper: TMA loads, wgmma, NHWC.
//
// One warp loads activations, one loads weights, and kGroups warpgroups multiply. Rings of shared-memory stages
// (Pipeline) connect them, so the loads of the next tile overlap this tile's epilogue. A k_block is one load of kK
// channels of activations. There are two kinds:
// - im2col: a k_block is one filter tap of the tile's pixels, gathered by TMA.
// - patch: a k_block is the input patch under the tile, with its halo, and serves all taps of one phase of the stride.
//   A tap shifts the start address of wgmma's descriptor. The input is read from L2 once instead of once per tap. The
//   tile's pixels form squares of 8 x 8, since wgmma reads groups of eight rows at any constant distance.
// Weights are streamed, kK channels of a tap at a time, or resident: loaded once for a column of tiles.
//
// With grouped convolutions a column of tiles lies within one group and reads only its channels.
//
// A cluster of kClusterM x kClusterN tiles shares loads by multicast. With kSlices > 1 blocks of a cluster split the
// channels and taps of a tile. They add their accumulators through distributed shared memory in a fixed order.
//
// The weights' rows are permuted (layout "wgmma", autotune/ir/weight_layout.py), so that each thread's accumulators are
// eight neighbouring channels of a pixel and the epilogue needs no exchange between threads.
//
// This file has the warps' roles. mainloop.cuh loads and multiplies, schedule.cuh gives tiles to warpgroups, and a
// Store (store.cuh, column_totals.cuh) ends a tile, with a Gate and a Projection if there are (epilogue.cuh). plan.cuh
// has the sizes and the layout, prepare.cuh the host side.
#pragma once
#include "sm90/conv2d/epilogue.cuh"
#include "sm90/conv2d/mainloop.cuh"
#include "sm90/conv2d/prepare.cuh"
#include "sm90/conv2d/schedule.cuh"
#include "sm90/conv2d/split.cuh"
#include "sm90/conv2d/store.cuh"
#include "sm90/register_budget.cuh"
#include "common/ptx/cluster.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/registers.cuh"

namespace at {

template <typename Config, typename Store, typename Gate = NoGate, typename Projection = NoProjection>
struct HopperConv2d : Conv2dPrepare<Config, Gate, Projection> {
  using P = Conv2dPlan<Config>;
  using Accum = typename P::Accum;
  using ClusterCoord = typename P::ClusterCoord;
  using Layout = typename P::Layout;
  using Loads = Conv2dLoads<Config, Projection>;
  using Params = typename P::Params;
  using Products = Conv2dProducts<Config>;
  using Registers = RegisterBudget<128, 128 * P::kGroups, 40, 232>;
  using Tile = typename P::Tile;

  AT_DEVICE static void run(const Params& params, char* memory) {
    const Layout smem(params, align_smem(ptx::cast_smem_ptr_to_uint(memory)));
    const int rank = P::kCluster > 1 ? (int)ptx::block_rank_in_cluster() : 0;
    const ClusterCoord cta{rank % P::kClusterM, rank / P::kClusterM % P::kClusterN,
                           rank / (P::kClusterM * P::kClusterN)};
    const int warp = ptx::warp_uniform(threadIdx.x / 32);
    // The consumers compute what does not need the barriers while the barriers are initialized.
    if (warp < 4 * P::kGroups) {
      init_barriers(params, smem, warp);
      consume(params, smem, cta);
    } else {
      const typename Loads::TileOrigin first(params, cta, P::first_tile());
      const bool activations = warp == 4 * P::kGroups;
      Loads::prefetch_maps(params, activations);
      ptx::cluster_or_block_sync<P::kCluster>();
      if constexpr (P::kSetMaxNreg) Registers::to_producer();
      if (ptx::elect_one_sync()) {
        if (activations) Loads::load_activations(params, smem, cta, first);
        else if (warp == 4 * P::kGroups + 1) Loads::load_weights(params, smem, cta, first);
      }
      __syncwarp();
      if constexpr (P::kSlices > 1) ptx::cluster_sync();
    }
  }

 private:
  // Each warp initializes one kind of barrier.
  AT_DEVICE static void init_barriers(const Params& params, const Layout& smem, int warp) {
    constexpr int kPeers = P::kJoint ? P::kClusterM + P::kClusterN - 1 : 1;
    if (warp == 0) {
      ptx::mbarrier_init_array(smem.full, params.activation_stages, P::kJoint ? 2 : 1);
    } else if (warp == 1) {
      ptx::mbarrier_init_array(smem.empty, params.activation_stages, P::kTeam * kPeers);
    } else if (warp == 2) {
      if (!P::kJoint) ptx::mbarrier_init_array(smem.weight_full, P::kResident ? 1 : params.weight_stages, 1);
      if (P::kPingpong || P::kSlices > 1) ptx::mbarrier_init_array(smem.order, P::kGroups, P::kPingpong ? 4 : 1);
      if (Config::kGated) ptx::mbarrier_init_array(smem.gate_full, 1, 1);
    } else if (warp == 3) {
      if (!P::kJoint && !P::kResident)
        ptx::mbarrier_init_array(smem.weight_empty, params.weight_stages, P::kTeam * P::kClusterM);
      if (P::kAhead) ptx::mbarrier_init_array(smem.added_full, 4 * P::kGroups * params.ahead, 1);
    }
    ptx::fence_barrier_init();
  }

  AT_DEVICE static void consume(const Params& params, const Layout& smem, const ClusterCoord& cta) {
    PipelineState activations{0, 0}, weights{0, 0};
    ScheduleOf<P> schedule;
    Products products(params, smem, cta, schedule.first_block);
    typename Store::Added added{schedule.first_tile()};
    Gate gate(params, smem, cta, schedule);
    Projection projection;
    int turns = 0;
    ptx::cluster_or_block_sync<P::kCluster>();
    if constexpr (P::kSetMaxNreg) Registers::to_consumer();
    // The gates' weights are constants, so they are loaded before griddepcontrol_wait().
    gate.load_weights(Tile(params, cta, min(added.index, params.cluster_tiles - 1)));
    griddepcontrol_wait();
    if constexpr (P::kAhead)
      for (int i = 0; i < params.ahead; ++i) Store::load_added(params, smem, cta, schedule.first_block, added, i);
    if (P::kResident) ptx::mbarrier_wait(smem.weight_full, 0);
    for (int index = P::first_tile(); index < params.cluster_tiles; index += P::tile_step()) {
      const int turn = turns++;
      if (!schedule.has_turn(turn)) {
        products.skip_tile(activations, weights);
        continue;
      }
      schedule.wait_turn(smem, turn);
      gate.begin_tile(Tile(params, cta, index));
      Accum accum;
      typename Products::Progress progress;
      progress.resident_lo = products.weight_lo;
      typename P::KCoord at(params, 0);  // only counted for patches
      ptx::warpgroup_fence_operand(accum);
      // These loops are no functions of the main loop: as such the compiler would turn other branches into selects.
      for (int k_block = 0; k_block < products.k_blocks; ++k_block) {
        const uint32_t a = products.wait(activations);
        if constexpr (!P::kPatch) {
          products.multiply_gathered(accum, a, activations, progress);
        } else {
          // The taps of a phase of the stride: each moves the start address of A by some pixels.
          uint32_t line = a;
          for (int r = at.h; r < params.r;
               r += params.phases_h, line += params.dilation_h * params.patch_w * Products::kPixelUnits) {
            uint32_t tap = line;
            for (int s = at.w; s < params.s; s += params.phases_w, tap += params.dilation_w * Products::kPixelUnits)
              products.multiply_tap(cta, accum, tap, weights, progress);
          }
          if constexpr (P::kResident) ptx::warpgroup_commit_batch();
          at.advance(params);
        }
        products.release_before(cta, activations, progress);
      }
      projection.wait(products, activations);
      schedule.end_turn(smem);
      products.finish(cta, accum, progress);
      if (index + P::tile_step() >= params.cluster_tiles) launch_dependents();
      if constexpr (P::kSlices > 1) SplitTile<Config>::gather(smem, cta, accum);
      const Tile tile(params, cta, index);
      if constexpr (Config::kGated) {
        gate.store_tile(tile, accum);
      } else {  // not a function of its own, in which the compiler would hoist other loads
        const bool staged = P::kSlices == 1 && params.staging_bytes;
        typename Store::Early early;
        if (!staged) early.begin(params, cta, tile, schedule.first_block);
        gate.scale(tile, accum);
        projection.add(products, cta, accum);
        if (staged) Store::stage_tile(params, smem, cta, tile, schedule.first_block, accum, added);
        else Store::store_tile(params, cta, tile, accum, early);
      }
    }
    ptx::tma_store_wait<0>();
    if constexpr (P::kSlices > 1) ptx::cluster_wait();
  }
};

}  // namespace at
