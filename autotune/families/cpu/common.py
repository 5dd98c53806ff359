"""Base classes of the CPU families, and the target's vector registers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TypeVar

from autotune.core import Architecture, cpu_targets
from autotune.families.base import SHARED_LIBRARY, Config, Family, Launch, Parameter
from autotune.ir import BYTE_FORMATS, Problem

P = TypeVar("P", bound=Problem)

WITH_BYTES = ("f32", *BYTE_FORMATS)
"""The dtypes of families that also have kernels for quantized tensors."""
THREADS = Parameter("threads", (0, 1), "0: torch's number of threads; 1: the caller's alone")
BLOCK_C = Parameter("block_c", (8, 16, 32, 64), "channels a loop handles together")


class CpuFamily(Family[P]):
    """A family of shared libraries for the CPU, which run in all threads or in the caller's alone."""

    kind = SHARED_LIBRARY
    architectures = ("cpu",)
    dtypes: tuple[str, ...] = ("f32",)
    launch_parameters: tuple[Parameter, ...] = (THREADS,)

    def launches(self, problem: P, config: Config, arch: Architecture) -> list[Launch]:
        return [{"threads": 0}, {"threads": 1}]


class ChannelsFamily(CpuFamily[P]):
    """Kernels that process the channels of each pixel in blocks; the block is their one parameter.

    Args:
        operator: The problem that it solves; the family is named for it.
        template: The template; by default cpu/<operator>.cpp.j2.
        dtypes: The dtypes that it has kernels for.
        variables: The template's variables beside the config.
    """

    parameters: tuple[Parameter, ...] = (BLOCK_C,)

    def __init__(
        self, operator: type[P], template: str = "", dtypes: tuple[str, ...] = ("f32",), **variables: object
    ) -> None:
        self.name, self.operator, self.dtypes = f"cpu_{operator.operator}", operator, dtypes
        self.template = template or f"cpu/{operator.operator}.cpp.j2"
        self._variables = variables

    def cost(self, problem: P, config: Config, arch: Architecture) -> float:
        """Return the steps of a loop over a pixel's channels; those behind the last block are processed one by one."""
        blocks, left = divmod(problem.output_shape[-1], int(config["block_c"]))
        return blocks + left

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return {**config, **self._variables}


@cache
def vector_registers() -> tuple[int, int]:
    """Return (vector registers, floats in each) of this machine's best target, as templates/cpu/vector.h has it."""
    known = {"x86-64-v4": (32, 16), "x86-64-v3": (16, 8), "x86-64-v2": (16, 4), "x86-64": (16, 4), "aarch64": (32, 4)}
    return known.get(cpu_targets()[0], (16, 4))
