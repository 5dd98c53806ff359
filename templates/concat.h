// The structs of problems that concatenate their inputs. They are not in abi.h: a change of abi.h changes the source
// digests of all kernels.
#pragma once
#include "abi.h"

#define AT_MAX_PIECES 8

/* Piece i has the channels of the concatenation from end[i - 1] to end[i]. They are those from first[i] on of input i,
   which has pitch[i] channels in memory. c: channels of the output, the end of each absent piece. */
typedef struct at_concat {
  int32_t n, h, w, c, interleave, count;
  int32_t pitch[AT_MAX_PIECES], first[AT_MAX_PIECES], end[AT_MAX_PIECES];
  AT_TAIL
} at_concat;

/* A 1x1 convolution of the concatenation, with k output channels. */
typedef struct at_concat_conv2d {
  int32_t n, h, w, c, k, count;
  int32_t pitch[AT_MAX_PIECES], first[AT_MAX_PIECES], end[AT_MAX_PIECES];
  AT_TAIL
} at_concat_conv2d;
