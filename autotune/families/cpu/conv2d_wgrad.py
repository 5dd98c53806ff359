"""Weight gradient of a convolution on the CPU: a tile of output x input channels sums over all pixels."""

from __future__ import annotations

from math import ceil

from autotune.core import Architecture
from autotune.families.base import SHARED_LIBRARY, Config, Family, Parameter
from autotune.families.cpu.common import THREADS, threads
from autotune.families.cpu.tiles import require_registers, vectors
from autotune.ir import Conv2dWgrad, Epilogue


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return require_registers(rows=int(config["block_k"]), channels=int(config["block_c"]))


def _cost(problem: Conv2dWgrad, config: Config, arch: Architecture) -> float:
    """Estimate cycles of the busiest core for one pixel; channels behind the last block are processed one by one.

    A core does two multiply-adds and two loads a cycle; 4.5 cycles is the latency of a dependent multiply-add.
    """
    block_k, block_c = int(config["block_k"]), int(config["block_c"])
    columns = vectors(block_c)
    step = max(block_k * columns / 2, (block_k + columns) / 2, 4.5)
    k, c = problem.k // problem.groups, problem.c // problem.groups
    tiles = (k // block_k + k % block_k) * (c // block_c + c % block_c)
    return ceil(problem.groups * problem.r * problem.s * tiles / arch.processors) * step


FAMILY = Family[Conv2dWgrad](
    name="cpu_conv2d_wgrad",
    operator=Conv2dWgrad,
    kind=SHARED_LIBRARY,
    template="cpu/conv2d_wgrad.cpp.j2",
    architectures=("cpu",),
    parameters=(
        Parameter("block_k", (1, 2, 4, 6, 8, 12), "output channels of a tile"),
        Parameter("block_c", (8, 16, 32, 64), "input channels of a tile"),
    ),
    why_illegal=_why_illegal,
    cost=_cost,
    launch_parameters=(THREADS,),
    launches=threads,
)
