// Asynchronous copies to shared memory (cp.async, sm_80 and later) and ldmatrix.
#pragma once

namespace at {

AT_DEVICE void copy_async(uint32_t to, const void* from, int bytes, bool inside) {  // writes zeros unless inside
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

// Waits for all copies that this thread has issued.
AT_DEVICE void wait_for_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ldmatrix: four 8 x 8 matrices of 16-bit elements. Each lane passes the address of one 16-byte row.
AT_DEVICE void load_matrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

// The same for two matrices, whose rows are those of lanes 0 to 15.
AT_DEVICE void load_matrices(uint32_t (&to)[2], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(row)
               : "memory");
}

}  // namespace at
