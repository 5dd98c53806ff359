// wgmma: asynchronous matrix products of a warpgroup, m64nNk16 with float32 accumulators or, of bytes, m64nNk32 with
// int32 accumulators (PTX ISA 8.x, "wgmma"). The names are CUTLASS's. The product instruction itself depends on N and
// is rendered by wgmma.j2.
#pragma once

namespace at {
namespace ptx {

AT_DEVICE void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
AT_DEVICE void warpgroup_commit_batch() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most `pending` committed batches are unfinished.
template <int pending>
AT_DEVICE void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Keeps the compiler from moving accesses of the accumulators (of kBlocks products of 64 rows) across this point.
template <int kBlocks, int N>
AT_DEVICE void warpgroup_fence_operand(float (&accumulators)[kBlocks][N]) {
  AT_UNROLL for (int block = 0; block < kBlocks; ++block) AT_UNROLL
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(accumulators[block][i])::"memory");
}

template <int kBlocks, int N>
AT_DEVICE void warpgroup_fence_operand(int (&accumulators)[kBlocks][N]) {
  AT_UNROLL for (int block = 0; block < kBlocks; ++block) AT_UNROLL
    for (int i = 0; i < N; ++i) asm volatile("" : "+r"(accumulators[block][i])::"memory");
}

// Copies accumulators in program order. The compiler would move plain assignments up among unfinished products.
template <int kBlocks, int N>
AT_DEVICE void copy_accumulators(const float (&from)[kBlocks][N], float (&to)[kBlocks][N]) {
  AT_UNROLL for (int block = 0; block < kBlocks; ++block) AT_UNROLL
    for (int i = 0; i < N; ++i) asm volatile("mov.f32 %0, %1;" : "=f"(to[block][i]) : "f"(from[block][i]) : "memory");
}

// The matrix descriptor of a K-major operand in shared memory (PTX ISA, "Shared Memory Matrix Layout").
// lo: start address in units of 16 bytes, bits 0 to 13, and leading byte offset 1. hi: stride byte offset in units of
// 16 bytes, and the swizzle mode in bits 30 and 31.
struct SmemDescriptor {
  uint32_t lo, hi;
  // Moves the start address by `units` of 16 bytes.
  AT_DEVICE SmemDescriptor operator+(uint32_t units) const { return {lo + units, hi}; }
  AT_DEVICE operator uint64_t() const { return (uint64_t)hi << 32 | lo; }
};

AT_DEVICE uint32_t descriptor_lo(uint32_t address) { return (address & 0x3ffff) >> 4 | 1u << 16; }

// lo of an operand that is contiguous along its rows ("MN-major"): each K has 64 of them, in 128 swizzled bytes.
// chunk_bytes: from 64 rows to the next 64, which may overlap. The hi is that of 128 bytes, with the distance from
// eight K to the next eight.
AT_DEVICE uint32_t transposed_descriptor_lo(uint32_t address, int chunk_bytes) {
  return (address & 0x3ffff) >> 4 | (uint32_t)chunk_bytes >> 4 << 16;
}

// kRowBytes: 32, 64 or 128 bytes along K, swizzled over as many. stride_bytes: from one group of eight rows to the
// next.
template <int kRowBytes>
AT_DEVICE uint32_t descriptor_hi(int stride_bytes) {
  static_assert(kRowBytes == 32 || kRowBytes == 64 || kRowBytes == 128, "no such swizzle");
  constexpr uint32_t kSwizzle = kRowBytes == 128 ? 1 : kRowBytes == 64 ? 2 : 3;
  return kSwizzle << 30 | stride_bytes >> 4;
}

template <int kRowBytes>
AT_DEVICE SmemDescriptor smem_descriptor(uint32_t address, int stride_bytes = 8 * kRowBytes) {
  return {descriptor_lo(address), descriptor_hi<kRowBytes>(stride_bytes)};
}

}  // namespace ptx
}  // namespace at
