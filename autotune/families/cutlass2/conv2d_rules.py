"""Rules of the CUTLASS 2.x forward convolution: the problems it solves, and the kernel that solves one best."""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families.base import Config, Rules, require, require_no_overflow
from autotune.families.cutlass2.tile import BITS, ThreadblockTile, require_addressable, tile_of
from autotune.families.cutlass2.tile_rules import why_illegal
from autotune.ir.operators import Conv2d, Gemm

FLAT = ("fixed_channels", "few_channels")
"""Iterators whose steps run over r*s*c as a whole instead of over c for each (r, s)."""


def as_conv2d(problem: Conv2d | Gemm) -> Conv2d:
    """Return a problem as the convolution that solves it."""
    return problem.as_conv2d if isinstance(problem, Gemm) else problem


def problem_rules(problem: Conv2d | Gemm) -> Rules:
    """Yield what a problem must be so that some kernel solves it."""
    half_gemm = isinstance(problem, Gemm) and problem.dtype in ("f16", "bf16")
    yield require(not half_gemm, "cutlass2_gemm solves matrix products of halves")
    conv = as_conv2d(problem)
    yield require(conv.groups == 1 or conv.c != conv.groups, "groups must have more than one input channel")
    yield require(conv.groups == 1 or conv.dtype != "f32", "groups must be 1 in f32: grouped kernels use tensor cores")
    yield require_no_overflow(conv.dtype, conv.r * conv.s * conv.c // conv.groups)
    yield require_addressable(conv)


def fit_rules(problem: Conv2d | Gemm, config: Config, arch: Architecture) -> Rules:
    """Yield what a kernel must be to solve a problem with the widest accesses."""
    conv = as_conv2d(problem)
    yield from alignment_rules(conv, int(config["alignment"]))
    yield from _group_rules(conv, config)
    yield from iterator_rules(conv, str(config["iterator"]), int(config["alignment"]), int(config["tile_k"]))
    yield from vector_rules(conv, tile_of(config, conv.dtype), arch)


def alignment_rules(problem: Conv2d, alignment: int) -> Rules:
    """Require that accesses to the input are the widest that divide a group's channels."""
    channels, widest = problem.c // problem.groups, 128 // BITS[problem.dtype]
    yield require(channels % alignment == 0, "alignment must divide a group's input channels")
    wider_fits = problem.dtype != "f32" and alignment < widest and channels % (2 * alignment) == 0
    yield require(not wider_fits, "alignment must be the widest that divides a group's input channels")


def vector_rules(problem: Conv2d, tile: ThreadblockTile, arch: Architecture) -> Rules:
    """Require that accesses to the output are the widest that divide its channels and compile."""
    yield require(problem.k % tile.vector == 0, "vector must divide the output channels")
    wider = (tile.vector * factor for factor in (2, 4, 8, 16))
    wider_fits = any(problem.k % v == 0 and why_illegal(tile.with_vector(v), arch) is None for v in wider)
    yield require(not wider_fits, "vector must be the widest that divides the output channels and compiles")


def iterator_rules(problem: Conv2d, iterator: str, alignment: int, tile_k: int) -> Rules:
    """Require that an iterator can solve a problem and is not beaten by another."""
    yield require(
        iterator != "optimized" or max(problem.r, problem.s) <= 32, "filters must be at most 32x32 for optimized"
    )
    if iterator in FLAT:
        yield require(
            problem.c < tile_k and problem.r * problem.s > 1,
            f"{iterator} is for fewer channels than tile_k and for several taps",
        )
        yield require(
            (iterator == "fixed_channels") == (problem.c == alignment),
            "fixed_channels is for c equal to alignment, few_channels for other multiples of it",
        )


def _group_rules(problem: Conv2d, config: Config) -> Rules:
    mode, tile_n, outputs = config["groups"], int(config["tile_n"]), problem.k // problem.groups
    yield require(
        (mode == "none") == (problem.groups == 1), f"groups is '{mode}'; the problem has {problem.groups} groups"
    )
    yield require(mode != "single" or outputs % tile_n == 0, "tile_n must divide a group's output channels")
    yield require(
        mode != "multiple" or (tile_n % outputs == 0 and outputs != tile_n),
        "a group's output channels must divide tile_n, and be fewer",
    )
