"""Resizing on a GPU, channels last."""

from __future__ import annotations

import math

from autotune.core import Architecture
from autotune.families.base import Config, Launch, Parameter, Rules, require
from autotune.families.cuda.common import CudaFamily
from autotune.families.cuda.rules import require_access
from autotune.families.shared_rules import LINEAR, UpsampleFamily
from autotune.ir import Epilogue
from autotune.ir.operators import Upsample

_ROWS = Parameter("rows", (1, 2, 4, 8, 16, 32), "output rows a thread; it reads an input row once for all of them")
_SPAN = 4  # most input rows that a thread's output rows span; interpolation reads one more, a quarter
_FILLED = 1 / 8  # of the threads that a GPU holds at once; `rows` that would start fewer are not timed
_CHOICES = 4  # values of `rows` that are timed, the largest


def _threads(problem: Upsample, config: Config, rows: int) -> float:
    """Return the threads of a launch."""
    return problem.n * problem.p * problem.q * problem.c / (int(config["vector"]) * rows)


def _rows(problem: Upsample, config: Config, arch: Architecture) -> list[int]:
    filled = arch.processors * arch.sm_threads * _FILLED
    longest = _SPAN * max(1.0, problem.p / problem.h)
    worth = [rows for rows in map(int, _ROWS.values) if rows <= longest and _threads(problem, config, rows) >= filled]
    return worth[-_CHOICES:] or [1, 2]


class CudaUpsample(UpsampleFamily, CudaFamily[Upsample]):
    """A thread computes a vector of an output row, in one or several rows."""

    name = "cuda_upsample"
    template = "cuda/upsample.cu.j2"
    parameters = (
        LINEAR,
        Parameter("vector", (1, 2, 4, 8), "elements of an output row a thread, of any pixels and channels"),
        Parameter("load", (1, 2, 4, 8), "channels a load: the widest that divide c and the vector"),
        Parameter("threads", (128, 256), "threads a block"),
    )
    launch_parameters = (_ROWS,)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        vector, load = int(config["vector"]), int(config["load"])
        yield require_access(vector, dtype)
        yield require(load <= vector, "a load must not exceed the vector")

    def unfit(self, problem: Upsample, config: Config, arch: Architecture) -> Rules:
        vector, row = int(config["vector"]), problem.q * problem.c
        load = math.gcd(vector, problem.c)
        yield from super().unfit(problem, config, arch)
        yield require(
            row % vector == 0, f"an output row must be a multiple of the vector: {row} is not one of {vector}"
        )
        yield require(config["load"] == load, f"load must be the widest that divides c and the vector: {load}")

    def launches(self, problem: Upsample, config: Config, arch: Architecture) -> list[Launch]:
        return [{_ROWS.name: rows} for rows in _rows(problem, config, arch)]

    def cost(self, problem: Upsample, config: Config, arch: Architecture) -> float:
        """Rank by accesses an element with the best launch values: of a row's store, and of loads of input rows."""
        vector, load, threads = (int(config[name]) for name in ("vector", "load", "threads"))
        loads = (1 + problem.linear) * vector / load

        def rank(rows: int) -> float:
            read = min(1 + problem.linear, problem.h / problem.p + problem.linear / rows)  # input rows an output row
            idle = max(1.0, arch.processors * arch.sm_threads / _threads(problem, config, rows))
            return (1 + loads * read) / vector * float(idle**0.25)

        return min(map(rank, _rows(problem, config, arch))) + threads / 65536


FAMILIES = (CudaUpsample(),)
