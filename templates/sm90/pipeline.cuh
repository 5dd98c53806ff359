// The ring of shared-memory buffers between the warp that loads by TMA and the warpgroups that multiply, as CUTLASS's
// PipelineTmaAsync. Each stage has two mbarriers: `full` completes a phase when all bytes of the stage have come,
// `empty` when all consumers have released it.
#pragma once
#include "common/ptx/mbarrier.cuh"

namespace at {

// The next stage of a ring, and the parity of its mbarriers in this round. Consumers start with phase 0. Producers
// start with phase 1, so that their first round passes the fresh `empty` barriers at once.
struct PipelineState {
  int index;
  uint32_t phase;
  AT_DEVICE void advance(int stages) {
    if (++index == stages) {
      index = 0;
      phase ^= 1;
    }
  }
  AT_DEVICE void skip(int count, int stages) {
    index += count;
    phase ^= index / stages & 1;
    index %= stages;
  }
};

struct Pipeline {
  uint32_t full, empty;  // shared addresses of the first stage's mbarriers

  AT_DEVICE uint32_t full_barrier(int stage) const { return full + ptx::kMbarrierBytes * stage; }
  AT_DEVICE uint32_t empty_barrier(int stage) const { return empty + ptx::kMbarrierBytes * stage; }

  // Waits until the stage is free. Returns the mbarrier at which the caller announces its loads' bytes and the loads
  // count them; TMA commits the stage by itself.
  AT_DEVICE uint32_t producer_acquire(const PipelineState& state) const {
    const uint32_t barrier = full + ptx::kMbarrierBytes * state.index;
    ptx::mbarrier_wait(empty + ptx::kMbarrierBytes * state.index, state.phase);
    return barrier;
  }

  // Waits until all stages are free: a block must not exit while another one may still arrive at its mbarriers.
  AT_DEVICE void producer_tail(PipelineState state, int stages) const {
    for (int i = 0; i < stages; ++i, state.advance(stages)) producer_acquire(state);
  }

  AT_DEVICE void consumer_wait(const PipelineState& state) const {
    ptx::mbarrier_wait(full + ptx::kMbarrierBytes * state.index, state.phase);
  }

  // One arrival of this warpgroup, or of this warp, at `empty`. Thread i < `producers` of the consumers releases the
  // stage to block i of the cluster, whose loads fill it.
  AT_DEVICE void consumer_release(int stage) const { ptx::mbarrier_arrive(empty_barrier(stage)); }
  AT_DEVICE void consumer_release(int stage, uint32_t block) const {
    ptx::mbarrier_arrive_cluster(empty_barrier(stage), block);
  }
};

}  // namespace at
