"""Which problems the forward convolution of CUTLASS 2.x has kernels for, and which of them solves a problem best."""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families.base import Config
from autotune.families.cutlass2 import tiling
from autotune.families.cutlass2.rules import broken
from autotune.families.cutlass2.tiling import Tile, tile_of
from autotune.ir import Conv2d, Gemm, Problem

FLAT = ("fixed_channels", "few_channels")
"""Iterators whose steps run over r*s*c as a whole instead of over c for each (r, s)."""
_LONGEST_INTEGER_SUM = 2**31 // 2**14  # products of signed bytes that an int32 surely holds


def as_conv2d(problem: Problem) -> Conv2d:
    """The convolution that a problem is."""
    conv = problem.as_conv2d if isinstance(problem, Gemm) else problem
    assert isinstance(conv, Conv2d)
    return conv


def supports(problem: Problem) -> str | None:
    """Family.supports."""
    if isinstance(problem, Gemm) and problem.dtype in ("f16", "bf16"):
        return "matrix products of halves: they have a family of their own"
    problem = as_conv2d(problem)
    if problem.groups > 1 and problem.c == problem.groups:
        return "groups of one channel"
    if problem.groups > 1 and problem.dtype == "f32":
        return "groups are for tensor cores"
    if problem.dtype == "s8" and problem.r * problem.s * problem.c // problem.groups >= _LONGEST_INTEGER_SUM:
        return "sums that could overflow int32"
    return tiling.too_large(problem)


def fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    """Why a kernel cannot solve a problem, or moves less at a time than it could."""
    problem = as_conv2d(problem)
    return (
        fits_alignment(problem, int(config["alignment"]))
        or _fits_groups(problem, config)
        or fits_iterator(problem, str(config["iterator"]), int(config["alignment"]), int(config["tile_k"]))
        or fits_vector(problem, tile_of(config, problem.dtype), arch)
    )


def fits_alignment(problem: Conv2d, alignment: int) -> str | None:
    """Why an access to the input is not the widest that fits."""
    channels, widest = problem.c // problem.groups, 128 // tiling.BITS[problem.dtype]
    if channels % alignment:
        return "a group's input channels are no multiple of an access"
    if problem.dtype != "f32" and alignment < widest and channels % (2 * alignment) == 0:
        return "a wider access to the input fits"
    return None


def fits_vector(problem: Conv2d, tile: Tile, arch: Architecture) -> str | None:
    """Why an access to the output is not the widest that fits."""
    if problem.k % tile.vector:
        return "the output channels are no multiple of an access"
    wider = (tile.vector * factor for factor in (2, 4, 8, 16))
    if any(problem.k % v == 0 and broken(tile.wider(v), arch) is None for v in wider):
        return "a wider access to the output fits"
    return None


def fits_iterator(problem: Conv2d, iterator: str, alignment: int, tile_k: int) -> str | None:
    """Why an iterator is not for the problem."""
    if iterator == "optimized" and max(problem.r, problem.s) > 32:
        return "filters up to 32x32"
    if iterator in FLAT:
        if problem.c >= tile_k or problem.r * problem.s == 1:
            return "enough channels for a step"
        if (iterator == "fixed_channels") != (problem.c == alignment):
            return "fixed_channels is for exactly as many channels as an access, few_channels for other multiples"
    return None


def _fits_groups(problem: Conv2d, config: Config) -> str | None:
    mode, tile_n, outputs = config["groups"], int(config["tile_n"]), problem.k // problem.groups
    if (mode == "none") != (problem.groups == 1):
        return f"groups={problem.groups}"
    if mode == "single" and outputs % tile_n:
        return "tile_n must divide a group's output channels"
    if mode == "multiple" and (tile_n % outputs or outputs == tile_n):
        return "a group's output channels must divide tile_n, and be fewer"
    return None
