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

template <int N>
static inline __attribute__((always_inline)) void load(float (&v)[N], const signed char* from) {
  for (int i = 0; i < N; ++i) v[i] = from[i];
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
