"""Squeeze-and-excitation and the rest of a residual block on a GPU: one thread block an image."""

from __future__ import annotations

from autotune.arch import Architecture
from autotune.families.base import DEVICE_IMAGE, Config, Family, Parameter
from autotune.problem import Problem, SeTail

_VECTOR = 8


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, SeTail)
    return "c must be a multiple of 8, at most 8192" if problem.c % _VECTOR or problem.c > 8192 else None


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, SeTail)
    return "more channels than its threads hold" if problem.c // _VECTOR > int(config["threads"]) else None


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Passes over an image by the threads, and what must be read twice because registers did not keep it."""
    assert isinstance(problem, SeTail)
    vectors = problem.h * problem.w * problem.c / _VECTOR
    passes = max(1.0, vectors / int(config["threads"]))
    return passes + 2 * max(0.0, passes - int(config["keep"])) + int(config["keep"]) / 8 + int(config["threads"]) / 512


FAMILY = Family(
    name="cuda_se_tail",
    operator=SeTail,
    kind=DEVICE_IMAGE,
    template="cuda/se_tail.cu.j2",
    architectures=("sm70", "sm75", "sm80", "sm86", "sm89", "sm90"),
    parameters=(
        Parameter("threads", (128, 256, 512, 1024), "threads a block, one block an image"),
        Parameter("keep", (1, 2, 4, 8, 16), "vectors of 8 channels that a thread keeps in registers"),
    ),
    supports=_supports,
    fits=_fits,
    cost=_cost,
    compile_seconds=(0.9, 0.3),
)
