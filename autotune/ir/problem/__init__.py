"""Problems: what one layer must compute, apart from any device.

A problem is a frozen record with a canonical text, and the text is its identity in the database:

    conv2d n=2 h=13 w=9 c=24 k=40 r=5 s=3 stride=2,1 pad=2,1 dilation=1,1 groups=1 dtype=f32 epilogue=bias,relu

`parse` reads that text back. `operands()` lists the tensors in the order in which every kernel takes its
pointers. Activations are channels last (n, h, w, c) and contiguous; convolution weights are (k, c/groups, r, s),
as torch has them, and are repacked by whoever binds a kernel that wants another order. The output is always `y`,
and the channels of an epilogue are its last axis.

base: what they have in common. dtypes, window: what they are made of. convolution, pool, pixels, fused: each of
them. registry: all by name. text: reading them.
"""

from autotune.ir.problem.base import MAX_OPERANDS, Operand, Problem, Tensors, limit_us, value_text, with_batch
from autotune.ir.problem.dtypes import DTYPES, dtype_name
from autotune.ir.problem.operators.convolution import Conv2d, Conv2dDgrad, Conv2dWgrad, Convolution, Gemm, PatchConv2d
from autotune.ir.problem.operators.fused import (
    Conv2dFoldedSe,
    Conv2dSe,
    Conv2dSeSkip,
    FoldedSe,
    SeBlock,
    SeDownBlock,
    SeTail,
    Stem,
    StemBlock,
    StemSeBlock,
    StemSeBlockPool,
)
from autotune.ir.problem.operators.pixels import Cast, Elementwise, SpaceToDepth, ToChannelsLast
from autotune.ir.problem.operators.pool import AvgPool2d, GlobalAvgPool2d, MaxPool2d, Pool2d
from autotune.ir.problem.registry import OPERATORS, register
from autotune.ir.problem.text import parse
from autotune.ir.problem.window import output_extent

__all__ = [
    "DTYPES",
    "MAX_OPERANDS",
    "OPERATORS",
    "AvgPool2d",
    "Cast",
    "Conv2d",
    "Conv2dDgrad",
    "Conv2dFoldedSe",
    "Conv2dSe",
    "Conv2dSeSkip",
    "Conv2dWgrad",
    "Convolution",
    "Elementwise",
    "FoldedSe",
    "Gemm",
    "GlobalAvgPool2d",
    "MaxPool2d",
    "Operand",
    "PatchConv2d",
    "Pool2d",
    "Problem",
    "SeBlock",
    "SeDownBlock",
    "SeTail",
    "SpaceToDepth",
    "Stem",
    "StemBlock",
    "StemSeBlock",
    "StemSeBlockPool",
    "Tensors",
    "ToChannelsLast",
    "dtype_name",
    "limit_us",
    "output_extent",
    "parse",
    "register",
    "value_text",
    "with_batch",
]
