"""Max pooling in training on a GPU, channels last: values and places, and the gradient from the places."""

from __future__ import annotations

from math import ceil
from typing import TypeVar

from autotune.core import Architecture, ceil_div
from autotune.families.base import Config, Parameter, Rules, require
from autotune.families.cuda import known_window
from autotune.families.cuda.rules import require_access
from autotune.ir import DTYPES, Epilogue
from autotune.ir.operators import MaxPool2dPlaces, MaxPool2dPlacesGradient

P = TypeVar("P", bound=MaxPool2dPlaces | MaxPool2dPlacesGradient)

_MAX_REGISTERS = 128  # of a thread's windows and one row of pixels, an estimate
_MAX_SUMS = 64  # of a thread, in float32 registers


def _parameters(columns: str) -> tuple[Parameter, ...]:
    """Return the parameters of a family; `columns` is the meaning of the parameter of that name."""
    return (
        *known_window.parameters(),
        Parameter("vector", (1, 2, 4, 8), "channels a thread"),
        Parameter("columns", (1, 2, 4), columns),
        Parameter("threads", (64, 128, 256), "threads a block"),
    )


class _ColumnsFamily(known_window.WindowFamily[P]):
    """Kernels whose threads take `columns` neighbouring windows of a row."""

    compile_seconds = (0.9, 0.2)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        yield from super().illegal(config, arch, dtype, epilogue)
        yield require(config["filter"] != 0 or config["columns"] == 1, "columns must be 1 if filter is 0")
        yield require_access(int(config["vector"]), dtype)


class CudaMaxPool2dPlaces(_ColumnsFamily[MaxPool2dPlaces]):
    """Max pooling in training: values and places."""

    name = "cuda_max_pool2d_places"
    operator = MaxPool2dPlaces
    template = "cuda/max_pool2d_places.cu.j2"
    parameters = _parameters("neighbouring outputs of a row a thread")

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        """Yield that a thread's registers hold the largest values with their places, and a row of pixels."""
        yield from super().illegal(config, arch, dtype, epilogue)
        vector, columns = int(config["vector"]), int(config["columns"])
        wide = (columns - 1) * int(config["stride"]) + int(config["filter"])  # pixels of a row read at once
        registers = ceil(vector * (DTYPES[dtype].itemsize / 4) * (2 * columns + wide))
        yield require(
            registers <= _MAX_REGISTERS, f"a thread must fit {_MAX_REGISTERS} registers; it takes {registers}"
        )

    def cost(self, problem: MaxPool2dPlaces, config: Config, arch: Architecture) -> float:
        """Rank by accesses an output; they cost more where too few threads hide their latency."""
        vector, columns = int(config["vector"]), int(config["columns"])
        wide = (columns - 1) * problem.stride[1] + problem.s
        started = problem.n * problem.p * ceil(problem.q / columns) * problem.c / vector
        idle = max(1.0, arch.processors * arch.sm_threads / 2 / started)
        return (problem.r * wide / columns + 2) * 8 / vector * idle + abs(int(config["threads"]) - 128) / 1024


def _pixels(config: Config) -> int:
    """Return the pixels of dx that a thread makes."""
    return int(config["columns"]) * max(1, int(config["stride"])) ** 2


class CudaMaxPool2dPlacesGradient(_ColumnsFamily[MaxPool2dPlacesGradient]):
    """Gradient of max pooling from the places of the largest values."""

    name = "cuda_max_pool2d_places_gradient"
    operator = MaxPool2dPlacesGradient
    template = "cuda/max_pool2d_places_gradient.cu.j2"
    parameters = _parameters("neighbouring windows of a row a thread, with `stride` columns of pixels each")

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        yield from super().illegal(config, arch, dtype, epilogue)
        sums = _pixels(config) * int(config["vector"])
        yield require(sums <= _MAX_SUMS, f"a thread must fit {_MAX_SUMS} sums; it has {sums}")

    def cost(self, problem: MaxPool2dPlacesGradient, config: Config, arch: Architecture) -> float:
        """Rank by accesses a pixel of dx: of dy and places, and of dx; they cost more where threads are few."""
        vector, columns, pixels = int(config["vector"]), int(config["columns"]), _pixels(config)
        down, right = (ceil_div(side, step) for side, step in zip((problem.r, problem.s), problem.stride, strict=True))
        started = problem.n * problem.h * problem.w * problem.c / vector / pixels
        idle = max(1.0, arch.processors * arch.sm_threads / 2 / started)
        accesses = 2 * down * (columns + right - 1) / pixels + 1
        return accesses * 8 / vector * float(idle) + abs(int(config["threads"]) - 128) / 1024


FAMILIES = (CudaMaxPool2dPlaces(), CudaMaxPool2dPlacesGradient())
