// Thread block clusters and distributed shared memory (PTX ISA 8.x, "barrier.cluster", "mapa", "st.async").
#pragma once

namespace at {
namespace ptx {

AT_DEVICE uint32_t block_rank_in_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Waits for all threads of all blocks of the cluster. Relaxed: it orders no memory accesses, since a fence at the scope
// of the GPU is expensive and mbarriers order what the kernels exchange.
AT_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Waits for all threads of the block or, with kCluster > 1, of all blocks of the cluster.
template <int kCluster>
AT_DEVICE void cluster_or_block_sync() {
  if constexpr (kCluster > 1) cluster_sync();
  else __syncthreads();
}

// cluster_sync() in two steps, for threads that are not converged. Threads that have exited count as arrived.
AT_DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
AT_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait;" ::: "memory"); }

// Stores 16 bytes at the same offset in block `block` of the cluster, and counts them at the mbarrier with that offset
// there.
AT_DEVICE void st_async(uint32_t address, uint32_t barrier, uint32_t block, float4 v) {
  asm volatile(
      "{\n.reg .b32 to, at;\nmapa.shared::cluster.u32 to, %0, %2;\nmapa.shared::cluster.u32 at, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], {%3, %4, %5, %6}, [at];\n}" ::"r"(
          address),
      "r"(barrier), "r"(block), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}

// Copies `bytes` (a multiple of 16) from this block's shared memory to offset `to` of block `block` by TMA, and counts
// them at the mbarrier with offset `barrier` there. Call fence_view_async_shared() after the source is written.
AT_DEVICE void bulk_copy_dsmem(uint32_t from, uint32_t to, int bytes, uint32_t barrier, uint32_t block) {
  asm volatile(
      "{\n.reg .b32 place, at;\nmapa.shared::cluster.u32 place, %1, %4;\nmapa.shared::cluster.u32 at, %3, %4;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [place], [%0], %2, [at];\n}" ::"r"(from),
      "r"(to), "r"(bytes), "r"(barrier), "r"(block)
      : "memory");
}

}  // namespace ptx
}  // namespace at
