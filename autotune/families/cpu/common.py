"""What the CPU families share: launch values, blocks of channels, and the target's vector registers."""

from __future__ import annotations

from functools import cache

from autotune.core import Architecture, cpu_targets
from autotune.families.base import SHARED_LIBRARY, Config, Family, Launch, Parameter
from autotune.ir import Problem

WITH_BYTES = ("f32", "s8")
THREADS = Parameter("threads", (0, 1), "0: torch's number of threads; 1: the caller's alone")
BLOCK_C = Parameter("block_c", (8, 16, 32, 64), "channels a loop handles together")


def over_channels(
    operator: type[Problem], template: str = "", dtypes: tuple[str, ...] = ("f32",), **variables: object
) -> Family:
    """A family whose kernels take the channels of each pixel in blocks, as wide as their one parameter says.

    template: cpu/<operator>.cpp.j2 if it is not named. variables: the template's, beside the config.
    """
    return Family(
        name=f"cpu_{operator.operator}",
        operator=operator,
        kind=SHARED_LIBRARY,
        template=template or f"cpu/{operator.operator}.cpp.j2",
        architectures=("cpu",),
        dtypes=dtypes,
        parameters=(BLOCK_C,),
        launch_parameters=(THREADS,),
        launches=threads,
        cost=channel_steps,
        context=lambda config, arch, dtype: {**config, **variables},
    )


def threads(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    """All threads, and one."""
    return [{"threads": 0}, {"threads": 1}]


def channel_steps(problem: Problem, config: Config, arch: Architecture) -> float:
    """Steps of a loop over a pixel's channels, those behind the last block taken one by one."""
    blocks, left = divmod(problem.output_shape[-1], int(config["block_c"]))
    return blocks + left


@cache
def vector_registers() -> tuple[int, int]:
    """Vector registers of this machine's best target: how many, and floats in each, as cpu/vector.h has it."""
    known = {"x86-64-v4": (32, 16), "x86-64-v3": (16, 8), "x86-64-v2": (16, 4), "x86-64": (16, 4), "aarch64": (32, 4)}
    return known.get(cpu_targets()[0], (16, 4))
