// The ABI between kernels and the engine: plain C, versioned, shared by host and device code.
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
#define AT_WORKSPACE (AT_MAX_POINTERS - 1) /* index of the workspace among the pointers */
#define AT_MAX_PARAMS 3840                 /* bytes of kernel parameters */
#define AT_MAX_TENSOR_MAPS 8

enum at_status { AT_OK = 0, AT_REFUSED = 1, AT_FAILED = 2 };

/* Every problem struct ends with the epilogue's scalars and the family's launch values, each in declared order. */
#define AT_TAIL                  \
  float scalars[AT_MAX_SCALARS]; \
  int32_t launch[AT_MAX_LAUNCH];

#define AT_CONVOLUTION               \
  int32_t n, h, w, c, k, r, s, p, q; \
  int32_t stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups;

/* Fprop, dgrad and wgrad, all with the sizes of the forward pass. A GEMM is passed as a 1x1 convolution. */
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

/* Average and max pooling. */
typedef struct at_pool2d {
  int32_t n, h, w, c, r, s, p, q;
  int32_t stride_h, stride_w, pad_h, pad_w;
  AT_TAIL
} at_pool2d;

/* Operators that need only the shape of their input. */
typedef struct at_pixels {
  int32_t n, h, w, c;
  AT_TAIL
} at_pixels;

typedef struct at_to_channels_last {
  int32_t n, h, w, c, to;
  AT_TAIL
} at_to_channels_last;

/* p, q: sizes of the output, after the pool. */
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

/* The operands in the order of Problem.operands(); the workspace is always at AT_WORKSPACE. The engine zeroes a
   workspace once, before the first launch. A kernel that relies on zeros at its beginning restores them in every
   launch. */
typedef struct at_pointers {
  void* p[AT_MAX_POINTERS];
} at_pointers;

/* ---- Device images -------------------------------------------------------------------------------
   A kernel `S` exports two functions:
     S(Params)                                   the kernel; Params are passed by value
     S_prepare(problem, at_prepared*)            run by one thread; writes the launch configuration and the Params
   The Params hold one at_pointers, which the engine fills in: binding a kernel to tensors is a copy. A kernel
   that loads with TMA also describes its tensor maps. The engine encodes them with the tensors' addresses and
   writes them into the Params. */

/* A TMA view of one operand: the arguments of cuTensorMapEncodeTiled or, if pixels > 0, cuTensorMapEncodeIm2col.
   The innermost dimension comes first. */
typedef struct at_tensor_map {
  int32_t params_offset; /* where the map's 128 bytes go in the Params; a multiple of 64 */
  int32_t pointer;       /* index of the operand in at_pointers */
  int32_t element;       /* CUtensorMapDataType */
  int32_t swizzle;       /* CUtensorMapSwizzle */
  int32_t rank;
  int32_t pixels;  /* im2col: pixels per load; 0 for a tiled map */
  uint32_t box[5]; /* im2col: box[0] is the channels per load */
  uint32_t element_strides[5];
  int32_t lower[2], upper[2]; /* im2col: corners of the bounding box of base pixels; w first */
  uint64_t sizes[5];
  uint64_t strides[4]; /* in bytes, from dimension 1 on */
} at_tensor_map;

typedef struct at_prepared {
  uint8_t params[AT_MAX_PARAMS]; /* first, so that it has the alignment of the allocation */
  int32_t status;                /* at_status */
  int32_t grid[3];
  int32_t threads;
  int32_t shared_bytes; /* dynamic shared memory */
  int32_t params_bytes;
  int32_t pointers_offset; /* byte offset of the at_pointers in params */
  int32_t abi_version;
  int32_t waits; /* 1: the kernel calls griddepcontrol.wait, so it may be launched early */
  int64_t workspace_bytes;
  int32_t tensor_map_count;
  at_tensor_map tensor_maps[AT_MAX_TENSOR_MAPS];
} at_prepared;

/* ---- Shared libraries ----------------------------------------------------------------------------
   A library exports `const at_library* at_library_get(void)`. `prepare` does all host work once; `launch`
   allocates nothing and does not synchronize. Both return an at_status; on failure they write a message to text. */
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
