// Included by every CPU kernel: element types, the epilogue's steps, and the ABI entry around a plain function.
#pragma once
#include <stdlib.h>
#include <string.h>

#include "abi.h"

namespace at {

template <int N>
static inline __attribute__((always_inline)) void load(float (&v)[N], const float* from) {
  memcpy(v, from, sizeof v);
}

// An 8-bit float with 4 bits of exponent and 3 of mantissa (OCP 8-bit floating point, E4M3).
struct e4m3 {
  unsigned char bits;
};

static inline __attribute__((always_inline)) float to_float(float v) { return v; }
static inline __attribute__((always_inline)) float to_float(signed char v) { return v; }
static inline __attribute__((always_inline)) float to_float(e4m3 v);

template <int N, typename Element>
static inline __attribute__((always_inline)) void load(float (&v)[N], const Element* from) {
  for (int i = 0; i < N; ++i) v[i] = to_float(from[i]);
}

template <int N>
static inline __attribute__((always_inline)) void load_constant(float (&v)[N], const float* from) {
  load(v, from);
}

template <int N>
static inline __attribute__((always_inline)) void store(const float (&v)[N], float* to) {
  memcpy(to, v, sizeof v);
}

}  // namespace at

#include "epilogue.h"

namespace at {

// Rounds to nearest even and saturates. NaN becomes 0, as on a GPU.
template <int N>
AT_INLINE void store(const float (&v)[N], signed char* to) {
  constexpr float round = 12582912.f;  // 1.5 * 2^23: adding it leaves the rounded integer in the low mantissa bits
  signed char bytes[N];
  for (int i = 0; i < N; ++i) bytes[i] = (signed char)to_bits(clamped(v[i], -128.f, 127.f) + round);
  memcpy(to, bytes, N);
}

// The exponent's bias is 7, and that of float 127. Without branches, so that loops vectorize, and without subnormal
// floats, which are slow.
AT_INLINE float to_float(e4m3 v) {
  const uint32_t magnitude = v.bits & 0x7f;
  const float normal = from_bits((magnitude << 20) + (120u << 23));
  const float finite = magnitude < 8 ? 2.f * (normal - 0.0078125f) : normal;  // subnormal: multiples of 2^-9
  const uint32_t sign = (uint32_t)(v.bits & 0x80) << 24;
  return from_bits((magnitude == 0x7f ? 0x7fc00000u : to_bits(finite)) | sign);
}

// Rounds to nearest even and saturates to +-448; NaN stays NaN.
AT_INLINE unsigned char to_e4m3(float v) {
  const uint32_t sign = to_bits(v) >> 24 & 0x80, all = to_bits(v) & 0x7fffffff;
  const uint32_t bits = all < 0x43e00000u ? all : 0x43e00000u;  // 448
  const uint32_t normal = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120u << 3);
  // 16384 has a last bit of 2^-9, in which subnormal numbers count.
  const uint32_t subnormal = to_bits(from_bits(bits) + 16384.f) - to_bits(16384.f);
  const uint32_t rounded = bits < 0x3c800000u ? subnormal : normal;  // 2^-6
  return (unsigned char)(sign | (all > 0x7f800000u ? 0x7f : rounded));
}

template <int N>
AT_INLINE void store(const float (&v)[N], e4m3* to) {
  unsigned char bytes[N];
  for (int i = 0; i < N; ++i) bytes[i] = to_e4m3(v[i]);
  memcpy(to, bytes, N);
}

// The ABI entry of a kernel that is a function of its problem and pointers. Its state is a copy of the problem.
template <typename Problem, void (*run)(const Problem&, void* const*)>
struct Entry {
  static int32_t prepare(const void* problem, void** state, int64_t* workspace_bytes, char* text, uint64_t text_bytes) {
    *workspace_bytes = 0;
    *state = malloc(sizeof(Problem));
    if (!*state) {
      strncpy(text, "no memory for the kernel's state", text_bytes);
      return AT_FAILED;
    }
    memcpy(*state, problem, sizeof(Problem));
    return AT_OK;
  }
  static int32_t launch(const void* state, void* const* pointers, void*, char*, uint64_t) {
    run(*static_cast<const Problem*>(state), pointers);
    return AT_OK;
  }
  static void release(void* state) { free(state); }
};

}  // namespace at
