// mma.sync m16n8k16 with float32 accumulators (PTX ISA, "mma"); all operands in registers.
#pragma once

namespace at {

// d (16 x 8) += a (16 x 16) b (16 x 8).
template <typename Element>
AT_DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
AT_DEVICE void mma<half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
AT_DEVICE void mma<bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Splits two neighbouring values into two operand words: the rounded values, and the rounded remainders.
template <typename Element>
AT_DEVICE void split(float a, float b, uint32_t& most, uint32_t& rest) {
  const float v[2] = {a, b};
  const Pack<Element, 2> high = rounded<Element>(v);
  const float left[2] = {a - to_float(high.elements[0]), b - to_float(high.elements[1])};
  most = high.words[0], rest = rounded<Element>(left).words[0];
}

}  // namespace at
