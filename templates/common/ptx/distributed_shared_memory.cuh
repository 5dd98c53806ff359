// Distributed shared memory by plain loads (PTX ISA, "mapa", "ld.shared::cluster", "barrier.cluster"), sm_90 and later.
// Kernels that use none of it may include this header on any architecture.
#pragma once

namespace at {
namespace ptx {

AT_DEVICE uint32_t rank_in_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Arrives at the barrier of the cluster. What this thread wrote before is visible to the threads that wait for it.
AT_DEVICE void cluster_arrive_release() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
AT_DEVICE void cluster_wait_acquire() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Returns the float at an address of shared memory of block `block` of the cluster.
AT_DEVICE float ld_shared_cluster(uint32_t address, uint32_t block) {
  float v;
  asm volatile("{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %1, %2;\nld.shared::cluster.f32 %0, [at];\n}"
               : "=f"(v)
               : "r"(address), "r"(block)
               : "memory");
  return v;
}

// Returns four of them. The address is aligned to 16 bytes. Without a memory clobber, so that several loads are in
// flight.
AT_DEVICE float4 ld_shared_cluster_float4(uint32_t address, uint32_t block) {
  float4 v;
  asm volatile(
      "{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [at];\n}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(address), "r"(block));
  return v;
}

}  // namespace ptx
}  // namespace at
