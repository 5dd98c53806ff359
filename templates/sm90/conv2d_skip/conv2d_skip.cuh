// A convolution plus a 1x1 convolution of another tensor, for Hopper: TMA loads, wgmma, NHWC, persistent blocks.
//
// Both convolutions are products of the same tile. Its steps are the filter taps and channels of the first, 128 bytes
// at a time, then the channels of the second, so their sum costs nothing and the second one's result is not in memory.
// TMA gathers the pixels of either (im2col mode), at any stride. In int8 the sums of either have a scale of their own:
// a thread takes over the first one's in float registers, and adds the second one's at the end.
//
// One warp loads pixels and filters into a ring. Each of kGroups warpgroups multiplies 64 of a tile's pixels. plan.cuh
// has prepare().
#pragma once
#include "sm90/row_store.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/registers.cuh"
#include "common/ptx/shared_memory.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/wgmma.cuh"
#include "sm90/conv2d_skip/plan.cuh"

namespace at {

template <typename Config>
struct Conv2dSkip : Conv2dSkipPlan<Config> {
  using P = Conv2dSkipPlan<Config>;
  using Element = typename P::Element;
  using Input = typename P::Input;
  using Layout = typename P::Layout;
  using Params = typename P::Params;
  using Tile = typename P::Tile;

  AT_DEVICE static void run(const Params& x, char* memory) {
    const Layout smem(x, align_smem(ptx::cast_smem_ptr_to_uint(memory)));
    const int warp = ptx::warp_uniform(threadIdx.x / 32);
    if (warp == 0) {
      ptx::mbarrier_init_array(smem.full, x.slots, 1);
      ptx::mbarrier_init_array(smem.empty, x.slots, 4 * P::kGroups);
      ptx::fence_barrier_init();
    }
    if (warp == 4 * P::kGroups) {
      ptx::prefetch_tensormap(x.x_map), ptx::prefetch_tensormap(x.weight_map);
      ptx::prefetch_tensormap(x.skip_map), ptx::prefetch_tensormap(x.projection_map);
    }
    __syncthreads();
    if (warp < 4 * P::kGroups) {
      if constexpr (P::kGroups > 1) ptx::warpgroup_reg_alloc<P::kGroups == 2 ? 232 : 160>();
      multiply_all(x, smem, warp / 4);
    } else {
      if constexpr (P::kGroups > 1) ptx::warpgroup_reg_dealloc<P::kGroups == 2 ? 40 : 32>();
      if (warp == 4 * P::kGroups && ptx::elect_one_sync()) load(x, smem);
      __syncwarp();
    }
  }

 private:
  // The input's pixel under the first pixel of a tile.
  struct Origin {
    int n, h, w;
    AT_DEVICE Origin(const Params& x, const Input& input, int row) {
      n = x.out_area.divmod(row, h);
      h = x.out_width.divmod(h, w);
      h = h * input.stride_h - input.pad_h, w = w * input.stride_w - input.pad_w;
    }
  };

  // A single thread issues the loads, so nothing hides the latency of its instructions. Its loops only increment.
  AT_DEVICE static void load(const Params& x, const Layout& smem) {
    const Pipeline pipeline = P::pipeline(smem);
    PipelineState state{0, 1};
    griddepcontrol_wait();
    for (int index = blockIdx.x; index < x.tiles; index += gridDim.x) {
      const Tile tile(x, index);
      const auto step = [&](const void* pixels, const void* filters, const Input& input, const Origin& from, int chunk,
                            int tap, int offset_h, int offset_w) {
        const uint32_t full = pipeline.producer_acquire(state), to = smem.slots + state.index * P::kSlotBytes;
        ptx::mbarrier_arrive_expect_tx(full, x.fill_bytes);
        if (input.pointwise) ptx::tma_load_2d<false>(to, pixels, full, chunk * P::kK, tile.row, 0);
        else
          ptx::tma_load_im2col<false>(to, pixels, full, chunk * P::kK, from.w, from.h, from.n, offset_w, offset_h, 0);
        ptx::tma_load_3d<false>(to + P::kPixelBytes, filters, full, chunk * P::kK, tap, tile.channel, 0);
        state.advance(x.slots);
      };
      const Origin from(x, x.x, tile.row);
      int tap = 0;
      for (int r = 0; r < x.r; ++r)
        for (int s = 0; s < x.s; ++s, ++tap)
          for (int chunk = 0; chunk < x.x.chunks; ++chunk)
            step(x.x_map, x.weight_map, x.x, from, chunk, tap, r * x.dilation_h, s * x.dilation_w);
      const Origin skip(x, x.skip, tile.row);
      for (int chunk = 0; chunk < x.skip.chunks; ++chunk)
        step(x.skip_map, x.projection_map, x.skip, skip, chunk, 0, 0, 0);
    }
    launch_dependents();
  }

  using Sums = typename Config::Sum[1][P::kN / 2];
  using Scaled = float[1][P::kN / 2];

  // Adds the sums of one convolution, times their scales, to float registers.
  AT_DEVICE static void add_scaled(Scaled& to, const Sums& sums, const float* scale, const Tile& tile, int channels,
                                   bool is_first) {
#pragma unroll
    for (int columns = 0; columns < P::kN / 32; ++columns) {
      const int channel = tile.channel + 32 * columns + fragment_channel(threadIdx.x % 32);
      float factors[8];
      load_constant(factors, scale + min(channel, channels - 8));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float v[8], before[8] = {};
        load_fragment(v, sums, 0, half, columns);
        if (!is_first) load_fragment(before, to, 0, half, columns);
#pragma unroll
        for (int e = 0; e < 8; ++e) v[e] = fmaf(v[e], factors[e], before[e]);
        store_fragment(v, to, 0, half, columns);
      }
    }
  }

  AT_DEVICE static void multiply_all(const Params& x, const Layout& smem, int group) {
    const Pipeline pipeline = P::pipeline(smem);
    const int steps = P::steps(x);
    const uint32_t hi = ptx::descriptor_hi<P::kRowBytes>(8 * P::kRowBytes);
    const uint32_t pixels = ptx::descriptor_lo(smem.slots + 64 * group * P::kRowBytes),
                   filters = ptx::descriptor_lo(smem.slots + P::kPixelBytes);
    PipelineState state{0, 0};
    griddepcontrol_wait();  // the steps of the epilogue read and write tensors
#pragma unroll 1
    for (int index = blockIdx.x; index < x.tiles; index += gridDim.x) {
      const Tile tile(x, index);
      Sums sums;
      int used = -1;
      ptx::warpgroup_fence_operand(sums);
      const auto multiply = [&](int from, int to) {
#pragma unroll 1
        for (int i = from; i < to; ++i) {
          pipeline.consumer_wait(state);
          const uint32_t slot = state.index * (P::kSlotBytes / 16);
          ptx::warpgroup_arrive();
#pragma unroll
          for (int k = 0; k < P::kRowBytes / 32; ++k)
            Config::wgmma(sums[0], ptx::SmemDescriptor{pixels + slot + 2 * k, hi},
                          ptx::SmemDescriptor{filters + slot + 2 * k, hi}, i > from || k > 0);
          ptx::warpgroup_commit_batch();
          ptx::warpgroup_wait<1>();
          release(pipeline, used);
          used = state.index;
          state.advance(x.slots);
        }
      };
      const auto finish = [&] {
        ptx::warpgroup_wait<0>();
        ptx::warpgroup_fence_operand(sums);
        release(pipeline, used);
      };
      if constexpr (P::kScaled) {
        Scaled scaled;
        multiply(0, P::own_steps(x));
        finish();
        add_scaled(scaled, sums, (const float*)x.p.p[P::kScale], tile, x.k, true);
        used = -1;
        ptx::warpgroup_fence_operand(sums);
        multiply(P::own_steps(x), steps);
        const ThreadRows rows(tile.row + 64 * group, x.rows);
        store_rows<typename Config::Steps, Element>(x.p.p, x.scalars, P::kY, rows, tile.channel, x.k, scaled, [&] {
          finish();
          add_scaled(scaled, sums, (const float*)x.p.p[P::kSkipScale], tile, x.k, false);
        });
      } else {
        multiply(0, steps);
        const ThreadRows rows(tile.row + 64 * group, x.rows);
        store_rows<typename Config::Steps, Element>(x.p.p, x.scalars, P::kY, rows, tile.channel, x.k, sums, finish);
      }
    }
  }

  AT_DEVICE static void release(const Pipeline& pipeline, int slot) {
    if (slot >= 0 && threadIdx.x % 32 == 0) pipeline.consumer_release(slot);
  }
};

}  // namespace at
