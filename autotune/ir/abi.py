"""The C structs of templates/abi.h, for Python: packs a problem into the bytes that a kernel's `prepare` takes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from autotune.ir.epilogue import MAX_SCALARS
from autotune.ir.problem import (
    MAX_OPERANDS,
    AvgPool2d,
    Cast,
    Conv2d,
    Conv2dDgrad,
    Conv2dFoldedSe,
    Conv2dSe,
    Conv2dSeSkip,
    Conv2dWgrad,
    Elementwise,
    Gemm,
    GlobalAvgPool2d,
    MaxPool2d,
    PatchConv2d,
    Problem,
    SeBlock,
    SeDownBlock,
    SeTail,
    SpaceToDepth,
    Stem,
    StemSeBlock,
    StemSeBlockPool,
    ToChannelsLast,
)

ABI_VERSION = 2
MAX_LAUNCH = 8
WORKSPACE = MAX_OPERANDS
MAX_POINTERS = WORKSPACE + 1
MAP_ELEMENTS = {"f16": 6, "bf16": 9}
"""dtype -> element of an at_tensor_map (CUtensorMapDataType)."""

_TAIL = [("scalars", ctypes.c_float * MAX_SCALARS), ("launch", ctypes.c_int32 * MAX_LAUNCH)]


def _struct(name: str, sizes: str) -> type[ctypes.Structure]:
    fields = [(field, ctypes.c_int32) for field in sizes.split()]
    return type(name, (ctypes.Structure,), {"_fields_": [*fields, *_TAIL]})


_WINDOW = "stride_h stride_w pad_h pad_w"
_CONVOLUTION = f"n h w c k r s p q {_WINDOW} dilation_h dilation_w groups"
_CONV2D = _struct("at_conv2d", _CONVOLUTION)
_CONV2D_SE = _struct("at_conv2d_se", f"{_CONVOLUTION} hidden")
_POOL2D = _struct("at_pool2d", f"n h w c r s p q {_WINDOW}")

STRUCTS: dict[type[Problem], type[ctypes.Structure]] = {
    **dict.fromkeys((Conv2d, Conv2dDgrad, Conv2dWgrad, Gemm, PatchConv2d), _CONV2D),
    **dict.fromkeys((Conv2dSe, Conv2dFoldedSe, SeDownBlock), _CONV2D_SE),
    Conv2dSeSkip: _struct("at_conv2d_se_skip", f"{_CONVOLUTION} hidden skip_c skip_groups"),
    **dict.fromkeys((AvgPool2d, MaxPool2d), _POOL2D),
    **dict.fromkeys((GlobalAvgPool2d, Elementwise, Cast), _struct("at_pixels", "n h w c")),
    ToChannelsLast: _struct("at_to_channels_last", "n h w c to"),
    Stem: _struct("at_stem", f"n h w c k r s p q {_WINDOW} pool pool_stride pool_pad"),
    SpaceToDepth: _struct("at_space_to_depth", "n h w c block"),
    SeTail: _struct("at_se_tail", "n h w c hidden"),
    SeBlock: _struct("at_se_block", "n h w c hidden"),
    **dict.fromkeys((StemSeBlock, StemSeBlockPool), _struct("at_stem_se_block", "n h w c k block hidden")),
}


def struct(operator: type[Problem]) -> type[ctypes.Structure]:
    """The C struct of a problem: one of abi.h, or what a problem from outside this package declares."""
    return STRUCTS.get(operator) or _struct(f"at_{operator.operator}", operator.sizes)


def declaration(operator: type[Problem]) -> str:
    """The line of C++ that declares a problem's struct; empty where abi.h does."""
    if operator in STRUCTS:
        return ""
    return f"struct at_{operator.operator} {{ int32_t {', '.join(operator.sizes.split())}; AT_TAIL }};"


def pack(problem: Problem, scalars: Sequence[float] = (), launch: Sequence[int] = ()) -> bytes:
    """The problem as its C struct: sizes, then its own and the epilogue's scalars, then the family's launch values."""
    packed = struct(type(problem))()
    problem = problem.as_conv2d if isinstance(problem, Gemm | PatchConv2d) else problem
    for name, *_ in packed._fields_[:-2]:
        setattr(packed, name, _size(problem, name))
    packed.scalars[: len(scalars)] = scalars
    packed.launch[: len(launch)] = launch
    return bytes(packed)


def _size(problem: Problem, field: str) -> int:
    if hasattr(problem, field):
        return int(getattr(problem, field))
    name, _, axis = field.rpartition("_")
    return int(getattr(problem, name)["hw".index(axis)])
