"""Pools with a window on a GPU, channels last."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from autotune.core import Architecture
from autotune.families.base import Config, Parameter, Rules, require
from autotune.families.cuda import known_window
from autotune.families.cuda.common import WITH_BYTES
from autotune.families.cuda.rules import require_access
from autotune.ir import Epilogue
from autotune.ir.operators import AvgPool2d, ClippedAvgPool2d, MaxPool2d, Pool2d

_MAX_REGISTERS = 128  # of a thread's windows and one input row


class PoolFamily(known_window.WindowFamily[Pool2d]):
    """Kernels whose threads compute neighbouring outputs from each row of the input that they read.

    Attributes:
        maximum: Whether it is the max pool.
        clipped: Whether an average is that of the window's pixels in the image.
    """

    template = "cuda/pool2d.cu.j2"
    dtypes = WITH_BYTES
    parameters = (
        *known_window.parameters(),
        Parameter("vector", (1, 2, 4, 8, 16), "channels a thread"),
        Parameter("columns", (1, 2, 4), "neighbouring output pixels of a row a thread"),
        Parameter("rows", (1, 2, 4), "output rows a thread"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    )
    maximum = False
    clipped = False

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        tile = known_window.WindowTile.from_config(config)
        yield from super().illegal(config, arch, dtype, epilogue)
        yield require(
            tile.filter or tile.rows * tile.columns == 1,
            "rows and columns must be 1 if filter is 0: outputs share pixels only in a known window",
        )
        yield require_access(tile.vector, dtype)
        yield require(
            tile.registers(dtype) <= _MAX_REGISTERS,
            f"windows and one input row must fit {_MAX_REGISTERS} registers; they take {tile.registers(dtype)}",
        )

    def cost(self, problem: Pool2d, config: Config, arch: Architecture) -> float:
        """Rank by accesses an output; they cost more where too few threads hide their latency."""
        tile = known_window.WindowTile.from_config(config)
        tall = (tile.rows - 1) * problem.stride[0] + problem.r
        wide = (tile.columns - 1) * problem.stride[1] + problem.s
        accesses = (tall * wide / (tile.rows * tile.columns) + 1) * 8 / tile.vector
        started = problem.n * ceil(problem.p / tile.rows) * ceil(problem.q / tile.columns) * problem.c / tile.vector
        idle = max(1.0, arch.processors * arch.sm_threads / 2 / started)
        return accesses * idle + abs(tile.threads - 128) / 1024

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return {**config, "maximum": self.maximum, "clipped": self.clipped}


class CudaMaxPool2d(PoolFamily):
    """Max pooling."""

    name = "cuda_max_pool2d"
    operator = MaxPool2d
    maximum = True


class CudaAvgPool2d(PoolFamily):
    """Average pooling."""

    name = "cuda_avg_pool2d"
    operator = AvgPool2d


class CudaClippedAvgPool2d(PoolFamily):
    """Average pooling of the image's pixels alone."""

    name = "cuda_clipped_avg_pool2d"
    operator = ClippedAvgPool2d
    clipped = True


FAMILIES = (CudaMaxPool2d(), CudaAvgPool2d(), CudaClippedAvgPool2d())
