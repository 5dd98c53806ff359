"""Gradient of max pooling from the places of the largest values on a GPU, channels last."""

from __future__ import annotations

from autotune.core import Architecture, ceil_div, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Parameter
from autotune.families.base import RecordFamily as Family
from autotune.families.cuda import known_window
from autotune.families.rules import Rules, first_unmet, require
from autotune.ir import Epilogue, MaxPool2dPlacesGradient

_MAX_SUMS = 64  # of a thread, in float32 registers


def _sums(config: Config) -> int:
    """Return the elements of dx that a thread makes."""
    return int(config["columns"]) * max(1, int(config["stride"])) ** 2 * int(config["vector"])


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    def rules() -> Rules:
        yield from known_window.column_rules(config, dtype)
        yield require(_sums(config) <= _MAX_SUMS, f"a thread must fit {_MAX_SUMS} sums; it has {_sums(config)}")

    return first_unmet(rules())


def _cost(problem: MaxPool2dPlacesGradient, config: Config, arch: Architecture) -> float:
    """Rank by accesses a pixel of dx: of dy and places, and of dx; they cost more where threads are few."""
    vector, columns = int(config["vector"]), int(config["columns"])
    down, right = (ceil_div(side, step) for side, step in zip((problem.r, problem.s), problem.stride, strict=True))
    pixels = columns * max(1, int(config["stride"])) ** 2
    started = problem.n * problem.h * problem.w * problem.c / vector / pixels
    idle = max(1.0, arch.processors * arch.sm_threads / 2 / started)
    accesses = 2 * down * (columns + right - 1) / pixels + 1
    return accesses * 8 / vector * float(idle) + abs(int(config["threads"]) - 128) / 1024


FAMILY = Family[MaxPool2dPlacesGradient](
    name="cuda_max_pool2d_places_gradient",
    operator=MaxPool2dPlacesGradient,
    kind=DEVICE_IMAGE,
    template="cuda/max_pool2d_places_gradient.cu.j2",
    architectures=cuda_architectures(),
    parameters=(
        *known_window.parameters(),
        Parameter("vector", (1, 2, 4, 8), "channels a thread"),
        Parameter("columns", (1, 2, 4), "neighbouring windows of a row a thread, with `stride` columns of pixels each"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    ),
    why_illegal=_why_illegal,
    why_unfit=known_window.why_unfit,
    cost=_cost,
    compile_seconds=(0.9, 0.2),
)
