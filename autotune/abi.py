"""The C structs of templates/abi.h, for Python: packs a problem into the bytes that a kernel's `prepare` takes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from autotune.epilogue import MAX_SCALARS
from autotune.problem import MAX_OPERANDS, AvgPool2d, Conv2d, Problem, SeTail, SpaceToDepth

ABI_VERSION = 2
MAX_LAUNCH = 8
WORKSPACE = MAX_OPERANDS
MAX_POINTERS = WORKSPACE + 1

_TAIL = [("scalars", ctypes.c_float * MAX_SCALARS), ("launch", ctypes.c_int32 * MAX_LAUNCH)]


def _struct(name: str, sizes: str) -> type[ctypes.Structure]:
    fields = [(field, ctypes.c_int32) for field in sizes.split()]
    return type(name, (ctypes.Structure,), {"_fields_": [*fields, *_TAIL]})


STRUCTS: dict[type[Problem], type[ctypes.Structure]] = {
    Conv2d: _struct("at_conv2d", "n h w c k r s p q stride_h stride_w pad_h pad_w dilation_h dilation_w groups"),
    AvgPool2d: _struct("at_avg_pool2d", "n h w c r s p q stride_h stride_w pad_h pad_w"),
    SpaceToDepth: _struct("at_space_to_depth", "n h w c block"),
    SeTail: _struct("at_se_tail", "n h w c hidden"),
}


def pack(problem: Problem, scalars: Sequence[float] = (), launch: Sequence[int] = ()) -> bytes:
    """The problem as its C struct: sizes, then the epilogue's scalars, then the family's launch values."""
    struct = STRUCTS[type(problem)]()
    for name, *_ in struct._fields_[:-2]:
        setattr(struct, name, _size(problem, name))
    struct.scalars[: len(scalars)] = scalars
    struct.launch[: len(launch)] = launch
    return bytes(struct)


def _size(problem: Problem, field: str) -> int:
    if field in ("p", "q"):
        return problem.output_shape[1 if field == "p" else 2]
    name, _, axis = field.partition("_")
    value = getattr(problem, name)
    return value["hw".index(axis)] if axis else value
