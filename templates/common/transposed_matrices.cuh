// ldmatrix with transposition: a lane receives two neighbouring rows of a column, where load_matrices() gives two
// neighbouring columns of a row.
#pragma once

namespace at {

// Four 8 x 8 matrices of 16-bit elements. Each lane passes the address of one 16-byte row.
AT_DEVICE void load_matrices_transposed(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

// The same for two matrices, whose rows are those of lanes 0 to 15.
AT_DEVICE void load_matrices_transposed(uint32_t (&to)[2], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(row)
               : "memory");
}

}  // namespace at
