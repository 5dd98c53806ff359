"""1x1 convolutions of few channels, and products with short rows, on tensor cores; fp16 and bf16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from autotune.core import Architecture
from autotune.families.base import Config, ConfigNumbers, Launch, Parameter, Rules, Value, require
from autotune.families.cuda.common import TensorCoreFamily
from autotune.families.cutlass2.gemm import gemm_sizes, require_product
from autotune.families.cutlass2.tile import require_addressable
from autotune.ir import Epilogue
from autotune.ir.operators import Conv2d, Gemm

_STEPS = (1, 2, 3, 4, 6, 8)
_WALKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_MAX_REGISTERS = 230  # of 255: the estimate below leaves out addresses
_L2_LATENCY = 900  # cycles from a load to its value, from the L2 cache, under load
_L2_BYTES = 40  # that an SM reads and writes a cycle when all SMs do


@dataclass(frozen=True)
class _PointwiseShape(ConfigNumbers):
    """A config's numbers; the family's parameters say what they mean."""

    steps: int
    rows: int
    columns: int
    ahead: int
    threads: int

    @property
    def registers(self) -> int:
        """Registers of a thread: weights, pixels (also the next tile's), sums, and 20 others."""
        weights, sums = 16 * self.steps * self.columns, 16 * self.rows * self.columns
        return weights + 8 * self.steps * self.rows * (1 + self.ahead) + sums + 20

    def tiles(self, problem: Conv2d | Gemm) -> tuple[int, int]:
        """Return (tiles of pixels, warps side by side that share one)."""
        m, n, _ = gemm_sizes(problem)
        return ceil(m / (16 * self.rows)), ceil(n / (32 * self.columns))


def _steps(problem: Conv2d | Gemm) -> int:
    """Return the steps of 32 input channels."""
    return ceil(gemm_sizes(problem)[2] / 32)


class CudaPointwiseConv2d(TensorCoreFamily[Conv2d | Gemm]):
    """1x1 convolutions of few channels, and products with short rows: all operands straight to registers."""

    name = "cuda_pointwise_conv2d"
    operator = (Conv2d, Gemm)
    template = "cuda/pointwise_conv2d.cu.j2"
    parameters = (
        Parameter("steps", _STEPS, "steps of 32 input channels"),
        Parameter("rows", (1, 2, 4), "times 16 pixels a tile"),
        Parameter("columns", (1, 2, 4), "times 32 output channels a warp"),
        Parameter("ahead", (0, 1), "1: the next tile's pixels are read while these are multiplied"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    )
    launch_parameters = (Parameter("walk", _WALKS, "tiles a warp"),)
    compile_seconds = (0.9, 0.4)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        registers = _PointwiseShape.from_config(config).registers
        yield require(
            registers <= _MAX_REGISTERS, f"operands and sums must fit {_MAX_REGISTERS} registers; they take {registers}"
        )

    def unsupported(self, problem: Conv2d | Gemm) -> Rules:
        _, n, k = gemm_sizes(problem)
        yield require(n % 8 == 0 and k % 8 == 0, "input and output channels must be multiples of 8")
        yield require(_steps(problem) in _STEPS, f"input channels must take {', '.join(map(str, _STEPS))} steps of 32")
        yield require_product(problem)
        yield require_addressable(problem)

    def decided(self, problem: Conv2d | Gemm) -> Mapping[str, Value]:
        return {"steps": _steps(problem)}

    def launches(self, problem: Conv2d | Gemm, config: Config, arch: Architecture) -> list[Launch]:
        shape = _PointwiseShape.from_config(config)
        tiles, across = shape.tiles(problem)
        busy = 2 * arch.processors  # fewer warps leave most of the machine idle
        least = 1 + shape.ahead  # reading ahead needs a next tile
        most = max(1, tiles * across // busy)
        return [{"walk": walk} for walk in _WALKS if least <= walk <= most]

    def cost(self, problem: Conv2d | Gemm, config: Config, arch: Architecture) -> float:
        """Estimate cycles: round trips to memory, or the bytes and products of an SM's warps, whichever takes longer.

        _L2_LATENCY and _L2_BYTES are estimates for an H200, not fitted.
        """
        shape = _PointwiseShape.from_config(config)
        steps, rows, columns = shape.steps, shape.rows, shape.columns
        tiles, across = shape.tiles(problem)
        by_registers = arch.sm_registers // (shape.registers * shape.threads)
        resident = min(by_registers, arch.sm_threads // shape.threads) * shape.threads // 32
        best = float("inf")
        for launch in self.launches(problem, config, arch):
            warps = ceil(tiles / launch["walk"]) * across / arch.processors
            trip = 16 * steps * rows * columns + 32 * rows * columns + _L2_LATENCY
            bytes_ = 32 * 16 * (steps * rows * 2 + rows * columns * 2) * launch["walk"] + 32 * 16 * steps * columns * 4
            waves = ceil(warps / max(1, resident))
            best = min(best, max(waves * (_L2_LATENCY + trip * launch["walk"]), warps * bytes_ / _L2_BYTES))
        return best

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight": "kcrs"}


FAMILIES = (CudaPointwiseConv2d(),)
