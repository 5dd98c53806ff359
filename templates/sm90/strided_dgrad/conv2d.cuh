// Input gradient of a strided convolution for Hopper: TMA loads, wgmma, NHWC, float32 sums.
//
// The pixels of dx that are a stride apart from each other meet the same taps of the filter. They are a phase: a
// convolution of dy with these taps and stride 1, whose results lie a stride apart. A stride of 2 along both axes has
// four phases. With a 3x3 filter they have 4, 2, 2 and 1 taps, so no product is with a zero that the stride has put in.
// A phase without taps stores the result of the steps for a sum of 0.
//
// All phases are one launch: a block computes one tile of one phase, and those of the longest sums come first. One
// thread loads the tile's pixels of dy, one tap at a time, by TMA's im2col mode, with a tensor map for each phase, and
// the tap's weights. kClusterM tiles of a cluster share the loads of weights by multicast. kGroups warpgroups multiply.
//
// The weights are in layout "wgmma_dgrad" (autotune/ir/weight_layout.py), so that each thread's accumulators are eight
// neighbouring channels of a pixel.
#pragma once
#include "common/ptx/ptx.cuh"
#include "sm90/fragment.cuh"
#include "sm90/staged_products.cuh"
#include "sm90/strided_dgrad/plan.cuh"

namespace at {

template <typename Config>
struct HopperStridedDgrad : StridedDgradPlan<Config> {
  using P = StridedDgradPlan<Config>;
  using Element = typename P::Element;
  using Params = typename P::Params;
  using Layout = typename P::Layout;
  using Phase = typename P::Phase;
  using Tile = typename P::Tile;
  using Accum = typename P::Accum;

  AT_DEVICE static void run(const Params& params, char* memory) {
    const Layout smem(params, align_smem(ptx::cast_smem_ptr_to_uint(memory)));
    const int warp = ptx::warp_uniform(threadIdx.x / 32);
    const Tile tile(params);
    if (warp == 0) {
      init_pipeline(smem.pipeline, params.stages, P::kGroups * P::kPeers);
      ptx::fence_barrier_init();
    } else if (warp == 4 * P::kGroups) {
      ptx::prefetch_tensormap(params.dy_maps[tile.index]);
      ptx::prefetch_tensormap(params.weight_map);
    }
    ptx::cluster_or_block_sync<P::kPeers>();
    griddepcontrol_wait();
    if (warp < 4 * P::kGroups) {
      multiply(params, smem, tile);
    } else {
      if (ptx::elect_one_sync()) load(params, smem, tile);
      __syncwarp();
    }
  }

 private:
  AT_DEVICE static void load(const Params& params, const Layout& smem, const Tile& tile) {
    const Phase& phase = params.phases[tile.index];
    const Pipeline pipeline = smem.pipeline;
    int h, w;
    const int n = phase.area.divmod(tile.first, h);
    h = phase.width.divmod(h, w) + params.vertical.low[phase.h], w += params.horizontal.low[phase.w];
    const int bytes = (min(P::kM, phase.rows) + P::kN) * P::kRowBytes;
    const int own_weights = P::kWeightOffset + tile.peer * P::kOwnN * P::kRowBytes;
    PipelineState state{0, 1};
    int r = params.vertical.first_tap[phase.h];
    for (int i = 0; i < tile.taps_h; ++i, r -= params.vertical.tap_step) {
      int tap = r * params.s + params.horizontal.first_tap[phase.w];
      for (int j = 0; j < tile.taps_w; ++j, tap -= params.horizontal.tap_step) {
        for (int chunk = 0; chunk < params.chunks; ++chunk, state.advance(params.stages)) {
          const uint32_t full = pipeline.producer_acquire(state), to = smem.stages + state.index * P::kStageBytes;
          ptx::mbarrier_arrive_expect_tx(full, bytes);
          ptx::tma_load_im2col<false>(to, params.dy_maps[tile.index], full, chunk * P::kK, w, h, n,
                                      j * params.horizontal.dy_step, i * params.vertical.dy_step, 0);
          ptx::tma_load_3d<(P::kPeers > 1)>(to + own_weights, params.weight_map, full, chunk * P::kK, tap,
                                            tile.channel + tile.peer * P::kOwnN, (1 << P::kPeers) - 1);
        }
      }
    }
    launch_dependents();
    if constexpr (P::kPeers > 1) pipeline.producer_tail(state, params.stages);
  }

  AT_DEVICE static void multiply(const Params& params, const Layout& smem, const Tile& tile) {
    const int group = ptx::warp_uniform(threadIdx.x / 128);
    const int k_blocks = tile.taps_h * tile.taps_w * params.chunks;
    const uint32_t own = ptx::descriptor_lo(smem.stages + group * P::kBlocks * 64 * P::kRowBytes);
    const uint32_t weights = ptx::descriptor_lo(smem.stages + P::kWeightOffset);
    Accum accum = {};
    const Stages stages{smem.pipeline, params.stages, k_blocks, P::kStageBytes / 16};
    add_staged_products<Config, 32 / 16, P::kPeers>(stages, own, weights, accum);
    launch_dependents();
    store_tile(params, tile, group, accum);
  }

  AT_DEVICE static void store_tile(const Params& params, const Tile& tile, int group, Accum& accum) {
    constexpr int kVectors = P::kBlocks * P::kN / 16;  // of the thread, eight channels each
    const Phase& phase = params.phases[tile.index];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    int pixels[P::kBlocks][2];
    AT_UNROLL for (int i = 0; i < 2 * P::kBlocks; ++i) {
      const int in_tile = 64 * (group * P::kBlocks + i / 2) + 16 * warp + 8 * (i % 2) + fragment_row(lane);
      const int row = tile.first + in_tile;
      int h, w;
      const int n = phase.area.divmod(row, h);
      h = phase.width.divmod(h, w) * params.stride_h + phase.h, w = w * params.stride_w + phase.w;
      pixels[i / 2][i % 2] = row < phase.rows ? (n * params.h + h) * params.w + w : -1;
    }
    AT_UNROLL for (int i = 0; i < kVectors; ++i) {
      const FragmentCoord at = fragment_coord<P::kBlocks>(i);
      const int pixel = pixels[at.block][at.half], channel = tile.channel + at.channel() + fragment_channel(lane);
      float v[8];
      load_fragment(v, accum, at);
      if (pixel < 0 || channel >= params.c) continue;
      const int64_t offset = (int64_t)pixel * params.c + channel;
      const typename Config::Steps::Fetched none{};  // the steps load their operands themselves
      Config::Steps::apply(v, params.p.p, params.scalars, channel, offset, none);
      store(v, (Element*)params.p.p[P::kDx] + offset);
    }
  }
};

}  // namespace at
