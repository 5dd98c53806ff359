"""Max pooling in training on a GPU, channels last: values and places."""

from __future__ import annotations

from math import ceil

from autotune.core import Architecture, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Parameter
from autotune.families.base import RecordFamily as Family
from autotune.families.cuda import known_window
from autotune.families.rules import Rules, first_unmet, require
from autotune.ir import DTYPES, Epilogue, MaxPool2dPlaces

_MAX_REGISTERS = 128  # of a thread's windows and one row of pixels, an estimate


def _wide(config: Config) -> int:
    """Return the pixels of a row that a thread reads at once."""
    return (int(config["columns"]) - 1) * int(config["stride"]) + int(config["filter"])


def _registers(config: Config, dtype: str) -> int:
    """Return the registers of a thread: the largest values with their places, and a row of pixels."""
    words = DTYPES[dtype].itemsize / 4
    return ceil(int(config["vector"]) * words * (2 * int(config["columns"]) + _wide(config)))


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    def rules() -> Rules:
        yield from known_window.column_rules(config, dtype)
        registers = _registers(config, dtype)
        yield require(
            registers <= _MAX_REGISTERS, f"a thread must fit {_MAX_REGISTERS} registers; it takes {registers}"
        )

    return first_unmet(rules())


def _cost(problem: MaxPool2dPlaces, config: Config, arch: Architecture) -> float:
    """Rank by accesses an output; they cost more where too few threads hide their latency."""
    vector, columns = int(config["vector"]), int(config["columns"])
    wide = (columns - 1) * problem.stride[1] + problem.s
    started = problem.n * problem.p * ceil(problem.q / columns) * problem.c / vector
    idle = max(1.0, arch.processors * arch.sm_threads / 2 / started)
    return (problem.r * wide / columns + 2) * 8 / vector * idle + abs(int(config["threads"]) - 128) / 1024


FAMILY = Family[MaxPool2dPlaces](
    name="cuda_max_pool2d_places",
    operator=MaxPool2dPlaces,
    kind=DEVICE_IMAGE,
    template="cuda/max_pool2d_places.cu.j2",
    architectures=cuda_architectures(),
    parameters=(
        *known_window.parameters(),
        Parameter("vector", (1, 2, 4, 8), "channels a thread"),
        Parameter("columns", (1, 2, 4), "neighbouring outputs of a row a thread"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    ),
    why_illegal=_why_illegal,
    why_unfit=known_window.why_unfit,
    cost=_cost,
    compile_seconds=(0.9, 0.2),
)
