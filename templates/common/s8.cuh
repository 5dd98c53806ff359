// Conversions of signed bytes that the compiler does not find: four elements, a word, at a time.
//
// An instruction that converts one byte takes eight times as long as an addition, and an int8 kernel with a residual
// has two for each element of its output.
#pragma once

namespace at {

// Round to nearest even and saturate; NaN becomes 0. One instruction converts two floats and packs them.
AT_DEVICE unsigned four_s8(float a, float b, float c, float d) {
#ifdef __CUDA_ARCH__
  unsigned word;
  asm("{\n\t"
      ".reg .s32 a, b, c, d;\n\t"
      ".reg .b32 high;\n\t"
      "cvt.rni.s32.f32 a, %1;\n\t"
      "cvt.rni.s32.f32 b, %2;\n\t"
      "cvt.rni.s32.f32 c, %3;\n\t"
      "cvt.rni.s32.f32 d, %4;\n\t"
      "cvt.pack.sat.s8.s32.b32 high, d, c, 0;\n\t"
      "cvt.pack.sat.s8.s32.b32 %0, b, a, high;\n\t"
      "}"
      : "=r"(word)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return word;
#else
  signed char bytes[4];
  from_float(bytes[0], a), from_float(bytes[1], b), from_float(bytes[2], c), from_float(bytes[3], d);
  return (bytes[0] & 0xff) | (bytes[1] & 0xff) << 8 | (bytes[2] & 0xff) << 16 | (unsigned)(bytes[3] & 0xff) << 24;
#endif
}

// Four bytes as floats, exactly: 2^23 + byte + 128 has the byte plus 128 as its lowest bits.
AT_DEVICE void four_floats(float* v, unsigned word) {
  constexpr unsigned kBias = 0x4b000000;  // 2^23
  const unsigned positive = word ^ 0x80808080;
  AT_UNROLL for (int i = 0; i < 4; ++i)
    v[i] = __uint_as_float(__byte_perm(positive, kBias, 0x7650 + i)) - 8388736.f;
}

template <int N>
AT_DEVICE Pack<signed char, N> rounded_s8(const float (&v)[N]) {
  Pack<signed char, N> pack;
  AT_UNROLL for (int i = 0; i < N; i += 4)
    reinterpret_cast<unsigned*>(pack.words)[i / 4] = four_s8(v[i], v[i + 1], v[i + 2], v[i + 3]);
  return pack;
}
template <>
AT_DEVICE Pack<signed char, 4> rounded<signed char, 4>(const float (&v)[4]) {
  return rounded_s8(v);
}
template <>
AT_DEVICE Pack<signed char, 8> rounded<signed char, 8>(const float (&v)[8]) {
  return rounded_s8(v);
}
template <>
AT_DEVICE Pack<signed char, 16> rounded<signed char, 16>(const float (&v)[16]) {
  return rounded_s8(v);
}

template <int N>
AT_DEVICE void load_s8(float (&v)[N], const Pack<signed char, N>& pack) {
  AT_UNROLL for (int i = 0; i < N; i += 4)
    four_floats(v + i, reinterpret_cast<const unsigned*>(pack.words)[i / 4]);
}
template <>
AT_DEVICE void load<4, signed char>(float (&v)[4], const Pack<signed char, 4>* from) {
  load_s8(v, *from);
}
template <>
AT_DEVICE void load<8, signed char>(float (&v)[8], const Pack<signed char, 8>* from) {
  load_s8(v, *from);
}
template <>
AT_DEVICE void load<16, signed char>(float (&v)[16], const Pack<signed char, 16>* from) {
  load_s8(v, *from);
}

template <int N>
AT_DEVICE void read_s8(float (&v)[N], const signed char* from) {
  Pack<signed char, N> pack;
  pack.read(from);
  load_s8(v, pack);
}
template <>
AT_DEVICE void load<4, signed char>(float (&v)[4], const signed char* from) {
  read_s8(v, from);
}
template <>
AT_DEVICE void load<8, signed char>(float (&v)[8], const signed char* from) {
  read_s8(v, from);
}
template <>
AT_DEVICE void load<16, signed char>(float (&v)[16], const signed char* from) {
  read_s8(v, from);
}

}  // namespace at
