"""Depthwise convolution on a GPU, channels last."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from autotune.core import Architecture
from autotune.families.base import Config, Parameter, Rules, require
from autotune.families.cuda import known_window
from autotune.families.cuda.rules import require_access
from autotune.ir import Epilogue
from autotune.ir.operators import Conv2d

_MAX_REGISTERS = 160  # of a thread's sums and one input row; addresses and weights take the rest of 255


class CudaDepthwiseConv2d(known_window.WindowFamily[Conv2d]):
    """Depthwise convolution. Each channel has its own filter, so memory limits the speed."""

    name = "cuda_depthwise_conv2d"
    operator = Conv2d
    template = "cuda/depthwise_conv2d.cu.j2"
    filters = (3, 5, 7)
    parameters = (
        *known_window.parameters(filters, "filter"),
        Parameter("vector", (1, 2, 4, 8), "channels a thread"),
        Parameter("columns", (1, 2, 4, 8), "neighbouring output pixels of a row a thread"),
        Parameter("rows", (1, 2, 4), "output rows a thread"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    )
    compile_seconds = (0.4, 0.2)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        tile = known_window.WindowTile.from_config(config)
        registers = tile.registers(dtype)
        yield from super().illegal(config, arch, dtype, epilogue)
        yield require_access(tile.vector, dtype)
        yield require(
            registers <= _MAX_REGISTERS,
            f"sums and one input row of a thread must fit {_MAX_REGISTERS} registers; they take {registers}",
        )

    def unsupported(self, problem: Conv2d) -> Rules:
        yield require(problem.c == problem.k == problem.groups > 1, "groups must equal c and k: one channel a group")

    def cost(self, problem: Conv2d, config: Config, arch: Architecture) -> float:
        """Estimate cycles: waves of threads, each bound by its accesses or its multiply-adds, plus 600 to start one.

        The weights of accesses and products are estimates, not fitted.
        """
        tile = known_window.WindowTile.from_config(config)
        tiles = problem.n * ceil(problem.p / tile.rows) * ceil(problem.q / tile.columns)
        blocks = ceil(tiles * problem.c / tile.vector / tile.threads)
        registers = (tile.registers(problem.dtype) + 40) * tile.threads
        resident = max(1, min(arch.sm_threads // tile.threads, arch.sm_registers // registers))
        tall = (tile.rows - 1) * problem.stride[0] + problem.r
        wide = (tile.columns - 1) * problem.stride[1] + problem.s
        accesses = (tall * wide + tile.rows * tile.columns) * (8 if tile.filter else 12) / (8 / tile.vector + 1)
        products = tile.rows * tile.columns * problem.r * problem.s * tile.vector / 4
        waves = ceil(blocks / (arch.processors * resident))
        return waves * (resident * tile.threads / 128 * max(accesses, products) + 600)

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight": "rsck"}


FAMILIES = (CudaDepthwiseConv2d(),)
