"""What the CPU families share: launch values, blocks of channels, and the target's vector registers."""

from __future__ import annotations

from functools import cache

from autotune.arch import Architecture, cpu_targets
from autotune.families.base import Config, Launch, Parameter
from autotune.problem import Problem

THREADS = Parameter("threads", (0, 1), "0: torch's number of threads; 1: the caller's alone")
BLOCK_C = Parameter("block_c", (8, 16, 32, 64), "channels a loop handles together")


def threads(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    """All threads, and one."""
    return [{"threads": 0}, {"threads": 1}]


def channel_steps(problem: Problem, config: Config, arch: Architecture) -> float:
    """A cost: steps of a loop over a pixel's channels, those behind the last block taken one by one."""
    blocks, left = divmod(problem.output_shape[-1], int(config["block_c"]))
    return blocks + left


@cache
def vector_registers() -> tuple[int, int]:
    """Vector registers of this machine's best target: how many, and floats in each, as cpu/vector.h has it."""
    known = {"x86-64-v4": (32, 16), "x86-64-v3": (16, 8), "x86-64-v2": (16, 4), "x86-64": (16, 4), "aarch64": (32, 4)}
    return known.get(cpu_targets()[0], (16, 4))
