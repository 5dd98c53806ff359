// Shared memory by 32-bit address: the loads, stores and stmatrix of the kernels' staging buffers.
// All addresses are in the shared::cta window, in bytes, and aligned to the size of the access.
#pragma once

namespace at {
namespace ptx {

AT_DEVICE uint32_t cast_smem_ptr_to_uint(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

AT_DEVICE void st_shared(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

AT_DEVICE void st_shared(uint32_t address, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}

AT_DEVICE void st_shared(uint32_t address, uint2 v) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(v.x), "r"(v.y) : "memory");
}

AT_DEVICE void st_shared(uint32_t address, float2 v) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v.x), "f"(v.y) : "memory");
}

AT_DEVICE uint32_t ld_shared_word(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

AT_DEVICE uint4 ld_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

AT_DEVICE void ld_shared(uint4& v, uint32_t address) { v = ld_shared(address); }

AT_DEVICE void ld_shared(uint2& v, uint32_t address) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
}

// Without a memory clobber: the compiler may move other memory accesses across this load.
AT_DEVICE float4 ld_shared_float4(uint32_t address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address));
  return v;
}

// Stores four 8 x 8 matrices of 16-bit elements, transposed. Lane 8 i + j gives the address of row j (16 bytes) of
// matrix i. A lane's word i holds elements 2 (lane % 4) and 2 (lane % 4) + 1 of column lane / 4 of matrix i.
AT_DEVICE void stmatrix_x4_trans(uint32_t row, const uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

}  // namespace ptx
}  // namespace at
