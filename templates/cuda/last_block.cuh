// Which block of a group is the last to finish: it can read what the others wrote before.
#pragma once

namespace at {

// Counts this block; returns true in all threads of the last one. It resets the counter for the next launch.
// flag: a word of shared memory.
AT_DEVICE bool is_last_block(int* counter, int blocks, int* flag) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const int arrived = atomicAdd(counter, 1);
    if (arrived == blocks - 1) *counter = 0;
    *flag = arrived == blocks - 1;
  }
  __syncthreads();
  __threadfence();
  return *flag;
}

}  // namespace at
