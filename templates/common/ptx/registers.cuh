// Warps and their registers: the elected lane, warp-uniform values, and setmaxnreg.
#pragma once

namespace at {
namespace ptx {

// True in one lane of a converged warp. The compiler knows that the branch holds a single lane.
AT_DEVICE bool elect_one_sync() {
  uint32_t chosen;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
  return chosen;
}

// Lane 0's value, which the compiler may keep in a uniform register. `value` is the same in all lanes.
AT_DEVICE int warp_uniform(int value) { return __shfl_sync(0xffffffff, value, 0); }

// Sets the registers of each thread of this warpgroup. A warpgroup that allocates waits until others have deallocated
// enough. `count` is a multiple of 8 from 24 to 256. All warps of the warpgroup execute it.
template <int count>
AT_DEVICE void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
AT_DEVICE void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

}  // namespace ptx
}  // namespace at
