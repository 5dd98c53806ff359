// An 8-bit float with 4 bits of exponent and 3 of mantissa (OCP 8-bit floating point, E4M3), from sm_89 on. Conversions
// are those of cuda_fp8.h. The functions have the names that cuda/kernel.cuh uses for all element types, and are found
// there by their argument.
#pragma once
#include <cuda_fp8.h>

namespace at {

struct e4m3 {
  __nv_fp8_storage_t bits;
  AT_DEVICE explicit operator float() const { return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3))); }
};

AT_DEVICE float to_float(e4m3 v) { return (float)v; }

// Round to nearest even and saturate to +-448. Two values take one instruction.
AT_DEVICE unsigned two_e4m3(float a, float b) {
  return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
}
AT_DEVICE void from_float(e4m3& to, float v) { to.bits = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3); }
AT_DEVICE void from_floats(e4m3* to, float a, float b) {
  const unsigned both = two_e4m3(a, b);
  to[0].bits = both & 0xff, to[1].bits = both >> 8;
}

// Elements of a Pack are converted four at a time, as a word: if parts of a word are written or read by themselves, the
// compiler keeps the Pack in local memory.
template <int N>
AT_DEVICE Pack<e4m3, N> rounded_words(const float (&v)[N]) {
  Pack<e4m3, N> pack;
  AT_UNROLL for (int i = 0; i < N; i += 4)
    reinterpret_cast<unsigned*>(pack.words)[i / 4] = two_e4m3(v[i], v[i + 1]) | two_e4m3(v[i + 2], v[i + 3]) << 16;
  return pack;
}
template <>
AT_DEVICE Pack<e4m3, 4> rounded<e4m3, 4>(const float (&v)[4]) {
  return rounded_words(v);
}
template <>
AT_DEVICE Pack<e4m3, 8> rounded<e4m3, 8>(const float (&v)[8]) {
  return rounded_words(v);
}
template <>
AT_DEVICE Pack<e4m3, 16> rounded<e4m3, 16>(const float (&v)[16]) {
  return rounded_words(v);
}

AT_DEVICE float2 two_floats(unsigned two) {
  return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)two, __NV_E4M3)));
}

template <int N>
AT_DEVICE void load(float (&v)[N], const Pack<e4m3, N>* from) {
  if constexpr (N % 4 == 0) {
    AT_UNROLL for (int i = 0; i < N; i += 4) {
      const unsigned word = reinterpret_cast<const unsigned*>(from->words)[i / 4];
      const float2 low = two_floats(word & 0xffff), high = two_floats(word >> 16);
      v[i] = low.x, v[i + 1] = low.y, v[i + 2] = high.x, v[i + 3] = high.y;
    }
  } else {
    AT_UNROLL for (int i = 0; i < N; ++i)
      v[i] = to_float(from->elements[i]);
  }
}

template <int N>
AT_DEVICE void load(float (&v)[N], const e4m3* from) {
  Pack<e4m3, N> pack;
  pack.read(from);
  load(v, &pack);
}

// The maximum propagates NaN, as torch's does.
AT_DEVICE e4m3 larger(e4m3 a, e4m3 b) {
  const float x = to_float(a), y = to_float(b);
  return y > x || y != y ? b : a;
}

}  // namespace at
