// Copies to shared memory that run by themselves (cp.async, from sm_80 on), and reads of it for tensor cores.
#pragma once

namespace at {

AT_DEVICE void copy_async(uint32_t to, const void* from, int bytes, bool inside) {  // zeros from outside
  const int read = inside ? bytes : 0;
  if (bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(read) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(read) : "memory");
}

template <int kBytes>  // 4, 8 or 16
AT_DEVICE void copy_async(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes) : "memory");
}

AT_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int pending>
AT_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// All that this thread has begun.
AT_DEVICE void wait_for_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Four matrices of 8 x 8 halves, each lane naming a row of 16 bytes.
AT_DEVICE void load_matrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

}  // namespace at
