// The main loop of the convolution: the loads of a tile's operands into rings of stages, and their products.
//
// A k_block is kK channels of activations, as one load brings them. With im2col it is one filter tap of the tile's
// pixels, and one product. With patch it serves all taps of a phase of the stride. It shares its stage with the weights
// (kJoint) where both are streamed tap by tap.
#pragma once
#include "sm90/conv2d/plan.cuh"
#include "common/ptx/cluster.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/registers.cuh"
#include "common/ptx/shared_memory.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/wgmma.cuh"

namespace at {

// The producers. A single thread issues the loads of each operand, so nothing hides the latency of its instructions,
// and small tiles wait for it. Its loops therefore only increment: no divisions.
template <typename Config, typename Projection>
struct Conv2dLoads {
  using P = Conv2dPlan<Config>;
  using ClusterCoord = typename P::ClusterCoord;
  using Layout = typename P::Layout;
  using Params = typename P::Params;
  static constexpr bool kSharedActivations = P::kClusterN > 1, kSharedWeights = P::kClusterM > 1;

  // The first load or store through a tensor map would wait for the map.
  AT_DEVICE static void prefetch_maps(const Params& params, bool activations) {
    ptx::prefetch_tensormap(activations ? params.activation_map : params.weight_map);
    Projection::prefetch_maps(params, activations);
    if (P::kHidden > 0 && !activations) ptx::prefetch_tensormap(params.hidden_map);
    if (activations && params.staging_bytes) ptx::prefetch_tensormap(params.output_map);
    if (activations && params.staging_bytes && params.ahead) ptx::prefetch_tensormap(params.added_map);
  }

  // The coordinates at which the loads of a tile begin.
  struct TileOrigin {
    int pixel, n, h, w, c;  // of the activations
    int row;                // of the weights
    typename Projection::Origin skip;
    AT_DEVICE TileOrigin(const Params& params, const ClusterCoord& cta, int index) {
      const typename P::Tile tile(params, cta, index);
      pixel = tile.first_row(params) + cta.n * (P::kM / P::kClusterN);
      row = tile.n * P::kN + cta.m * (P::kN / P::kClusterM);
      c = params.group_outputs.divide(tile.n * P::kN) * params.group_channels;
      skip.set(params, tile.n * P::kN);
      n = params.out_area.divmod(P::kPatch ? tile.m : pixel, h);
      h = params.out_width.divmod(h, w);
      if (P::kPatch) {
        n *= params.images;
        h *= 8 * params.squares_h;
        w *= 8 * params.squares_w;
      }
      h = h * params.stride_h - params.pad_h;
      w = w * params.stride_w - params.pad_w;
    }
  };

  AT_DEVICE static void load_activations(const Params& params, const Layout& smem, const ClusterCoord& cta,
                                         TileOrigin from) {
    uint16_t peers = 0;
    if constexpr (kSharedActivations)
      for (int i = 0; i < P::kClusterN; ++i) peers |= 1 << cta.rank(cta.m, i, cta.slice);
    const int begin = P::first_k_block(params, cta.slice), end = P::first_k_block(params, cta.slice + 1);
    const uint32_t activations = smem.activations + cta.n * (P::kM / P::kClusterN) * P::kRowBytes;
    const typename P::KCoord first(params, begin);
    const Pipeline pipeline = P::activation_pipeline(smem);
    PipelineState state{0, 1};
    griddepcontrol_wait();
    for (int index = P::first_tile(); index < params.cluster_tiles;) {
      typename P::KCoord at = first;
      const auto next_k_block = [&](const auto& load) {
        // This is pipeline.producer_acquire(), written out: after a call the compiler orders the loop differently.
        const uint32_t full = smem.full + ptx::kMbarrierBytes * state.index;
        ptx::mbarrier_wait(smem.empty + ptx::kMbarrierBytes * state.index, state.phase);
        ptx::mbarrier_arrive_expect_tx(full, params.activation_bytes);
        load(activations + state.index * params.stage_bytes, full);
        state.advance(params.activation_stages);
      };
      const auto each_k_block = [&](const auto& load) {
        AT_NO_UNROLL for (int k_block = begin; k_block < end; ++k_block) {
          next_k_block([&](uint32_t to, uint32_t full) { load(to, full, from.c + at.chunk * P::kK); });
          at.advance(params);
        }
      };
      if (P::kPatch)
        each_k_block([&](uint32_t to, uint32_t full, int c) {
          ptx::tma_load_4d(to, params.activation_map, full, c, from.w + at.w, from.h + at.h, from.n);
        });
      else if (params.pointwise)
        each_k_block([&](uint32_t to, uint32_t full, int c) {
          ptx::tma_load_2d<kSharedActivations>(to, params.activation_map, full, c, from.pixel, peers);
        });
      else
        each_k_block([&](uint32_t to, uint32_t full, int c) {
          ptx::tma_load_im2col<kSharedActivations>(to, params.activation_map, full, c, from.w, from.h, from.n, at.w,
                                                   at.h, peers);
        });
      Projection::each_k_block(params, [&](int i) {
        next_k_block([&](uint32_t to, uint32_t full) {
          ptx::tma_load_2d<kSharedActivations>(to, params.skip_map, full, from.skip.c + i * P::kK, from.pixel, peers);
        });
      });
      index += P::tile_step();
      from = TileOrigin(params, cta, index);
    }
    launch_dependents();
    if constexpr (P::kClusterM * P::kClusterN > 1) pipeline.producer_tail(state, params.activation_stages);
  }

  AT_DEVICE static void load_weights(const Params& params, const Layout& smem, const ClusterCoord& cta,
                                     TileOrigin from) {
    constexpr int kRows = P::kN / P::kClusterM;
    uint16_t peers = 0;
    if constexpr (kSharedWeights)
      for (int i = 0; i < P::kClusterM; ++i) peers |= 1 << cta.rank(i, cta.n, cta.slice);
    const int begin = P::first_k_block(params, cta.slice), end = P::first_k_block(params, cta.slice + 1);
    const Pipeline pipeline = P::kJoint ? P::activation_pipeline(smem) : P::weight_pipeline(smem);
    const int stages = P::kJoint ? params.activation_stages : params.weight_stages;
    const int stage_bytes = P::kJoint ? params.stage_bytes : P::kWeightBytes;
    PipelineState state{0, 1};
    if (P::kResident) ptx::mbarrier_arrive_expect_tx(smem.weight_full, params.weight_stages * P::kWeightBytes);
    for (int index = P::first_tile(); index < params.cluster_tiles;) {
      const auto next = [&](const void* map, int bytes, int chunk, int tap) {
        const uint32_t full = P::kResident ? smem.weight_full : pipeline.full_barrier(state.index);
        const uint32_t stage = smem.weights + state.index * stage_bytes, to = stage + cta.m * kRows * P::kRowBytes;
        if (!P::kResident) {
          pipeline.producer_acquire(state);
          ptx::mbarrier_arrive_expect_tx(full, bytes);
        }
        ptx::tma_load_3d<kSharedWeights>(to, map, full, chunk * P::kK, tap, from.row, peers);
        if (bytes > P::kN * P::kRowBytes && cta.m == 0)  // the filters of the hidden values
          ptx::tma_load_3d<kSharedWeights>(stage + P::kN * P::kRowBytes, params.hidden_map, full, chunk * P::kK, tap, 0,
                                           peers);
        state.advance(stages);
      };
      const auto load = [&](int chunk, int tap) { next(params.weight_map, P::kWeightBytes, chunk, tap); };
      if constexpr (P::kPatch) {
        typename P::KCoord at(params, begin);
        for (int k_block = begin; k_block < end; ++k_block) {
          for (int r = at.h; r < params.r; r += params.phases_h)
            for (int tap = r * params.s + at.w; tap < (r + 1) * params.s; tap += params.phases_w) load(at.chunk, tap);
          at.advance(params);
        }
      } else {
        int chunk = P::kSlices > 1 ? begin % params.chunks : 0, tap = P::kSlices > 1 ? begin / params.chunks : 0;
        AT_NO_UNROLL for (int k_block = begin; k_block < end; ++k_block) {
          load(chunk, tap);
          if (++chunk == params.chunks) {
            chunk = 0;
            ++tap;
          }
        }
      }
      Projection::each_k_block(params, [&](int i) { next(params.projection_map, P::kN * P::kRowBytes, i, 0); });
      if (P::kResident) break;
      index += P::tile_step();
      from = TileOrigin(params, cta, index);
    }
    launch_dependents();
    if constexpr (kSharedWeights && !P::kResident) pipeline.producer_tail(state, stages);
  }
};

// The products of a warpgroup, and its position in the rings. A stage is released when the products after its own have
// been issued: `pending` stages may still be read; -1 is none.
template <typename Config>
struct Conv2dProducts {
  using P = Conv2dPlan<Config>;
  using Accum = typename P::Accum;
  using ClusterCoord = typename P::ClusterCoord;
  using Layout = typename P::Layout;
  using Params = typename P::Params;
  static constexpr int kWeightUnits = P::kWeightBytes / 16, kPixelUnits = P::kRowBytes / 16;  // of 16 bytes

  // The progress of a tile. activations, weights: the stages that the last products may still read, -1 for none.
  struct Progress {
    uint32_t resident_lo;  // of the next resident weights
    int accumulate = 0, weights = -1, activations = -1;
  };

  const Params& params;
  uint32_t block_rows[P::kBlocks], a_hi;  // A's blocks of 64 rows: offsets in a stage, in units of 16 bytes
  int k_blocks;
  uint32_t activation_lo, weight_lo;  // SmemDescriptor::lo of the first stages
  Pipeline activation_pipeline, weight_pipeline;

  AT_DEVICE Conv2dProducts(const Params& params, const Layout& smem, const ClusterCoord& cta, int first_block)
      : params(params) {
    AT_UNROLL for (int m = 0; m < P::kBlocks; ++m) {
      const int block = first_block + m;
      int row = 64 * block;
      if (P::kPatch) {
        const int square_w = block % params.squares_w, square_h = block / params.squares_w % params.squares_h;
        const int image = block / (params.squares_w * params.squares_h);
        row = (image * params.patch_h + 8 * square_h) * params.patch_w + 8 * square_w;
      }
      block_rows[m] = ptx::warp_uniform(row * P::kRowBytes / 16);
    }
    a_hi = ptx::descriptor_hi<P::kRowBytes>((P::kPatch ? params.patch_w : 8) * P::kRowBytes);
    k_blocks = P::first_k_block(params, cta.slice + 1) - P::first_k_block(params, cta.slice);
    activation_lo = ptx::descriptor_lo(smem.activations);
    weight_lo = ptx::descriptor_lo(smem.weights);
    activation_pipeline = P::activation_pipeline(smem);
    weight_pipeline = P::weight_pipeline(smem);
  }

  // Waits for a k_block and returns SmemDescriptor::lo of its activations.
  AT_DEVICE uint32_t wait(const PipelineState& activations) const {
    activation_pipeline.consumer_wait(activations);
    return activation_lo + activations.index * (params.stage_bytes >> 4);
  }

  // A k_block of gathered pixels is one product.
  AT_DEVICE void multiply_gathered(Accum& accum, uint32_t a, const PipelineState& activations, Progress& tile) const {
    if constexpr (P::kJoint) {
      multiply(accum, a, weight_lo + activations.index * (params.stage_bytes >> 4), tile.accumulate);
      ptx::warpgroup_commit_batch();
    } else {
      multiply(accum, a, tile.resident_lo, tile.accumulate);
      ptx::warpgroup_commit_batch();
      tile.resident_lo += kWeightUnits;
    }
  }

  // A k_block of a patch has a product for each tap of its phase of the stride.
  AT_DEVICE void multiply_tap(const ClusterCoord& cta, Accum& accum, uint32_t a, PipelineState& weights,
                              Progress& tile) const {
    if constexpr (P::kResident) {
      multiply(accum, a, tile.resident_lo, tile.accumulate);
      tile.resident_lo += kWeightUnits;
    } else {
      weight_pipeline.consumer_wait(weights);
      multiply(accum, a, weight_lo + weights.index * kWeightUnits, tile.accumulate);
      ptx::warpgroup_commit_batch();
      ptx::warpgroup_wait<1>();
      if (tile.weights >= 0) release_weights(cta, tile.weights);
      if (tile.activations >= 0) {
        release_activations(cta, tile.activations);
        tile.activations = -1;
      }
      tile.weights = weights.index;
      weights.advance(params.weight_stages);
    }
  }

  // Releases the k_block before. With one stage the next k_block needs this very stage, so it is waited for.
  AT_DEVICE void release_before(const ClusterCoord& cta, PipelineState& activations, Progress& tile) const {
    const bool alone = params.activation_stages == 1;
    if (alone) ptx::warpgroup_wait<0>();
    else ptx::warpgroup_wait<1>();
    if (tile.activations >= 0) release_activations(cta, tile.activations);
    tile.activations = alone ? -1 : activations.index;
    if (alone) release_activations(cta, activations.index);
    activations.advance(params.activation_stages);
  }

  // Waits for all products of a tile.
  AT_DEVICE void finish(const ClusterCoord& cta, Accum& accum, const Progress& tile) const {
    ptx::warpgroup_wait<0>();
    ptx::warpgroup_fence_operand(accum);
    if (tile.weights >= 0) release_weights(cta, tile.weights);
    if (tile.activations >= 0) release_activations(cta, tile.activations);
  }

  // Advances the rings by a tile that another warpgroup multiplies.
  AT_DEVICE void skip_tile(PipelineState& activations, PipelineState& weights) const {
    activations.skip(params.k_blocks + params.skip_k_blocks, params.activation_stages);
    if (P::kPatch && !P::kResident) weights.skip(params.r * params.s * params.chunks, params.weight_stages);
  }

  // Adds the product of kK channels. a, b: SmemDescriptor::lo of the operands. accumulate: 0 for a tile's first
  // product, with promotion the number of its products before.
  AT_DEVICE void multiply(Accum& accum, uint32_t a, uint32_t b, int& accumulate) const {
    const uint32_t b_hi = ptx::descriptor_hi<P::kRowBytes>(8 * P::kRowBytes);
    int add = accumulate;
    if constexpr (Config::kPromote > 0) {
      add = accumulate % Config::kPromote != 0;
      if (!add) promote(accum, accumulate == 0);
    }
    ptx::warpgroup_arrive();
    AT_UNROLL for (int k = 0; k < P::kRowBytes / 32; ++k) {
      AT_UNROLL for (int m = 0; m < P::kBlocks; ++m)
        Config::wgmma(accum[m], ptx::SmemDescriptor{a + block_rows[m] + 2 * k, a_hi},
                      ptx::SmemDescriptor{b + 2 * k, b_hi}, add);
      add = 1;
    }
    accumulate = Config::kPromote > 0 ? accumulate + 1 : 1;
  }

  // Releases a stage of activations to the producers of this block and, where loads are multicast, of the blocks that
  // load into it.
  AT_DEVICE void release_activations(const ClusterCoord& cta, int stage) const {
    const int thread = threadIdx.x % 128;
    if constexpr (P::kClusterM * P::kClusterN == 1 || !P::kJoint) {
      if (thread == 0) activation_pipeline.consumer_release(stage);
    } else if (thread < P::kClusterM + P::kClusterN - 1) {
      const int other = thread - P::kClusterM;  // among the other blocks of the cluster's row
      const int to = thread < P::kClusterM ? cta.rank(thread, cta.n, cta.slice)
                                           : cta.rank(cta.m, other + (other >= cta.n), cta.slice);
      activation_pipeline.consumer_release(stage, to);
    }
  }

  AT_DEVICE void release_weights(const ClusterCoord& cta, int stage) const {
    const int thread = threadIdx.x % 128;
    if constexpr (P::kClusterM == 1) {
      if (thread == 0) weight_pipeline.consumer_release(stage);
    } else {
      if (thread < P::kClusterM) weight_pipeline.consumer_release(stage, cta.rank(thread, cta.n, cta.slice));
    }
  }
};

}  // namespace at
