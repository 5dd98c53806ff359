"""Average pooling on a GPU, channels last."""

from __future__ import annotations

from autotune.arch import Architecture
from autotune.families.base import DEVICE_IMAGE, Config, Family, Parameter
from autotune.problem import AvgPool2d, Problem


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, AvgPool2d)
    return "c must be a multiple of the vector" if problem.c % int(config["vector"]) else None


FAMILY = Family(
    name="cuda_avg_pool2d",
    operator=AvgPool2d,
    kind=DEVICE_IMAGE,
    template="cuda/avg_pool2d.cu.j2",
    architectures=("sm70", "sm75", "sm80", "sm86", "sm89", "sm90"),
    parameters=(
        Parameter("vector", (1, 2, 4, 8), "channels a thread"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    ),
    fits=_fits,
    cost=lambda problem, config, arch: 8 / int(config["vector"]) + abs(int(config["threads"]) - 128) / 1024,
    compile_seconds=(0.9, 0.1),
)
