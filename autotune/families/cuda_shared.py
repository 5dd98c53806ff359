"""What the families for every GPU share: architectures, accesses, and windows that are known at compile time."""

from __future__ import annotations

from autotune.ir import DTYPES, Conv2d, Pool2d

ARCHITECTURES = ("sm70", "sm75", "sm80", "sm86", "sm89", "sm90")
MMA_ARCHITECTURES = ("sm80", "sm86", "sm89", "sm90")
"""Those with the products of templates/cuda/mma.cuh."""
REGISTERS = 65536
"""Of a multiprocessor."""
_ACCESS = 16  # bytes


def too_wide(elements: int, dtype: str) -> str | None:
    """Family.legal of an access to so many elements."""
    return "accesses of at most 16 bytes" if elements * DTYPES[dtype].itemsize > _ACCESS else None


def odd(channels: int, vector: int) -> str | None:
    """Family.fits of kernels that access whole vectors of channels."""
    return "c must be a multiple of the vector" if channels % vector else None


def another_window(
    problem: Conv2d | Pool2d, filters: tuple[int, ...], strides: tuple[int, ...], compiled: tuple[int, int]
) -> str | None:
    """Family.fits of a kernel compiled for one (side, stride) of those given, or for any, which is (0, 0)."""
    square = problem.r == problem.s and problem.stride[0] == problem.stride[1]
    dense = not isinstance(problem, Conv2d) or problem.dilation == (1, 1)
    in_list = problem.r in filters and problem.stride[0] in strides
    known = (problem.r, problem.stride[0]) if square and dense and in_list else (0, 0)
    return None if known == compiled else f"its window and stride are {known}, of which 0 is any"
