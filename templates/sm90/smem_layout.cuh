// Where a kernel's buffers lie in its dynamic shared memory. A kernel's Layout is computed by the kernel with the
// address of its memory, and by prepare() with address 0: its `end` is then the bytes that the buffers take.
#pragma once
#include "common/ptx/mbarrier.cuh"

namespace at {

// The strongest alignment that a buffer needs: TMA and wgmma with a swizzle of 128 bytes repeat every 1024 bytes. A
// kernel asks for this many bytes more than its buffers need, and aligns their beginning.
constexpr int kSmemAlignment = 1024;

AT_DEVICE constexpr uint32_t align_smem(uint32_t address) {
  return (address + kSmemAlignment - 1) / kSmemAlignment * kSmemAlignment;
}

// Hands out consecutive ranges of shared memory. It adds no padding: each size must be a multiple of the next range's
// alignment.
struct SmemLayout {
  uint32_t end;
  AT_DEVICE constexpr explicit SmemLayout(uint32_t begin) : end(begin) {}
  AT_DEVICE constexpr uint32_t add(uint32_t bytes) {
    const uint32_t begin = end;
    end += bytes;
    return begin;
  }
  AT_DEVICE constexpr uint32_t add_barriers(int count) { return add(ptx::kMbarrierBytes * count); }
};

}  // namespace at
