"""The families of convolutions of few channels on tensor cores, which share templates/cuda/stem.cuh.

The instruction `wgmma_ahead` is the kernel of templates/cuda/stem_ahead.cuh: a row's products are in flight while the
row above is pooled and stored, and image rows stay in registers for all rows of the convolution that read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

from autotune.core import Architecture
from autotune.families.base import Config, Launch, Parameter, Rules, Value, require
from autotune.families.cuda.common import TensorCoreFamily
from autotune.families.cuda.rules import resident_rules
from autotune.ir import Epilogue
from autotune.ir.operators import Conv2d, Conv2dWgrad, FirstLayers

P = TypeVar("P", bound=Conv2d | FirstLayers)

_WALKS = (1, 2, 4, 8, 16, 32)
_FILTERS = (3, 5, 7)
_MAX_CHANNELS = 4
_MAX_REGISTERS = 224  # of 255: the estimate leaves out addresses
_AHEAD_REGISTERS = 72  # beside sums and pixels, with addresses: ptxas spills in some kernels that have 64


@dataclass(frozen=True)
class FewChannelsShape:
    """A config by name, and what templates/cuda/stem.cuh derives from it.

    Attributes:
        wgmma: Whether the instruction is wgmma; else it is mma.sync.
        ahead: Whether a row's products are in flight while the row above is finished.
        interleaved: Whether the image is NHWC; else it is NCHW.
        pool: Whether a 3x3 max pool with stride 2 follows.
    """

    wgmma: bool
    ahead: bool
    interleaved: bool
    pool: bool
    filter: int
    stride: int
    channels: int
    tile_k: int
    strips: int
    rows: int
    together: int
    stages: int
    access: int
    resident: int

    @classmethod
    def from_config(cls, config: Config) -> FewChannelsShape:
        """Return the shape of a config. Only the families of NCHW images have `pool`; their stride is always 2."""
        return cls(
            wgmma=config["instruction"] != "mma",
            ahead=config["instruction"] == "wgmma_ahead",
            interleaved="pool" not in config,
            pool=bool(config.get("pool")),
            filter=int(config["filter"]),
            stride=int(config.get("stride", 2)),
            channels=int(config["channels"]),
            tile_k=int(config["tile_k"]),
            strips=int(config["strips"]),
            rows=int(config["rows"]),
            together=int(config["together"]),
            stages=int(config["stages"]),
            access=int(config["access"]),
            resident=int(config["resident"]),
        )

    @property
    def warp_k(self) -> int:
        """Output channels of a warp: all of the block's with wgmma, else as many as registers hold."""
        return self.tile_k if self.wgmma else 32

    @property
    def slices(self) -> int:
        """Warps side by side along the output channels."""
        return self.tile_k // self.warp_k

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.strips * self.slices

    @property
    def side(self) -> int:
        """Elements of a pixel that are adjacent in memory."""
        return self.channels if self.interleaved else 1

    @property
    def taps(self) -> int:
        """Elements of K of one line of the filter, padded to 4 or a multiple of 8."""
        line = self.filter * self.side + self.filter // 2 * self.side % 2
        return 4 if line <= 4 else ceil(line / 8) * 8

    @property
    def lines(self) -> int:
        """Lines of the filter, each of contiguous elements of the image."""
        return self.filter * self.channels // self.side

    @property
    def steps(self) -> int:
        """Tensor-core steps of 16 along K."""
        return ceil(self.lines * self.taps / 16)

    @property
    def block_halves(self) -> int:
        """Halves of a step in the filter rows by which neighbouring rows of the convolution differ; only if ahead."""
        return self.lines // self.filter * self.stride * (self.taps // 8)

    @property
    def rest_steps(self) -> int:
        """Steps of the filter rows that no such block holds; only if ahead."""
        return ceil(self.lines // self.filter * (self.filter % self.stride) * (self.taps // 8) / 2)

    @property
    def slots(self) -> int:
        """Blocks of image rows in registers, and rows of the convolution that are unrolled; only if ahead."""
        return next(slots for slots in (2, 4, 8) if self.filter // self.stride < slots)

    @property
    def loaded_steps(self) -> int:
        """Steps whose pixels a row of the convolution loads; the row above has left the others in registers."""
        return self.block_halves // 2 + self.rest_steps if self.ahead else self.steps

    @property
    def tile_q(self) -> int:
        """Output columns of a block."""
        return self.strips * (7 if self.pool else 16)

    @property
    def conv_rows(self) -> int:
        """Rows of the convolution of a tile."""
        return 2 * self.rows + 1 if self.pool else self.rows

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a tile of the image."""
        pixels = (self.strips - 1) * (14 if self.pool else 16) + 15
        words = pixels * self.stride * self.side // 2 + self.taps // 2 + self.access // 2 - 1
        return self.channels // self.side * (self.stride * (self.conv_rows - 1) + self.filter) * ceil(words / 4) * 16

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: tiles of the image and, for wgmma, the weights."""
        weights = self.steps * self.tile_k * 32 + 256 if self.wgmma else 0
        return self.stages * self.stage_bytes + weights

    @property
    def registers(self) -> int:
        """Estimated registers of a thread: sums, those of the pool, pixels, weights, and others."""
        if self.ahead:
            pixels = 4 * (self.slots * self.block_halves // 2 + 2 * self.rest_steps)
            return self.warp_k // 2 * (2 + self.pool) + pixels + _AHEAD_REGISTERS
        sums = self.warp_k // 2 * (self.together + self.pool)
        operands = self.steps * (2 + 2 * self.together) if self.wgmma else self.steps * self.warp_k // 4 + 8
        return sums + operands + 40


def _shape_rules(x: FewChannelsShape, arch: Architecture) -> Rules:
    yield require(x.stride * x.side % 2 == 0, "stride times channels must be even: lines begin at whole 32-bit words")
    yield require(not x.wgmma or arch.wgmma_rate, f"{arch.name} has no wgmma")
    yield require(not x.wgmma or x.strips % 4 == 0, "strips must be a multiple of 4, a warpgroup's, with wgmma")
    if x.ahead:
        yield require(x.together == 1, "together must be 1 with wgmma_ahead: its rows of the convolution take turns")
        yield require(
            x.taps % 8 == 0 and x.block_halves % 2 == 0,
            "wgmma_ahead needs lines of 8 taps or more, and an even number of 8 taps in `stride` rows of the filter",
        )
        whole = 2 * x.slots if x.pool else x.slots  # ptxas serializes the products of a pool's tile of one round
        yield require(
            (x.conv_rows - x.pool) % whole == 0, f"rows must give a multiple of {whole} rows of the convolution"
        )
    yield require(x.threads <= 512, f"a block must have at most 512 threads; it has {x.threads}")
    most = 255 if x.ahead else _MAX_REGISTERS
    yield require(x.registers <= most, f"sums and operands must fit {most} registers; they take {x.registers}")
    yield require(
        x.resident * x.threads * x.registers <= arch.sm_registers,
        f"the resident blocks must fit the {arch.sm_registers} registers of an SM",
    )
    yield from resident_rules(arch, x.resident, x.shared_bytes)


def window_rules(problem: Conv2d | Conv2dWgrad | FirstLayers, strides: tuple[int, ...]) -> Rules:
    """Yield what a problem's window and channels must be; strides: those that the kernels have."""
    yield require(
        problem.stride[0] in strides and problem.stride[0] == problem.stride[1],
        f"stride must be {' or '.join(map(str, strides))}, the same along both axes",
    )
    yield require(
        problem.r == problem.s and problem.pad == (problem.r // 2, problem.r // 2),
        "filters must be square, with half of their side, rounded down, as padding",
    )
    yield require(
        problem.r in _FILTERS and problem.c <= _MAX_CHANNELS,
        f"filters must have a side of 3, 5 or 7 and at most {_MAX_CHANNELS} channels",
    )
    yield require(problem.k % 8 == 0, "k must be a multiple of 8")


def window_values(problem: Conv2d | Conv2dWgrad | FirstLayers) -> dict[str, Value]:
    """Return the parameters that a problem's window and channels decide; a tile of 64 channels is not half empty."""
    return {"filter": problem.r, "channels": problem.c, **({"tile_k": 32} if problem.k <= 32 else {})}


def widest_access(elements: int) -> int:
    """Return the elements that one access to a row of this length can have."""
    return 8 if elements % 8 == 0 else 2


def parameters(*own: Parameter) -> tuple[Parameter, ...]:
    """Return the parameters of a family that has some of its own."""
    return (
        Parameter(
            "instruction",
            ("mma", "wgmma", "wgmma_ahead"),
            "tensor cores' instruction; wgmma on Hopper alone; ahead: of a row while the row above is finished",
        ),
        Parameter("filter", _FILTERS, "side of the filter"),
        Parameter("channels", tuple(range(1, _MAX_CHANNELS + 1)), "input channels"),
        *own,
        Parameter("access", (2, 8), "elements of a row a load: the most that its length allows"),
        Parameter("tile_k", (32, 64), "output channels a block"),
        Parameter("strips", (2, 4, 8), "strips of 16 pixels of the convolution side by side"),
        Parameter("rows", (2, 4, 8), "output rows a tile"),
        Parameter("together", (1, 2), "rows of the convolution at a time"),
        Parameter("stages", (1, 2), "tiles in shared memory"),
        Parameter("resident", (1, 2, 3), "blocks that an SM must have registers for"),
    )


class FewChannelsFamily(TensorCoreFamily[P]):
    """Convolutions of few channels, of which a class derived from this one names the problems."""

    template = "cuda/stem.cu.j2"
    launch_parameters = (Parameter("walk", _WALKS, "tiles below each other a block"),)
    compile_seconds = (1.2, 1.5)

    def decided(self, problem: P) -> Mapping[str, Value]:
        return window_values(problem)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        yield from _shape_rules(FewChannelsShape.from_config(config), arch)

    def launches(self, problem: P, config: Config, arch: Architecture) -> list[Launch]:
        tiles = ceil(problem.p / int(config["rows"]))
        return [{"walk": walk} for walk in _WALKS if walk == 1 or walk < 2 * tiles]

    def cost(self, problem: P, config: Config, arch: Architecture) -> float:
        """Estimate cycles: waves of blocks, each bound by what they share of an SM or by a block's own latencies.

        Latencies (100, 250, 600, 1500 cycles) and the 80 bytes a cycle of an SM are estimates, not fitted.
        """
        x = FewChannelsShape.from_config(config)
        resident = arch.resident_blocks(x.threads, x.registers, x.shared_bytes)
        rate = 1.0 if x.wgmma else arch.mma_cycles  # cycles of 16 x 8 x 16 products
        best = float("inf")
        for launch in self.launches(problem, config, arch):
            walk = launch["walk"]
            parts = ceil(ceil(problem.p / x.rows) / walk)
            blocks = problem.n * ceil(problem.k / x.tile_k) * parts * ceil(problem.q / x.tile_q)
            sharing = min(resident, ceil(blocks / arch.processors))
            rows = walk * (x.conv_rows - x.pool) + x.pool
            steps = rows * x.strips * x.steps
            loads = 2 * x.slices * x.loaded_steps / x.steps
            busy = steps * (x.tile_k / 8 * rate + loads) + walk * x.stage_bytes / 80
            products = x.steps * x.warp_k * rate / 2
            latency = max(products, 250) if x.ahead else products + 250
            wait = rows / x.together * latency + walk * (600 if x.stages == 1 else 100)
            start = 1500 + x.steps * x.tile_k * 160 / x.threads
            best = min(best, ceil(blocks / (arch.processors * resident)) * (start + max(busy * sharing, wait)))
        return best

    def label(self, config: Config) -> str:
        x = FewChannelsShape.from_config(config)
        return f"{config['instruction']} {x.rows}x{x.tile_q}x{x.tile_k} together {x.together} s{x.stages} r{x.resident}"

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        x = FewChannelsShape.from_config(config)
        derived = {"warp_k": x.warp_k, "slices": x.slices, "threads": x.threads, "type": dtype}
        return {**config, **derived, "interleaved": x.interleaved, "stride": x.stride, "pool": x.pool}

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight": "krsc"} if FewChannelsShape.from_config(config).interleaved else {}
