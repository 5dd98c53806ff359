// A convolution plus a 1x1 convolution of another tensor, for Hopper: TMA loads, wgmma, NHWC, persistent blocks.
//
// Both convolutions are products of the same tile. Its steps are the filter taps and channels of the first, kRowBytes
// at a time, then the channels of the second, so the second one's result is not in memory. TMA gathers the pixels of
// either (im2col mode), at any stride. In 16 bits both have the same sums. In int8 the sums of either have a scale of
// their own, so a thread has both, and adds them in float.
//
// One warp loads pixels and one loads filters, into rings of shared-memory stages. Each of kGroups warpgroups
// multiplies 64 of a tile's pixels. A tile has one or several columns of kN channels, which its pixels serve one after
// the other. The filters are loaded once a block (kResident) or once a tile. TMA writes the output. plan.cuh has
// prepare().
#pragma once
#include "sm90/register_budget.cuh"
#include "sm90/row_stage.cuh"
#include "common/ptx/ptx.cuh"
#include "sm90/conv2d_skip/plan.cuh"

namespace at {

template <typename Config>
struct Conv2dSkip : Conv2dSkipPlan<Config> {
  using P = Conv2dSkipPlan<Config>;
  using Element = typename P::Element;
  using Input = typename P::Input;
  using Layout = typename P::Layout;
  using Params = typename P::Params;
  using Steps = typename Config::Steps;
  using Tile = typename P::Tile;

  AT_DEVICE static void run(const Params& params, char* memory) {
    const Layout smem(params, align_smem(ptx::cast_smem_ptr_to_uint(memory)));
    const int warp = ptx::warp_uniform(threadIdx.x / 32);
    if (warp == 0) {
      init_pipeline(smem.pixel_pipeline, params.pixel_stages, 4 * P::kGroups);
      init_pipeline(smem.filter_pipeline, params.filter_stages, 4 * P::kGroups);
      ptx::fence_barrier_init();
    }
    if (warp == 4 * P::kGroups)
      ptx::prefetch_tensormap(params.x_map), ptx::prefetch_tensormap(params.skip_map),
          ptx::prefetch_tensormap(params.output_map);
    if (warp == 4 * P::kGroups + 1)
      ptx::prefetch_tensormap(params.weight_map), ptx::prefetch_tensormap(params.projection_map);
    __syncthreads();
    if (warp < 4 * P::kGroups) {
      if constexpr (P::kGroups > 1) Registers::to_consumer();
      multiply_all(params, smem, warp / 4);
    } else {
      if constexpr (P::kGroups > 1) Registers::to_producer();
      if (ptx::elect_one_sync()) {
        if (warp == 4 * P::kGroups) load_pixels(params, smem);
        else if (warp == 4 * P::kGroups + 1) load_filters(params, smem);
      }
      __syncwarp();
    }
  }

 private:
  using Registers = RegisterBudget<128, 128 * P::kGroups, P::kGroups == 2 ? 40 : 32,
                                   P::kGroups == 2   ? 232
                                   : P::kGroups == 4 ? 112
                                                     : 160>;

  // ---- Loads. A single thread issues them, so nothing hides the latency of its instructions: no divisions in loops.

  // The input's pixel under the first pixel of a tile.
  struct Origin {
    int n, h, w;
    AT_DEVICE Origin(const Params& params, const Input& input, int row) {
      n = params.out_area.divmod(row, h);
      h = params.out_width.divmod(h, w);
      h = h * input.stride_h - input.pad_h, w = w * input.stride_w - input.pad_w;
    }
  };

  AT_DEVICE static void load_pixels(const Params& params, const Layout& smem) {
    const Pipeline pipeline = smem.pixel_pipeline;
    PipelineState state{0, 1};
    griddepcontrol_wait();
    for (int index = blockIdx.x; index < params.tiles; index += gridDim.x) {
      const Tile tile(params, index);
      const auto step = [&](const void* map, const Input& input, const Origin& from, int chunk, int offset_h,
                            int offset_w) {
        const uint32_t full = pipeline.producer_acquire(state), to = smem.pixels + state.index * P::kPixelBytes;
        ptx::mbarrier_arrive_expect_tx(full, params.pixel_bytes);
        if (input.pointwise) ptx::tma_load_2d<false>(to, map, full, chunk * P::kK, tile.row, 0);
        else ptx::tma_load_im2col<false>(to, map, full, chunk * P::kK, from.w, from.h, from.n, offset_w, offset_h, 0);
        state.advance(params.pixel_stages);
      };
      const Origin from(params, params.x, tile.row);
      for (int r = 0; r < params.r; ++r)
        for (int s = 0; s < params.s; ++s)
          for (int chunk = 0; chunk < params.x.chunks; ++chunk)
            step(params.x_map, params.x, from, chunk, r * params.dilation_h, s * params.dilation_w);
      const Origin skip(params, params.skip, tile.row);
      for (int chunk = 0; chunk < params.skip.chunks; ++chunk) step(params.skip_map, params.skip, skip, chunk, 0, 0);
    }
    launch_dependents();
  }

  AT_DEVICE static void load_filters(const Params& params, const Layout& smem) {
    const Pipeline pipeline = smem.filter_pipeline;
    PipelineState state{0, 1};
    for (int index = blockIdx.x; index < params.tiles; index += gridDim.x) {
      const Tile tile(params, index);
      for (int column = tile.column; column < tile.end; ++column) {
        const auto step = [&](const void* map, int chunk, int tap) {
          const uint32_t full = pipeline.producer_acquire(state);
          ptx::mbarrier_arrive_expect_tx(full, P::kFilterBytes);
          ptx::tma_load_3d<false>(smem.filters + state.index * P::kFilterBytes, map, full, chunk * P::kK, tap,
                                  column * P::kN, 0);
          state.advance(params.filter_stages);
        };
        for (int tap = 0; tap < params.r * params.s; ++tap)
          for (int chunk = 0; chunk < params.x.chunks; ++chunk) step(params.weight_map, chunk, tap);
        for (int chunk = 0; chunk < params.skip.chunks; ++chunk) step(params.projection_map, chunk, 0);
      }
      if (P::kResident) return;
    }
  }

  // ---- Products

  using Accum = typename Config::ElementAccum[1][P::kN / 2];
  using Scaled = float[1][P::kN / 2];

  // A warpgroup's place in both rings.
  struct Rings {
    PipelineState pixels{0, 0}, filters{0, 0};
  };

  // The stages of a step whose products may be unfinished; a stage that stays in use is -1.
  struct Pending {
    int pixels = -1, filters = -1;
  };

  AT_DEVICE static void release(const Layout& smem, Pending& pending) {
    if (threadIdx.x % 32 == 0) {
      if (pending.pixels >= 0) smem.pixel_pipeline.consumer_release(pending.pixels);
      if (!P::kResident && pending.filters >= 0) smem.filter_pipeline.consumer_release(pending.filters);
    }
    pending = Pending{};
  }

  // Begins the products of some steps, and ends all but the last one's.
  AT_DEVICE static void multiply(const Params& params, const Layout& smem, int group, int steps, bool is_last_column,
                                 Rings& rings, Pending& pending, Accum& accum) {
    const uint32_t hi = ptx::descriptor_hi<P::kRowBytes>(8 * P::kRowBytes);
    const uint32_t pixels = ptx::descriptor_lo(smem.pixels + 64 * group * P::kRowBytes);
    const uint32_t filters = ptx::descriptor_lo(smem.filters);
    AT_NO_UNROLL for (int i = 0; i < steps; ++i) {
      smem.pixel_pipeline.consumer_wait(rings.pixels);
      smem.filter_pipeline.consumer_wait(rings.filters);
      const uint32_t a = pixels + rings.pixels.index * (P::kPixelBytes / 16);
      const uint32_t b = filters + rings.filters.index * (P::kFilterBytes / 16);
      ptx::warpgroup_arrive();
      AT_UNROLL for (int k = 0; k < P::kRowBytes / 32; ++k)
        Config::wgmma(accum[0], ptx::SmemDescriptor{a + 2 * k, hi}, ptx::SmemDescriptor{b + 2 * k, hi}, i > 0 || k > 0);
      ptx::warpgroup_commit_batch();
      ptx::warpgroup_wait<1>();
      release(smem, pending);
      pending = {is_last_column ? rings.pixels.index : -1, rings.filters.index};
      rings.pixels.advance(params.pixel_stages);
      if constexpr (P::kResident) ++rings.filters.index;
      else rings.filters.advance(params.filter_stages);
    }
  }

  AT_DEVICE static void multiply_all(const Params& params, const Layout& smem, int group) {
    const int steps = P::steps(params), own_steps = P::kScaled ? P::own_steps(params) : steps;
    const int warp = threadIdx.x / 32 % 4;
    Rings rings;
    typename P::Stage stage{smem.staging + (4 * group + warp) * P::Stage::kWarpBytes};
    griddepcontrol_wait();  // the steps of the epilogue read and write tensors
    AT_NO_UNROLL for (int index = blockIdx.x; index < params.tiles; index += gridDim.x) {
      const Tile tile(params, index);
      const int first_row = tile.row + 64 * group, warp_row = first_row + 16 * warp;
      const ThreadRows rows(first_row, params.rows);
      const PipelineState first = rings.pixels;
      if constexpr (P::kResident) rings.filters = {0, 0};  // they have arrived for good
      AT_NO_UNROLL for (int column = tile.column; column < tile.end; ++column) {
        const bool is_last = column + 1 == tile.end;
        const int channel = column * P::kN;
        Accum accum;
        Pending pending;
        rings.pixels = first;
        ptx::warpgroup_fence_operand(accum);
        multiply(params, smem, group, own_steps, is_last, rings, pending, accum);
        if constexpr (P::kScaled) {
          Accum skip;
          Scaled scaled;
          ptx::warpgroup_fence_operand(skip);
          multiply(params, smem, group, steps - own_steps, is_last, rings, pending, skip);
          const auto finish = [&] {
            ptx::warpgroup_wait<0>();
            ptx::warpgroup_fence_operand(accum), ptx::warpgroup_fence_operand(skip);
            release(smem, pending);
            add_scaled(scaled, accum, skip, params.p.p, channel, params.k);
          };
          stage_rows<Steps>(params.p.p, params.scalars, params.output_map, stage, rows, warp_row, channel, params.k,
                            scaled, finish);
        } else {
          const auto finish = [&] {
            ptx::warpgroup_wait<0>();
            ptx::warpgroup_fence_operand(accum);
            release(smem, pending);
          };
          stage_rows<Steps>(params.p.p, params.scalars, params.output_map, stage, rows, warp_row, channel, params.k,
                            accum, finish);
        }
      }
    }
    ptx::tma_store_wait<0>();  // before the block's memory goes
  }

  // Adds the sums of both convolutions, times their scales. first: the tile's first channel.
  AT_DEVICE static void add_scaled(Scaled& to, const Accum& accum, const Accum& skip, void* const* p, int first,
                                   int channels) {
    AT_UNROLL for (int columns = 0; columns < P::kN / 32; ++columns) {
      const int channel = min(first + 32 * columns + fragment_channel(threadIdx.x % 32), channels - 8);
      float scale[8], skip_scale[8];
      load_constant(scale, (const float*)p[P::kScale] + channel);
      load_constant(skip_scale, (const float*)p[P::kSkipScale] + channel);
      AT_UNROLL for (int half = 0; half < 2; ++half) {
        float v[8], other[8];
        load_fragment(v, accum, 0, half, columns);
        load_fragment(other, skip, 0, half, columns);
        AT_UNROLL for (int e = 0; e < 8; ++e)
          v[e] = fmaf(other[e], skip_scale[e], v[e] * scale[e]);
        store_fragment(v, to, 0, half, columns);
      }
    }
  }
};

}  // namespace at
