"""Concatenation on the CPU: pixels in parallel, blocks of channels in registers."""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families.base import SHARED_LIBRARY, Config, Family, Parameter
from autotune.families.cpu.common import BLOCK_C, THREADS, WITH_BYTES, threads
from autotune.families.rules import require
from autotune.ir import Concat


def _why_unfit(problem: Concat, config: Config, arch: Architecture) -> str | None:
    needed = 1 if problem.interleave == 1 else 0
    return require(config["interleave"] == needed, f"the problem needs a kernel with interleave={needed}")


def _cost(problem: Concat, config: Config, arch: Architecture) -> float:
    """Return the steps of the loops over a pixel's channels; those behind a block are processed one by one."""
    sizes = [piece.count for piece in problem.pieces] if problem.interleave == 1 else [problem.c]
    return sum(sum(divmod(size, int(config["block_c"]))) for size in sizes)


FAMILY = Family[Concat](
    name="cpu_concat",
    operator=Concat,
    kind=SHARED_LIBRARY,
    template="cpu/concat.cpp.j2",
    architectures=("cpu",),
    dtypes=WITH_BYTES,
    parameters=(Parameter("interleave", (1, 0), "1: no shuffle; 0: any"), BLOCK_C),
    why_unfit=_why_unfit,
    launch_parameters=(THREADS,),
    launches=threads,
    cost=_cost,
)
