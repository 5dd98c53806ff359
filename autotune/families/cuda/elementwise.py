"""A lone epilogue on a GPU, channels last."""

from __future__ import annotations

from autotune.core import Architecture, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Family, Parameter
from autotune.families.cuda.rules import require_access, require_whole_vectors
from autotune.ir import BYTE_FORMATS, Cast, Elementwise, Epilogue


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return require_access(int(config["vector"]), dtype)


def _why_unfit(problem: Elementwise | Cast, config: Config, arch: Architecture) -> str | None:
    return require_whole_vectors(problem.c, int(config["vector"]))


def _cost(problem: Elementwise | Cast, config: Config, arch: Architecture) -> float:
    """Rank by accesses; several accesses a thread cost more where they leave SMs without threads."""
    vector, items, threads = (int(config[name]) for name in ("vector", "items", "threads"))
    started = problem.n * problem.h * problem.w * problem.c / (vector * items)
    idle = max(1.0, arch.processors * arch.sm_threads / started)
    return 8 / vector * (1 + 0.1 / items) * float(idle**0.25) + abs(threads - 128) / 1024


FAMILY = Family[Elementwise | Cast](
    name="cuda_elementwise",
    operator=Elementwise,
    kind=DEVICE_IMAGE,
    template="cuda/elementwise.cu.j2",
    architectures=cuda_architectures(),
    dtypes=("f16", "bf16", "tf32", "f32", *BYTE_FORMATS),
    parameters=(
        Parameter("vector", (1, 2, 4, 8, 16), "channels of an access"),
        Parameter("items", (1, 2, 4), "accesses a thread"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    ),
    why_illegal=_why_illegal,
    why_unfit=_why_unfit,
    cost=_cost,
    compile_seconds=(0.9, 0.1),
)
