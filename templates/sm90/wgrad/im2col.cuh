// Weight gradient of a convolution as one matrix product, for Hopper: TMA loads, wgmma, NHWC, float32 sums, the
// same bits in each run.
//
// It is the sum over all pixels of dy (k channels) times the pixels of x that each tap meets (c channels for each tap).
// Both have their channels in the order of memory, so they are operands of wgmma with channels as the contiguous axis.
// A stage has 64 neighbouring pixels of dy, whatever image they belong to, and the pixels of x that TMA gathers for
// them in its im2col mode. Its four products are issued together. The columns of a tile are chunks of 64 channels; a
// tile may have chunks of several taps.
//
// One thread loads and kGroups warpgroups multiply. kClusterK tiles of a cluster share the loads of x by multicast, or
// kClusterN tiles those of dy. Blocks split the pixels; sums.cuh adds their sums. The kernel in conv2d.cuh loads x and
// dy once for all taps, and skips the padding, but it issues one product at a time.
#pragma once
#include "common/ptx/ptx.cuh"
#include "sm90/staged_products.cuh"
#include "sm90/wgrad/im2col_plan.cuh"
#include "sm90/wgrad/sums.cuh"

namespace at {

template <typename Config>
struct HopperIm2colWgrad : WgradSums<Im2colWgradPlan<Config>> {
  using P = Im2colWgradPlan<Config>;
  using End = WgradSums<P>;
  using Params = typename P::Params;
  using Layout = typename P::Layout;
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
      ptx::prefetch_tensormap(params.dy_map);
      ptx::prefetch_tensormap(params.x_map);
    }
    ptx::cluster_or_block_sync<P::kPeers>();
    if (warp < 4 * P::kGroups) {
      multiply(params, smem, tile);
    } else {
      griddepcontrol_wait();
      if (ptx::elect_one_sync()) load(params, smem, tile);
      __syncwarp();
    }
    End::finish(params, smem, tile);
  }

 private:
  AT_DEVICE static void load(const Params& params, const Layout& smem, const Tile& tile) {
    const Pipeline pipeline = smem.pipeline;
    const int last = tile.first_step(params, 1);
    // The chunks that this block loads: all, or with peers each kClusterN-th of dy and each kClusterK-th of x.
    constexpr int kOwnDy = P::kMChunks / P::kClusterN, kOwnX = P::kNChunks / P::kClusterK;
    const int first_dy = P::kClusterN > 1 ? tile.peer : 0, first_x = P::kClusterK > 1 ? tile.peer : 0;
    typename P::Column columns[kOwnX];
    AT_UNROLL for (int i = 0; i < kOwnX; ++i) {
      columns[i] = typename P::Column(params, min(tile.column + first_x + i * P::kClusterK, params.columns - 1));
      columns[i].r *= params.dilation_h, columns[i].s *= params.dilation_w;
    }
    PipelineState state{0, 1};
    for (int step = tile.first_step(params); step < last; ++step, state.advance(params.stages)) {
      const uint32_t full = pipeline.producer_acquire(state), to = smem.stages + state.index * P::kStageBytes;
      const int pixel = step * P::kPixels;
      int h, w;
      const int n = params.area.divmod(pixel, h);
      h = params.width.divmod(h, w) * params.stride_h - params.pad_h, w = w * params.stride_w - params.pad_w;
      ptx::mbarrier_arrive_expect_tx(full, P::kStageBytes);
      AT_UNROLL for (int i = 0; i < kOwnDy; ++i) {
        const int chunk = first_dy + i * P::kClusterN;
        ptx::tma_load_2d<(P::kClusterN > 1)>(to + chunk * P::kChunkBytes, params.dy_map, full,
                                             tile.k + chunk * P::kChunk, pixel, tile.peers());
      }
      AT_UNROLL for (int i = 0; i < kOwnX; ++i) {
        constexpr bool kShared = P::kClusterK > 1;
        const typename P::Column& at = columns[i];
        const uint32_t chunk = to + P::kXOffset + (first_x + i * P::kClusterK) * P::kChunkBytes;
        if (params.pointwise) ptx::tma_load_2d<kShared>(chunk, params.x_map, full, at.c, pixel, tile.peers());
        else ptx::tma_load_im2col<kShared>(chunk, params.x_map, full, at.c, w, h, n, at.s, at.r, tile.peers());
      }
    }
  }

  AT_DEVICE static void multiply(const Params& params, const Layout& smem, const Tile& tile) {
    const int group = ptx::warp_uniform(threadIdx.x / 128);
    const int steps = tile.first_step(params, 1) - tile.first_step(params);
    const uint32_t own = ptx::transposed_descriptor_lo(smem.stages + group * P::kBlocks * P::kChunkBytes, 0);
    const uint32_t other = ptx::transposed_descriptor_lo(smem.stages + P::kXOffset, P::kChunkBytes);
    Accum accum = {};
    const Stages stages{smem.pipeline, params.stages, steps, P::kStageBytes / 16,
                        (uint32_t)tile.rank(tile.slice) - tile.peer};
    add_staged_products<Config, P::kKBytes / 16, P::kPeers>(stages, own, other, accum);
    launch_dependents();
    ptx::named_barrier_sync<P::kConsumers, 128 * P::kGroups>();  // no warpgroup reads the stages any more
    store_sums(smem, group, accum);
  }

  AT_DEVICE static void store_sums(const Layout& smem, int group, const Accum& accum) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    AT_UNROLL for (int block = 0; block < P::kBlocks; ++block) {
      const int row = (group * P::kBlocks + block) * 64 + 16 * warp + lane / 4;
      End::store_columns(End::sum_row(smem, row) + 8 * (lane % 4), accum[block], 0);
    }
  }
};

}  // namespace at
