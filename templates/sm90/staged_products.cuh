// The products of a warpgroup whose two operands share the stages of one ring: rows of 128 bytes, 64 deep.
#pragma once
#include "common/ptx/registers.cuh"
#include "common/ptx/wgmma.cuh"
#include "sm90/pipeline.cuh"

namespace at {

// The stages of a block: their number in the ring, how many of them are multiplied, and their distance in units of 16
// bytes. first_peer: rank of the first of the cluster's blocks that load each other's stages by multicast.
struct Stages {
  Pipeline pipeline;
  int stages, count, units;
  uint32_t first_peer = 0;
};

// Releases a stage to the loading threads of all kPeers blocks that fill it. All threads of a warpgroup call it.
template <int kPeers>
AT_DEVICE void release_stage(const Stages& stages, int stage) {
  const int thread = threadIdx.x % 128;
  if constexpr (kPeers == 1) {
    if (thread == 0) stages.pipeline.consumer_release(stage);
  } else {
    if (thread < kPeers) stages.pipeline.consumer_release(stage, stages.first_peer + thread);
  }
}

// Adds the products of all stages to sums. own, other: SmemDescriptor::lo of the operands in the first stage, the
// warpgroup's rows and the columns. kDepthUnits: from one product of a stage to the next, in units of 16 bytes.
template <typename Config, int kDepthUnits, int kPeers, int kBlocks, int kAccum>
AT_DEVICE void add_staged_products(const Stages& stages, uint32_t own, uint32_t other,
                                   float (&accum)[kBlocks][kAccum]) {
  constexpr int kBlockUnits = 64 * 128 / 16;
  const uint32_t hi = ptx::descriptor_hi<128>(8 * 128);
  PipelineState state{0, 0};
  int pending = -1;
  ptx::warpgroup_fence_operand(accum);
  for (int i = 0; i < stages.count; ++i) {
    stages.pipeline.consumer_wait(state);
    const uint32_t stage = state.index * stages.units;
    ptx::warpgroup_arrive();
    AT_UNROLL for (int k = 0; k < 4; ++k) {
      const uint32_t at = stage + k * kDepthUnits;
      AT_UNROLL for (int m = 0; m < kBlocks; ++m)
        Config::wgmma(accum[m], ptx::SmemDescriptor{own + at + m * kBlockUnits, hi},
                      ptx::SmemDescriptor{other + at, hi}, 1);
    }
    ptx::warpgroup_commit_batch();
    ptx::warpgroup_wait<1>();  // the products of the stage before
    if (pending >= 0) release_stage<kPeers>(stages, pending);
    pending = state.index;
    state.advance(stages.stages);
  }
  ptx::warpgroup_wait<0>();
  ptx::warpgroup_fence_operand(accum);
  if constexpr (kPeers > 1)
    if (pending >= 0) release_stage<kPeers>(stages, pending);  // for its producer_tail()
}

}  // namespace at
