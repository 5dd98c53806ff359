"""The C structs of templates/abi.h, for Python: packs a problem into the bytes that a kernel's `prepare` takes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from autotune.epilogue import MAX_SCALARS
from autotune.problem import AvgPool2d, Conv2d, Conv2dDgrad, Conv2dWgrad, Gemm, Problem, SeTail, SpaceToDepth

ABI_VERSION = 1
MAX_LAUNCH = 8
MAX_POINTERS = 16
WORKSPACE = MAX_POINTERS - 1

_TAIL = [("scalars", ctypes.c_float * MAX_SCALARS), ("launch", ctypes.c_int32 * MAX_LAUNCH)]


def _struct(name: str, sizes: str) -> type[ctypes.Structure]:
    fields = [(field, ctypes.c_int32) for field in sizes.split()]
    return type(name, (ctypes.Structure,), {"_fields_": [*fields, *_TAIL]})


_CONV2D = _struct("at_conv2d", "n h w c k r s p q stride_h stride_w pad_h pad_w dilation_h dilation_w groups")

STRUCTS: dict[type[Problem], type[ctypes.Structure]] = {
    **dict.fromkeys((Conv2d, Conv2dDgrad, Conv2dWgrad, Gemm), _CONV2D),
    AvgPool2d: _struct("at_avg_pool2d", "n h w c r s p q stride_h stride_w pad_h pad_w"),
    SpaceToDepth: _struct("at_space_to_depth", "n h w c block"),
    SeTail: _struct("at_se_tail", "n h w c hidden"),
}


def pack(problem: Problem, scalars: Sequence[float] = (), launch: Sequence[int] = ()) -> bytes:
    """The problem as its C struct: sizes, then the epilogue's scalars, then the family's launch values."""
    struct = STRUCTS[type(problem)]()
    problem = problem.as_conv2d if isinstance(problem, Gemm) else problem
    for name, *_ in struct._fields_[:-2]:
        setattr(struct, name, _size(problem, name))
    struct.scalars[: len(scalars)] = scalars
    struct.launch[: len(launch)] = launch
    return bytes(struct)


def _size(problem: Problem, field: str) -> int:
    name, _, axis = field.partition("_")
    value = getattr(problem, name)
    return value["hw".index(axis)] if axis else value
