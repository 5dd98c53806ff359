// Included by every device kernel: element types, vector accesses, the epilogue's steps, programmatic dependent launch,
// and the function that `prepare` uses to pass launch and parameters to the engine.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "abi.h"

#define AT_DEVICE __device__ __forceinline__
#define AT_UNROLL _Pragma("unroll")  // before a loop, in its line
#define AT_NO_UNROLL _Pragma("unroll 1")

extern __shared__ __align__(128) char at_shared[];  // dynamic shared memory

namespace at {

using half = __half;
using bfloat16 = __nv_bfloat16;

AT_DEVICE float to_float(half v) { return __half2float(v); }
AT_DEVICE float to_float(bfloat16 v) { return __bfloat162float(v); }
AT_DEVICE float to_float(float v) { return v; }
AT_DEVICE float to_float(signed char v) { return v; }
AT_DEVICE void from_float(half& to, float v) { to = __float2half_rn(v); }
AT_DEVICE void from_float(bfloat16& to, float v) { to = __float2bfloat16_rn(v); }
AT_DEVICE void from_float(float& to, float v) { to = v; }
// Rounds to nearest even and saturates. __float2int_rn itself saturates to 32 bits.
AT_DEVICE void from_float(signed char& to, float v) { to = (signed char)max(-128, min(127, __float2int_rn(v))); }
AT_DEVICE void from_floats(half* to, float a, float b) { *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b); }
AT_DEVICE void from_floats(bfloat16* to, float a, float b) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}
template <typename Element>
AT_DEVICE void from_floats(Element* to, float a, float b) {
  from_float(to[0], a);
  from_float(to[1], b);
}

template <int Bytes>
struct Word;
template <>
struct Word<1> {
  using type = unsigned char;
};
template <>
struct Word<2> {
  using type = unsigned short;
};
template <>
struct Word<4> {
  using type = unsigned int;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<16> {
  using type = uint4;
};

// N neighbouring elements in registers, read and written by the widest accesses that divide them.
template <typename Element, int N>
struct Pack {
  static constexpr int kBytes = N * (int)sizeof(Element);
  static constexpr int kWord = kBytes % 16 == 0  ? 16
                               : kBytes % 8 == 0 ? 8
                               : kBytes % 4 == 0 ? 4
                               : kBytes % 2 == 0 ? 2
                                                 : 1;
  using Access = typename Word<kWord>::type;
  union {
    Access words[kBytes / kWord];
    Element elements[N];
  };
  AT_DEVICE Pack() {}
  AT_DEVICE void read(const Element* from) {
    AT_UNROLL for (int i = 0; i < kBytes / kWord; ++i)
      words[i] = reinterpret_cast<const Access*>(from)[i];
  }
  AT_DEVICE void write(Element* to) const {
    AT_UNROLL for (int i = 0; i < kBytes / kWord; ++i)
      reinterpret_cast<Access*>(to)[i] = words[i];
  }
};

template <int N, typename Element>
AT_DEVICE void load(float (&v)[N], const Element* from) {
  Pack<Element, N> pack;
  pack.read(from);
  AT_UNROLL for (int i = 0; i < N; ++i)
    v[i] = to_float(pack.elements[i]);
}

template <int N, typename Element>
AT_DEVICE void load(float (&v)[N], const Pack<Element, N>* from) {
  AT_UNROLL for (int i = 0; i < N; ++i)
    v[i] = to_float(from->elements[i]);
}

// Loads from device memory that is not written while the kernel runs: the compiler may cache or move the load.
template <int N>
AT_DEVICE void load_constant(float (&v)[N], const float* from) {
  if constexpr (N % 4 == 0) {
    AT_UNROLL for (int i = 0; i < N; i += 4) {
      const float4 part = __ldg(reinterpret_cast<const float4*>(from + i));
      v[i] = part.x, v[i + 1] = part.y, v[i + 2] = part.z, v[i + 3] = part.w;
    }
  } else {
    AT_UNROLL for (int i = 0; i < N; ++i)
      v[i] = __ldg(from + i);
  }
}

template <typename Element, int N>
AT_DEVICE Pack<Element, N> rounded(const float (&v)[N]) {
  Pack<Element, N> pack;
  AT_UNROLL for (int i = 0; i + 1 < N; i += 2)
    from_floats(pack.elements + i, v[i], v[i + 1]);
  if constexpr (N % 2 == 1) from_float(pack.elements[N - 1], v[N - 1]);
  return pack;
}

template <int N, typename Element>
AT_DEVICE void store(const float (&v)[N], Element* to) {
  rounded<Element>(v).write(to);
}

// Programmatic dependent launch. No output of the previous kernel may be read before griddepcontrol_wait().
// launch_dependents() allows the next kernel's blocks to become resident. It is called near the end of a kernel: blocks
// that start while this kernel still fills the GPU are crowded onto few multiprocessors.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define AT_WAITS 1
AT_DEVICE void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
AT_DEVICE void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
#define AT_WAITS 0
AT_DEVICE void launch_dependents() {}
AT_DEVICE void griddepcontrol_wait() {}
#endif

// Parameters of a kernel that needs only the problem and the pointers.
template <typename Problem>
struct Plain {
  Problem a;
  at_pointers p;
};

template <typename Params>
AT_DEVICE void prepared(at_prepared* out, const Params& params, int grid_x, int grid_y, int grid_z, int threads,
                        int shared_bytes, int64_t workspace_bytes) {
  static_assert(sizeof(Params) <= AT_MAX_PARAMS, "the kernel's parameters exceed what a launch can carry");
  out->status = AT_OK;
  out->grid[0] = grid_x;
  out->grid[1] = grid_y;
  out->grid[2] = grid_z;
  out->threads = threads;
  out->shared_bytes = shared_bytes;
  out->params_bytes = sizeof(Params);
  out->pointers_offset = (int)((const char*)&params.p - (const char*)&params);
  out->abi_version = AT_ABI_VERSION;
  out->waits = AT_WAITS;
  out->workspace_bytes = workspace_bytes;
  out->tensor_map_count = 0;
  *reinterpret_cast<Params*>(out->params) = params;
}

// Refuses a problem. `reason` says what the kernel requires; the engine reports it to the user. A refused problem has
// no parameters, so the text is written in their place.
__device__ __noinline__ void refused(at_prepared* out, const char* reason) {
  out->status = AT_REFUSED;
  out->abi_version = AT_ABI_VERSION;
  int length = 0;
  for (; reason[length] && length < AT_MAX_PARAMS - 1; ++length) out->params[length] = reason[length];
  out->params[length] = 0;
}

AT_DEVICE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace at

#include "epilogue.h"
