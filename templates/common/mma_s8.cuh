// mma.sync m16n8k32 of signed bytes with int32 accumulators (PTX ISA, "mma"); all operands in registers.
//
// The registers hold the bytes of m16n8k16 in half precision: where that has two channels, this has four. So ldmatrix
// loads the operands of both alike, and the accumulators are the same elements of the product.
#pragma once

namespace at {

// d (16 x 8) += a (16 x 32) b (32 x 8). A sum beyond int32 wraps; families refuse problems with as many products.
template <typename Element>
AT_DEVICE void mma(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
AT_DEVICE void mma<signed char>(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace at
