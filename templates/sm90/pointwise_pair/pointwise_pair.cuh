// Two 1x1 convolutions for Hopper without the tensor between them: TMA loads, wgmma, NHWC, persistent blocks.
//
// A tile has 64 pixels for each of kGroups warpgroups, with all their input channels. The hidden channels come in
// chunks: a warpgroup multiplies its pixels by a chunk's filters, applies the steps before `conv` to the sums in
// registers, and multiplies the rounded values, from where they are, by the chunk's part of the second weight. Its
// second sums stay in registers over all chunks, then they get the steps after `conv`.
//
// The first weight's rows are in layout "wgmma", so a thread's sums are eight neighbouring channels of a pixel, which a
// step `store` writes as one vector. Rounded, the same vectors are wgmma's first operand in registers; the second
// weight's depth is in that order, too (layout "wgmma_pair", autotune/ir/weight_layout.py).
//
// A warpgroup has several things to do at the same time: the tensor cores multiply the next chunk's pixels (kAhead),
// the tensors that its steps read come from memory, and this chunk's steps run.
//
// One warp loads pixels and one loads filters, into rings of buffers. The filters are loaded once a block if they fit
// (kResident), else once a tile. plan.cuh has prepare().
#pragma once
#include "sm90/register_budget.cuh"
#include "sm90/row_store.cuh"
#include "common/ptx/ptx.cuh"
#include "sm90/pointwise_pair/plan.cuh"

namespace at {

template <typename Config>
struct PointwisePair : PointwisePairPlan<Config> {
  using P = PointwisePairPlan<Config>;
  using Element = typename P::Element;
  using Layout = typename P::Layout;
  using Params = typename P::Params;
  using Hidden = typename Config::Hidden;  // the steps before `conv`
  using Steps = typename Config::Steps;    // the steps after it
  using Registers = RegisterBudget<128, 128 * P::kGroups, P::kGroups == 2 ? 40 : 32, P::kGroups == 2 ? 232 : 160>;
  using Vector = Pack<Element, 8>;

  AT_DEVICE static void run(const Params& params, char* memory) {
    const Layout smem(params, align_smem(ptx::cast_smem_ptr_to_uint(memory)));
    const int warp = ptx::warp_uniform(threadIdx.x / 32);
    if (warp == 0) {
      init_pipeline(smem.x_pipeline, params.x_stages, 4 * P::kGroups);
      init_pipeline(smem.weight_pipeline, params.weight_stages, 4 * P::kGroups);
      ptx::fence_barrier_init();
    }
    if (warp == 4 * P::kGroups) ptx::prefetch_tensormap(params.x_map);
    if (warp == 4 * P::kGroups + 1)
      ptx::prefetch_tensormap(params.weight1_map), ptx::prefetch_tensormap(params.weight2_map);
    __syncthreads();
    if (warp < 4 * P::kGroups) {
      if constexpr (P::kGroups > 1) Registers::to_consumer();
      multiply_all(params, smem, warp / 4);
    } else {
      if constexpr (P::kGroups > 1) Registers::to_producer();
      if (ptx::elect_one_sync()) {
        if (warp == 4 * P::kGroups) load_x(params, smem);
        else if (warp == 4 * P::kGroups + 1) load_weights(params, smem);
      }
      __syncwarp();
    }
  }

 private:
  // ---- Loads ----

  AT_DEVICE static void load_x(const Params& params, const Layout& smem) {
    const Pipeline pipeline = smem.x_pipeline;
    PipelineState state{0, 1};
    griddepcontrol_wait();
    for (int tile = blockIdx.x; tile < params.tiles; tile += gridDim.x, state.advance(params.x_stages)) {
      const uint32_t full = pipeline.producer_acquire(state), to = smem.x + state.index * params.stage_bytes;
      ptx::mbarrier_arrive_expect_tx(full, params.stage_bytes);
      for (int i = 0; i < params.slabs; ++i)
        ptx::tma_load_2d<false>(to + i * P::kSlabBytes, params.x_map, full, i * P::kRow, tile * P::kRows, 0);
    }
    launch_dependents();
  }

  AT_DEVICE static void load_weights(const Params& params, const Layout& smem) {
    const Pipeline pipeline = smem.weight_pipeline;
    PipelineState state{0, 1};
    for (int tile = blockIdx.x; tile < params.tiles; tile += gridDim.x) {
      for (int chunk = 0; chunk < params.chunks; ++chunk, state.advance(params.weight_stages)) {
        const uint32_t full = pipeline.producer_acquire(state);
        const uint32_t first = smem.weights + state.index * params.weight_bytes,
                       second = first + params.slabs * P::kWeight1Bytes;
        ptx::mbarrier_arrive_expect_tx(full, params.weight_bytes);
        for (int i = 0; i < params.slabs; ++i)
          ptx::tma_load_2d<false>(first + i * P::kWeight1Bytes, params.weight1_map, full, i * P::kRow,
                                  chunk * P::kChunk, 0);
        for (int i = 0; i < P::kChunk / P::kDepth; ++i)
          ptx::tma_load_2d<false>(second + i * P::kN * P::kDepthBytes, params.weight2_map, full,
                                  chunk * P::kChunk + i * P::kDepth, 0, 0);
      }
      if (P::kResident) return;
    }
  }

  // ---- Products ----

  using HiddenAccum = typename Config::ElementAccum[1][P::kChunk / 2];
  using Accum = typename Config::ElementAccum[1][P::kN / 2];
  static constexpr int kProducts = P::kChunk * (int)sizeof(Element) / 32;  // wgmmas of a chunk's hidden channels
  using Operand = uint32_t[kProducts][4];                                  // the first operand of each
  static constexpr int kVectors = P::kChunk / 16;                          // of a thread and chunk

  AT_DEVICE static ThreadRows rows_of(const Params& params, int tile, int group) {
    return ThreadRows(tile * P::kRows + 64 * group, params.rows);
  }

  using Fetched = typename Hidden::Fetched[kVectors];

  AT_DEVICE static void fetch_hidden(const Params& params, const ThreadRows& rows, int chunk, Fetched& to) {
    AT_UNROLL for (int i = 0; i < kVectors; ++i) {
      const VectorPlace place(rows, fragment_coord<1>(i), chunk * P::kChunk, params.hidden);
      if (place.in_bounds) Hidden::fetch(to[i], params.p.p, place.offset);
    }
  }

  struct Position {
    int tile, chunk;
  };

  // The next buffers of the rings, of pixels and of filters.
  struct Rings {
    PipelineState x{0, 0}, weights{0, 0};
  };

  // The buffers of a chunk whose first product has begun.
  struct Chunk {
    int x, weights;
  };

  AT_DEVICE static uint32_t filters_of(const Params& params, const Layout& smem, Chunk chunk) {
    return smem.weights + chunk.weights * params.weight_bytes;
  }

  AT_DEVICE static Chunk begin(const Params& params, const Layout& smem, int group, Position at, Rings& rings,
                               HiddenAccum& hidden) {
    if (at.chunk == 0) smem.x_pipeline.consumer_wait(rings.x);
    if (!P::kResident) smem.weight_pipeline.consumer_wait(rings.weights);
    else if (at.tile == blockIdx.x) smem.weight_pipeline.consumer_wait({at.chunk, 0});
    const Chunk chunk{rings.x.index, P::kResident ? at.chunk : rings.weights.index};
    multiply_pixels(params, smem.x + chunk.x * params.stage_bytes + group * 64 * P::kRowBytes,
                    filters_of(params, smem, chunk), hidden);
    if (!P::kResident) rings.weights.advance(params.weight_stages);
    if (at.chunk + 1 == params.chunks) rings.x.advance(params.x_stages);
    return chunk;
  }

  AT_DEVICE static void release(const Pipeline& pipeline, int& stage) {
    if (stage >= 0 && threadIdx.x % 32 == 0) pipeline.consumer_release(stage);
    stage = -1;
  }

  // What a warpgroup keeps from chunk to chunk.
  struct Progress {
    Position at;
    Rings rings;
    Chunk chunk;               // that of `at`, if its first product has begun
    int pending_filters = -1;  // the buffer of the second product that may be unfinished
  };

  // Two steps alternate with the two sets of registers: a copy of what is still being loaded would wait for it.
  AT_DEVICE static void multiply_all(const Params& params, const Layout& smem, int group) {
    HiddenAccum hidden[P::kAhead + 1];
    Fetched fetched[2];
    Accum accum;
    Progress progress{{(int)blockIdx.x, 0}};
    griddepcontrol_wait();  // the steps read and write tensors
    if constexpr (Hidden::kFetches) fetch_hidden(params, rows_of(params, progress.at.tile, group), 0, fetched[0]);
    if constexpr (P::kAhead) {
      progress.chunk = begin(params, smem, group, progress.at, progress.rings, hidden[0]);
      ptx::warpgroup_commit_batch();  // in place of a second product, for the first wait
    }
    AT_NO_UNROLL while (true) {
      step(params, smem, group, progress, accum, hidden[0], hidden[P::kAhead], fetched[0], fetched[1]);
      if (progress.at.tile >= params.tiles) return;
      step(params, smem, group, progress, accum, hidden[P::kAhead], hidden[0], fetched[1], fetched[0]);
      if (progress.at.tile >= params.tiles) return;
    }
  }

  // A chunk. With kAhead the next chunk's first product runs while the steps before `conv` are applied to this one's.
  // Committed then are, in this order: this first product, the second one of the chunk before, the next first product.
  AT_DEVICE static void step(const Params& params, const Layout& smem, int group, Progress& progress, Accum& accum,
                             HiddenAccum& hidden, HiddenAccum& next_hidden, const Fetched& fetched,
                             Fetched& next_fetched) {
    const Position at = progress.at;
    const bool ends = at.chunk + 1 == params.chunks;
    const Position next{ends ? at.tile + (int)gridDim.x : at.tile, ends ? 0 : at.chunk + 1};
    const bool continues = next.tile < params.tiles;
    const ThreadRows rows = rows_of(params, at.tile, group);
    Chunk chunk = progress.chunk, next_chunk{};
    if constexpr (P::kAhead) {
      ptx::warpgroup_wait<1>();
      ptx::warpgroup_fence_operand(hidden);
      if (ends) release(smem.x_pipeline, chunk.x);
      if (continues) next_chunk = begin(params, smem, group, next, progress.rings, next_hidden);
    } else {
      chunk = begin(params, smem, group, at, progress.rings, hidden);
    }
    if constexpr (Hidden::kFetches)
      if (continues) fetch_hidden(params, rows_of(params, next.tile, group), next.chunk, next_fetched);
    if (P::kAhead && continues) ptx::warpgroup_wait<1>();
    else ptx::warpgroup_wait<0>();
    ptx::warpgroup_fence_operand(hidden);
    ptx::warpgroup_fence_operand(accum);
    if (!P::kAhead && ends) release(smem.x_pipeline, chunk.x);
    if (!P::kResident) release(smem.weight_pipeline, progress.pending_filters);
    Operand operand;
    finish_hidden(params, rows, at.chunk, hidden, fetched, operand);
    multiply_hidden(filters_of(params, smem, chunk) + params.slabs * P::kWeight1Bytes, operand, accum, at.chunk > 0);
    progress.pending_filters = chunk.weights;
    if (ends)
      store_rows<Steps, Element>(params.p.p, params.scalars, P::kY, rows, 0, params.k, accum, [&] {
        ptx::warpgroup_wait<0>();
        ptx::warpgroup_fence_operand(accum);
        if (!P::kResident) release(smem.weight_pipeline, progress.pending_filters);
      });
    progress.at = next, progress.chunk = next_chunk;
  }

  // The first product of a chunk: all input channels of the warpgroup's pixels.
  AT_DEVICE static void multiply_pixels(const Params& params, uint32_t pixels, uint32_t filters, HiddenAccum& hidden) {
    const uint32_t hi = ptx::descriptor_hi<P::kRowBytes>(8 * P::kRowBytes);
    uint32_t a = ptx::descriptor_lo(pixels), b = ptx::descriptor_lo(filters);
    ptx::warpgroup_arrive();
    AT_NO_UNROLL for (int slab = 0; slab < params.slabs; ++slab) {
      AT_UNROLL for (int k = 0; k < P::kRowBytes / 32; ++k)
        Config::wgmma(hidden[0], ptx::SmemDescriptor{a + 2 * k, hi}, ptx::SmemDescriptor{b + 2 * k, hi},
                      slab > 0 || k > 0);
      a += P::kSlabBytes / 16, b += P::kWeight1Bytes / 16;
    }
    ptx::warpgroup_commit_batch();
  }

  // The steps before `conv`. A channel that does not exist becomes zero: the second weight has zeros there, but a NaN
  // would spread.
  AT_DEVICE static void finish_hidden(const Params& params, const ThreadRows& rows, int chunk,
                                      const HiddenAccum& hidden, const Fetched& fetched, Operand& operand) {
    AT_UNROLL for (int i = 0; i < kVectors; ++i) {
      const FragmentCoord at = fragment_coord<1>(i);
      const VectorPlace place(rows, at, chunk * P::kChunk, params.hidden);
      float v[8];
      load_fragment(v, hidden, at);
      if (!Hidden::kStores || place.in_bounds)
        Hidden::apply(v, params.p.p, params.scalars, place.channel, place.offset, fetched[i]);
      constexpr int kWords = sizeof(Vector) / 4;
      const Vector vector = rounded<Element>(v);
      const uint32_t* words = reinterpret_cast<const uint32_t*>(vector.words);
      const bool exists = chunk * P::kChunk + at.channel() + fragment_channel(threadIdx.x % 32) < params.hidden;
      AT_UNROLL for (int j = 0; j < kWords; ++j)
        operand[kWords / 2 * at.columns + j / 2][2 * (j % 2) + at.half] = exists ? words[j] : 0;
    }
  }

  AT_DEVICE static void multiply_hidden(uint32_t filters, const Operand& operand, Accum& accum, bool accumulate) {
    const uint32_t hi = ptx::descriptor_hi<P::kDepthBytes>(8 * P::kDepthBytes);
    constexpr int kSteps = P::kDepthBytes / 32;
    ptx::warpgroup_arrive();
    AT_UNROLL for (int k = 0; k < kProducts; ++k) {
      const uint32_t b = ptx::descriptor_lo(filters + k / kSteps * P::kN * P::kDepthBytes);
      Config::wgmma(accum[0], operand[k], ptx::SmemDescriptor{b + 2 * (k % kSteps), hi}, accumulate || k > 0);
    }
    ptx::warpgroup_commit_batch();
  }
};

}  // namespace at
