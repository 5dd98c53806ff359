// Barriers: mbarriers in shared memory, and the 16 named barriers of a block (PTX ISA 8.x, "mbarrier", "bar").
//
// A phase of an mbarrier completes when all expected arrivals and all expected bytes (TMA, st.async) have come. Phases
// alternate between parity 0 and 1. mbarrier_wait(b, parity) returns when the current phase's parity differs from
// `parity`: a fresh barrier passes parity 1 at once, and passes parity 0 after its first phase.
#pragma once
#include "common/ptx/registers.cuh"

namespace at {
namespace ptx {

constexpr int kMbarrierBytes = 8;

AT_DEVICE void mbarrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Initializes `count` consecutive mbarriers. A whole warp calls it; one lane does it, since the stores of several lanes
// would be serialized.
AT_DEVICE void mbarrier_init_array(uint32_t first, int count, int arrivals) {
  if (elect_one_sync())
#pragma unroll 4
    for (int i = 0; i < count; ++i) mbarrier_init(first + kMbarrierBytes * i, arrivals);
  __syncwarp();
}

// Makes initialized mbarriers visible to TMA and to the other blocks of the cluster.
AT_DEVICE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

AT_DEVICE void mbarrier_arrive_expect_tx(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

AT_DEVICE void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the mbarrier with the same offset in block `block` of the cluster.
AT_DEVICE void mbarrier_arrive_cluster(uint32_t barrier, uint32_t block) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(block)
      : "memory");
}

AT_DEVICE void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- Named barriers. Barrier 0 is that of __syncthreads(). ----

// kThreads threads of the block, in whole warps, wait for each other.
template <int kName, int kThreads>
AT_DEVICE void named_barrier_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(kName), "n"(kThreads) : "memory");
}

// Arrives without waiting.
template <int kName, int kThreads>
AT_DEVICE void named_barrier_arrive() {
  asm volatile("bar.arrive %0, %1;" ::"n"(kName), "n"(kThreads) : "memory");
}

// The same as named_barrier_sync<name, kThreads>() with a name that is known only at run time.
template <int kThreads>
AT_DEVICE void named_barrier_sync(int name) {
  asm volatile("barrier.sync.aligned %0, %1;" ::"r"(name), "n"(kThreads) : "memory");
}

}  // namespace ptx
}  // namespace at
