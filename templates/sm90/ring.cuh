// The mbarriers of a ring of stages: their place in shared memory, and their initialization.
#pragma once
#include "sm90/pipeline.cuh"
#include "sm90/smem_layout.cuh"

namespace at {

AT_DEVICE Pipeline add_pipeline(SmemLayout& layout, int stages) {
  const uint32_t full = layout.add_barriers(stages), empty = layout.add_barriers(stages);
  return {full, empty};
}

// One thread fills the stages; `consumers` arrivals release one. A whole warp calls it.
AT_DEVICE void init_pipeline(const Pipeline& pipeline, int stages, int consumers) {
  ptx::mbarrier_init_array(pipeline.full, stages, 1);
  ptx::mbarrier_init_array(pipeline.empty, stages, consumers);
}

}  // namespace at
