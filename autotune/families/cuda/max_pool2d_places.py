"""Max pooling in training on a GPU, channels last: values and places."""

from __future__ import annotations

from math import ceil

from autotune.core import Architecture, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Family, Parameter
from autotune.families.cuda.rules import require_access, require_whole_vectors, require_window
from autotune.families.rules import Rules, first_unmet, require
from autotune.ir import DTYPES, Epilogue, MaxPool2dPlaces

_FILTERS, _STRIDES = (2, 3), (1, 2)  # that kernels are compiled for; 0 stands for a value known at run time
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
        known = config["filter"] != 0
        yield require(known == (config["stride"] != 0), "filter and stride must both be given, or both be 0")
        yield require(known or config["columns"] == 1, "columns must be 1 if filter is 0")
        yield require_access(int(config["vector"]), dtype)
        registers = _registers(config, dtype)
        yield require(
            registers <= _MAX_REGISTERS, f"a thread must fit {_MAX_REGISTERS} registers; it takes {registers}"
        )

    return first_unmet(rules())


def _why_unfit(problem: MaxPool2dPlaces, config: Config, arch: Architecture) -> str | None:
    return require_whole_vectors(problem.c, int(config["vector"])) or require_window(
        problem, _FILTERS, _STRIDES, (int(config["filter"]), int(config["stride"]))
    )


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
        Parameter("filter", (0, *_FILTERS), "side of the window; 0: any"),
        Parameter("stride", (0, *_STRIDES), "stride of both axes; 0: any"),
        Parameter("vector", (1, 2, 4, 8), "channels a thread"),
        Parameter("columns", (1, 2, 4), "neighbouring outputs of a row a thread"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    ),
    why_illegal=_why_illegal,
    why_unfit=_why_unfit,
    cost=_cost,
    compile_seconds=(0.9, 0.2),
)
