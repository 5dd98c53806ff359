"""Resizing on a GPU, channels last."""

from __future__ import annotations

import math

from autotune.core import Architecture, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter
from autotune.families.cuda.rules import require_access
from autotune.families.rules import require
from autotune.families.upsample_rules import LINEAR, require_mode
from autotune.ir import Epilogue, Upsample

_ROWS = Parameter("rows", (1, 2, 4, 8, 16, 32), "output rows a thread; it reads an input row once for all of them")
_SPAN = 4  # most input rows that a thread's output rows span; interpolation reads one more, a quarter
_FILLED = 1 / 8  # of the threads that a GPU holds at once; `rows` that would start fewer are not timed
_CHOICES = 4  # values of `rows` that are timed, the largest


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    vector, load = int(config["vector"]), int(config["load"])
    return require_access(vector, dtype) or require(load <= vector, "a load must not exceed the vector")


def _why_unfit(problem: Upsample, config: Config, arch: Architecture) -> str | None:
    vector, row = int(config["vector"]), problem.q * problem.c
    load = math.gcd(vector, problem.c)
    return (
        require_mode(problem, config, arch)
        or require(row % vector == 0, f"an output row must be a multiple of the vector: {row} is not one of {vector}")
        or require(config["load"] == load, f"load must be the widest that divides c and the vector: {load}")
    )


def _threads(problem: Upsample, config: Config, rows: int) -> float:
    """Return the threads of a launch."""
    return problem.n * problem.p * problem.q * problem.c / (int(config["vector"]) * rows)


def _rows(problem: Upsample, config: Config, arch: Architecture) -> list[int]:
    """Return the numbers of output rows that are worth timing."""
    filled = arch.processors * arch.sm_threads * _FILLED
    longest = _SPAN * max(1.0, problem.p / problem.h)
    worth = [rows for rows in map(int, _ROWS.values) if rows <= longest and _threads(problem, config, rows) >= filled]
    return worth[-_CHOICES:] or [1, 2]


def _launches(problem: Upsample, config: Config, arch: Architecture) -> list[Launch]:
    return [{_ROWS.name: rows} for rows in _rows(problem, config, arch)]


def _cost(problem: Upsample, config: Config, arch: Architecture) -> float:
    """Rank by accesses an element, with the best of its launch values: of a row's store, and of loads of input rows."""
    vector, load, threads = (int(config[name]) for name in ("vector", "load", "threads"))
    loads = (1 + problem.linear) * vector / load

    def rank(rows: int) -> float:
        read = min(1 + problem.linear, problem.h / problem.p + problem.linear / rows)  # input rows an output row
        idle = max(1.0, arch.processors * arch.sm_threads / _threads(problem, config, rows))
        return (1 + loads * read) / vector * float(idle**0.25)

    return min(map(rank, _rows(problem, config, arch))) + threads / 65536


FAMILY = Family[Upsample](
    name="cuda_upsample",
    operator=Upsample,
    kind=DEVICE_IMAGE,
    template="cuda/upsample.cu.j2",
    architectures=cuda_architectures(),
    parameters=(
        LINEAR,
        Parameter("vector", (1, 2, 4, 8), "elements of an output row a thread, of any pixels and channels"),
        Parameter("load", (1, 2, 4, 8), "channels a load: the widest that divide c and the vector"),
        Parameter("threads", (128, 256), "threads a block"),
    ),
    launch_parameters=(_ROWS,),
    launches=_launches,
    why_illegal=_why_illegal,
    why_unfit=_why_unfit,
    cost=_cost,
    compile_seconds=(0.9, 0.1),
)
