// The contract between kernels and the engine: plain C, versioned, shared by host and device code.
// autotune/ir/abi.py mirrors these structs; a test compiles this header and compares every offset.
#pragma once

#ifndef __CUDACC_RTC__
#include <stdint.h>
#else
typedef signed int int32_t;
typedef unsigned int uint32_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef signed long long int64_t;
typedef unsigned long long uint64_t;
#endif

#define AT_ABI_VERSION 2
#define AT_MAX_SCALARS 8
#define AT_MAX_LAUNCH 8
#define AT_MAX_POINTERS 16
#define AT_WORKSPACE (AT_MAX_POINTERS - 1) /* the workspace's place among the pointers */
#define AT_MAX_PARAMS 3840                 /* bytes of kernel parameters */
#define AT_MAX_TENSOR_MAPS 8

enum at_status { AT_OK = 0, AT_REFUSED = 1, AT_FAILED = 2 };

/* Every problem ends with the epilogue's scalars and the family's launch values, in the family's order. */
#define AT_TAIL                  \
  float scalars[AT_MAX_SCALARS]; \
  int32_t launch[AT_MAX_LAUNCH];

#define AT_CONVOLUTION               \
  int32_t n, h, w, c, k, r, s, p, q; \
  int32_t stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups;

/* All three passes of a convolution, with the sizes of the forward pass. A GEMM is passed as a 1x1 convolution. */
typedef struct at_conv2d {
  AT_CONVOLUTION
  AT_TAIL
} at_conv2d;

typedef struct at_conv2d_se {
  AT_CONVOLUTION
  int32_t hidden;
  AT_TAIL
} at_conv2d_se;

typedef struct at_conv2d_se_skip {
  AT_CONVOLUTION
  int32_t hidden, skip_c, skip_groups;
  AT_TAIL
} at_conv2d_se_skip;

/* Average and maximum. */
typedef struct at_pool2d {
  int32_t n, h, w, c, r, s, p, q;
  int32_t stride_h, stride_w, pad_h, pad_w;
  AT_TAIL
} at_pool2d;

/* What needs no more than its input's shape. */
typedef struct at_pixels {
  int32_t n, h, w, c;
  AT_TAIL
} at_pixels;

typedef struct at_to_channels_last {
  int32_t n, h, w, c, to;
  AT_TAIL
} at_to_channels_last;

/* p, q: of the output, behind the pool */
typedef struct at_stem {
  int32_t n, h, w, c, k, r, s, p, q;
  int32_t stride_h, stride_w, pad_h, pad_w, pool, pool_stride, pool_pad;
  AT_TAIL
} at_stem;

typedef struct at_space_to_depth {
  int32_t n, h, w, c, block;
  AT_TAIL
} at_space_to_depth;

typedef struct at_se_tail {
  int32_t n, h, w, c, hidden;
  AT_TAIL
} at_se_tail;

typedef struct at_se_block {
  int32_t n, h, w, c, hidden;
  AT_TAIL
} at_se_block;

typedef struct at_stem_se_block {
  int32_t n, h, w, c, k, block, hidden;
  AT_TAIL
} at_stem_se_block;

/* Operands in the order of Problem.operands(), then, in its fixed place, the workspace. A workspace is
   zeroed before the first launch, and every launch leaves its first bytes as it found them where the
   kernel relies on that. */
typedef struct at_pointers {
  void* p[AT_MAX_POINTERS];
} at_pointers;

/* ---- Device images -------------------------------------------------------------------------------
   A kernel `S` exports two functions:
     S(Params)                                   the kernel; Params passed by value
     S_prepare(problem, at_prepared*)            one thread; fills in the launch and the Params
   The Params hold one at_pointers, which the engine fills in: binding a kernel to tensors is a copy. A kernel
   that loads with TMA also asks for tensor maps, which the engine encodes, with the tensors' addresses, into the
   Params. */

/* A view of one operand for TMA, in the terms of cuTensorMapEncodeTiled or, with pixels, cuTensorMapEncodeIm2col.
   Dimensions run from the innermost. */
typedef struct at_tensor_map {
  int32_t params_offset; /* where the 128 bytes go, a multiple of 64 */
  int32_t pointer;       /* of which operand */
  int32_t element;       /* CUtensorMapDataType */
  int32_t swizzle;       /* CUtensorMapSwizzle */
  int32_t rank;
  int32_t pixels;  /* im2col: pixels of a load; 0 for a tiled map */
  uint32_t box[5]; /* im2col: box[0] channels a load */
  uint32_t element_strides[5];
  int32_t lower[2], upper[2]; /* im2col: corners of the box of starting pixels, w first */
  uint64_t sizes[5];
  uint64_t strides[4]; /* bytes; of dimensions 1 and up */
} at_tensor_map;

typedef struct at_prepared {
  uint8_t params[AT_MAX_PARAMS]; /* first, so that it is aligned as the memory is */
  int32_t status;                /* at_status */
  int32_t grid[3];
  int32_t threads;
  int32_t shared_bytes; /* dynamic shared memory */
  int32_t params_bytes;
  int32_t pointers_offset; /* of the at_pointers in params */
  int32_t abi_version;
  int32_t waits; /* 1: the kernel waits for the one before it by itself, so it may be launched early */
  int64_t workspace_bytes;
  int32_t tensor_map_count;
  at_tensor_map tensor_maps[AT_MAX_TENSOR_MAPS];
} at_prepared;

/* ---- Shared libraries ----------------------------------------------------------------------------
   A library exports `const at_library* at_library_get(void)`. `prepare` does all host work once; `launch`
   allocates nothing and does not synchronize. Both return an at_status and write its text. */
typedef struct at_kernel {
  const char* name;
  int32_t (*prepare)(const void* problem, void** state, int64_t* workspace_bytes, char* text, uint64_t text_bytes);
  int32_t (*launch)(const void* state, void* const* pointers, void* stream, char* text, uint64_t text_bytes);
  void (*release)(void* state);
} at_kernel;

typedef struct at_library {
  uint32_t abi_version;
  uint32_t count;
  const at_kernel* kernels;
} at_library;
