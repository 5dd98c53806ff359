"""The C structs of templates/abi.h, for Python: packs a problem into the bytes that a kernel's `prepare` takes."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from functools import cache

from autotune.core import ProblemError, paths
from autotune.ir.epilogue import MAX_SCALARS
from autotune.ir.problem import MAX_OPERANDS, Problem

ABI_VERSION = 2
"""AT_ABI_VERSION of abi.h."""
MAX_LAUNCH = 8
"""Most launch values of a kernel (AT_MAX_LAUNCH of abi.h)."""
WORKSPACE = MAX_OPERANDS
"""Index of the workspace among a kernel's pointers."""
MAX_POINTERS = WORKSPACE + 1
"""Most pointers of a kernel: a problem's tensors and the workspace."""
MAP_ELEMENTS = {"f16": 6, "bf16": 9, "s8": 0, "e4m3": 0}
"""dtype -> element of an at_tensor_map (CUtensorMapDataType of the CUDA driver API)."""

_TAIL = [("scalars", ctypes.c_float * MAX_SCALARS), ("launch", ctypes.c_int32 * MAX_LAUNCH)]


def struct(operator: type[Problem]) -> type[ctypes.Structure]:
    """Return the C struct of an operator's problems: its sizes, then AT_TAIL of abi.h."""
    return _struct(operator.struct, operator.sizes)


@cache
def _struct(name: str, sizes: str) -> type[ctypes.Structure]:
    fields = [(field, ctypes.c_int32) for field in sizes.split()]
    return type(name, (ctypes.Structure,), {"_fields_": [*fields, *_TAIL]})


def declaration(operator: type[Problem]) -> str:
    """Return the line of C++ that declares an operator's struct, or an empty text if a header does.

    Every kernel's digest covers abi.h, so a struct that is added to it would make all stored kernels stale. A struct
    that no header uses is declared in the units of the kernels that take it instead.
    """
    if operator.struct in _declared():
        return ""
    return f"struct {operator.struct} {{ int32_t {', '.join(operator.sizes.split())}; AT_TAIL }};"


@cache
def _declared() -> frozenset[str]:
    """Return the names of the structs that headers of templates/ declare, of which abi.h is in every unit."""
    texts = [path.read_text() for path in paths.templates().glob("*.h")]
    return frozenset(name for text in texts for name in re.findall(r"^} (at_\w+);$", text, re.MULTILINE))


def pack_problem(
    problem: Problem,
    scalars: Sequence[float] = (),
    launch: Mapping[str, int] | None = None,
    launch_names: Sequence[str] = (),
) -> bytes:
    """Return the bytes of a problem's C struct.

    Args:
        problem: Gives the sizes.
        scalars: The operator's own scalars, then those of the epilogue: at most MAX_SCALARS.
        launch: The launch values by name.
        launch_names: The names of the launch values in the order in which the kernel takes them: at most MAX_LAUNCH.

    Raises:
        ProblemError: A launch value is missing, or the kernel does not take it.
    """
    launch = launch or {}
    if set(launch) != set(launch_names):
        taken, given = (", ".join(names) or "none" for names in (launch_names, launch))
        raise ProblemError(f"the kernel takes the launch values {taken}; given are {given}")
    packed = struct(type(problem))(*problem.struct_values())
    packed.scalars[: len(scalars)] = scalars
    packed.launch[: len(launch_names)] = [launch[name] for name in launch_names]
    return bytes(packed)
