// The ring of shared-memory buffers between the warp that loads by TMA and the warpgroups that multiply, as
// CUTLASS's PipelineTmaAsync: each stage has a `full` mbarrier, which completes when all its bytes have come, and an
// `empty` one, which completes when all consumers have released it.
#pragma once


namespace at {

// The next stage of a ring, and the parity of its mbarriers in this round.
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

}  // namespace at
