"""Weight gradients of few channels on tensor cores, channels last: templates/cuda/narrow_conv2d_wgrad.cuh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.core import Architecture, ceil_div
from autotune.families.base import Config, Launch, Parameter, Rules, Value, require
from autotune.families.cuda import few_channels
from autotune.families.cuda.common import TensorCoreFamily
from autotune.families.cuda.rules import require_registers, resident_rules
from autotune.ir import Epilogue
from autotune.ir.operators import Conv2dWgrad

_STRIDES = (1, 2)
_COLUMNS = (16, 32, 64, 112, 128)
_MAX_BLOCKS = 1024
_MAX_THREADS = 512
_ADDRESSES = 44  # registers of a thread beside sums, operands and pixels: from `cuobjdump -res-usage`, rounded up
_MAX_REGISTERS = 255


@dataclass(frozen=True)
class _Shape:
    """A config by name, and what the header derives from it; the family's parameters say what the values mean."""

    wgmma: bool
    filter: int
    stride: int
    channels: int
    tile_k: int
    tile_q: int
    parts: int
    together: int
    stages: int
    resident: int

    @classmethod
    def from_config(cls, config: Config) -> _Shape:
        numbers = {name: int(value) for name, value in config.items() if name != "instruction"}
        return cls(wgmma=config["instruction"] == "wgmma", **numbers)

    @property
    def is_copied(self) -> bool:
        """True if cp.async copies x: each slot begins at a 32-bit word of it."""
        return self.stride * self.channels % 2 == 0

    @property
    def pixels(self) -> int:
        """Pixels of a slot."""
        return 8 // self.channels // self.stride * self.stride

    @property
    def groups(self) -> int:
        """Slots that a row of the filter meets."""
        return ceil_div(self.filter + self.filter // 2 % self.stride, self.pixels)

    @property
    def slots(self) -> int:
        """Slots of a row of x."""
        return self.tile_q + self.pixels // self.stride * (self.groups - 1)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.parts * (4 if self.wgmma else ceil_div(self.filter, self.together))

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: rows of dy and a ring of rows of x, and later the sums."""
        ring = self.filter + self.stride * (self.stages - 1)
        rows = self.stages * self.tile_q * self.tile_k * 2 + ring * self.slots * 16
        return max(rows, self.tile_k * self.filter**2 * self.channels * 4) + 4

    @property
    def registers(self) -> int:
        """Estimated registers of a thread."""
        staged = 0 if self.is_copied else 4 * ceil_div(self.stride * self.slots, self.threads)
        if self.wgmma:
            return 4 * self.filter * self.groups + 8 + self.filter + staged + _ADDRESSES
        sums = self.together * self.tile_k // 4 * self.groups
        operands = self.tile_k // 4 + 2 * self.groups
        return sums + operands + staged + _ADDRESSES

    def strips(self, problem: Conv2dWgrad) -> int:
        """Return the strips of dy, beside each other."""
        return ceil_div(problem.q, self.tile_q)

    def row_cycles(self, arch: Architecture) -> float:
        """Return the cycles of an SM for a row of dy of a strip: its products, or the shared memory that they read."""
        rounds = ceil_div(ceil_div(self.tile_q, 16), self.parts) * self.parts
        products = self.filter * self.groups * self.tile_k / 16 * arch.mma_cycles
        if self.wgmma:
            return rounds * max(products / 2, self.filter * self.groups * 2)
        read = (ceil_div(self.filter, self.together) * self.tile_k + self.filter * 8 * self.groups) * 16 * 2 / 128
        return rounds * max(products, read)


def _columns(problem: Conv2dWgrad) -> list[int]:
    """Return the widths of strips that leave the fewest columns empty, and those that leave a fifth more at most."""
    covered = {columns: ceil_div(problem.q, columns) * columns for columns in _COLUMNS}
    return [columns for columns in _COLUMNS if covered[columns] <= 1.2 * min(covered.values())]


class CudaNarrowConv2dWgrad(TensorCoreFamily[Conv2dWgrad]):
    """Weight gradient of a convolution of up to four channels, on tensor cores.

    The GEMM is M = k, N = elements of the filter, K = n*p*q. The instruction is mma.sync, or wgmma on Hopper.
    """

    name = "cuda_narrow_conv2d_wgrad"
    operator = Conv2dWgrad
    template = "cuda/narrow_conv2d_wgrad.cu.j2"
    parameters = (
        Parameter("instruction", ("mma", "wgmma"), "tensor cores' instruction; wgmma on Hopper alone"),
        Parameter("filter", (3, 5, 7), "side of the filter"),
        Parameter("stride", _STRIDES, "of both axes"),
        Parameter("channels", (1, 2, 3, 4), "input channels"),
        Parameter("tile_k", (32, 64), "output channels of a tile"),
        Parameter("tile_q", _COLUMNS, "columns of a strip of the output"),
        Parameter("parts", (1, 2, 3, 4), "warps, or with wgmma warpgroups, that share the pixels of a row"),
        Parameter("together", (1, 2), "rows of the filter of a warp; with wgmma all"),
        Parameter("stages", (2, 3, 4), "rows of the output in shared memory"),
        Parameter("resident", (1, 2, 3), "blocks that an SM must have registers for"),
    )
    launch_parameters = (Parameter("blocks", tuple(range(1, _MAX_BLOCKS + 1)), "blocks that share the rows"),)
    compile_seconds = (1.2, 1.0)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        x = _Shape.from_config(config)
        yield require(not x.wgmma or arch.wgmma_rate, f"{arch.name} has no wgmma")
        yield require(not x.wgmma or (x.tile_k, x.together) == (64, 1), "with wgmma tile_k must be 64 and together 1")
        yield require(x.is_copied or x.stages == 2, "stages must be 2 if stride times channels is odd")
        yield require(x.is_copied or not x.wgmma, "stride times channels must be even with wgmma")
        yield require(
            x.threads <= _MAX_THREADS, f"a block must have at most {_MAX_THREADS} threads; it has {x.threads}"
        )
        yield require(x.parts <= x.tile_q // 16, f"a strip must have 16 pixels for each of the {x.parts} parts")
        yield require_registers(arch, x.resident * x.threads, x.registers, _MAX_REGISTERS)
        yield from resident_rules(arch, x.resident, x.shared_bytes)

    def unsupported(self, problem: Conv2dWgrad) -> Rules:
        yield require(problem.groups == 1 and problem.dilation == (1, 1), "groups and dilation must be 1")
        yield from few_channels.window_rules(problem, _STRIDES)
        whole = problem.stride[0] * problem.c % 2 == 1 or problem.w * problem.c % 2 == 0
        yield require(whole, "w times c must be even if stride times c is: rows begin at whole 32-bit words")
        yield require(problem.n * problem.p * problem.q < 2**30, "dy must have fewer than 2^30 pixels")

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Conv2dWgrad | None
    ) -> Sequence[Value]:
        if problem and parameter.name == "tile_q":
            return _columns(problem)
        return super().candidate_values(parameter, chosen, arch, dtype, problem)

    def decided(self, problem: Conv2dWgrad) -> Mapping[str, Value]:
        return {**few_channels.window_values(problem), "stride": problem.stride[0]}

    def unfit(self, problem: Conv2dWgrad, config: Config, arch: Architecture) -> Rules:
        yield from super().unfit(problem, config, arch)
        yield require(
            int(config["tile_q"]) in _columns(problem),
            f"strips of {config['tile_q']} columns leave too many of them empty",
        )

    def launches(self, problem: Conv2dWgrad, config: Config, arch: Architecture) -> list[Launch]:
        x = _Shape.from_config(config)
        rows, tiles = problem.n * x.strips(problem) * problem.p, ceil_div(problem.k, x.tile_k)
        fill = [ceil_div(arch.processors * x.resident, tiles), ceil_div(arch.processors * x.resident, 2 * tiles)]
        return [{"blocks": blocks} for blocks in dict.fromkeys(max(1, min(count, rows, _MAX_BLOCKS)) for count in fill)]

    def cost(self, problem: Conv2dWgrad, config: Config, arch: Architecture) -> float:
        """Estimate cycles: the rows of an SM, bound by products or by loads, then the sums of all blocks.

        The 20 bytes a cycle that an SM loads, its 1000 cycles of latency, the 300 that blocks wait at a row's barrier,
        and the 3000 and 4 bytes a cycle of the end are estimates, not fitted.
        """
        x = _Shape.from_config(config)
        rows = problem.n * x.strips(problem) * problem.p * ceil_div(problem.k, x.tile_k)
        loads = (x.tile_q * x.tile_k * 2 + x.stride * x.slots * 2 * x.stride * x.channels) / 20
        row = max(x.row_cycles(arch), loads, 1000 / x.resident / (x.stages - 1)) + 300 / x.resident
        return ceil_div(rows, arch.processors) * row + 3000 + x.tile_k * x.filter**2 * x.channels * 4 * x.resident / 4

    def label(self, config: Config) -> str:
        x = _Shape.from_config(config)
        tile = f"{config['instruction']} {x.tile_k}x{x.tile_q}"
        return f"{tile} parts {x.parts} together {x.together} s{x.stages} r{x.resident}"

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return {**config, "type": dtype, "columns": 8 * _Shape.from_config(config).groups}


FAMILIES = (CudaNarrowConv2dWgrad(),)
