"""A lone epilogue on a GPU, channels last."""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families import cuda_shared
from autotune.families.base import DEVICE_IMAGE, Config, Family, Parameter
from autotune.ir import Cast, Elementwise, Epilogue, Problem


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return cuda_shared.too_wide(int(config["vector"]), dtype)


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, Elementwise)
    return cuda_shared.odd(problem.c, int(config["vector"]))


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Accesses, dearer where several a thread leave processors without any."""
    assert isinstance(problem, Elementwise | Cast)
    vector, items, threads = (int(config[name]) for name in ("vector", "items", "threads"))
    started = problem.n * problem.h * problem.w * problem.c / (vector * items)
    idle = max(1.0, arch.processors * arch.sm_threads / started)
    return 8 / vector * (1 + 0.1 / items) * idle**0.25 + abs(threads - 128) / 1024


FAMILY = Family(
    name="cuda_elementwise",
    operator=Elementwise,
    kind=DEVICE_IMAGE,
    template="cuda/elementwise.cu.j2",
    architectures=cuda_shared.ARCHITECTURES,
    dtypes=("f16", "bf16", "tf32", "f32", "s8"),
    parameters=(
        Parameter("vector", (1, 2, 4, 8, 16), "channels of an access"),
        Parameter("items", (1, 2, 4), "accesses a thread"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    ),
    legal=_legal,
    fits=_fits,
    cost=_cost,
    compile_seconds=(0.9, 0.1),
)
