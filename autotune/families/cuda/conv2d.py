"""Convolutions of images by mma.sync, which share templates/cuda/conv2d.cuh, of which this has the general ones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

from autotune.core import Architecture, cuda_architectures
from autotune.families import se_gate
from autotune.families.base import Config, Launch, Parameter, Rules, Value, require, require_no_overflow
from autotune.families.cuda.common import CudaFamily
from autotune.families.cuda.rules import require_registers
from autotune.families.cutlass2.tile import require_addressable
from autotune.ir import DTYPES, Epilogue, Problem
from autotune.ir.operators import Conv2d, Conv2dFoldedSe, Conv2dSe

ROW_BYTES = 128
"""Bytes of a pixel's or a filter's channels of a step in shared memory."""
CHANNELS_A_STEP = ROW_BYTES // 2
"""Channels of a step in half precision; in int8 twice as many."""
HALVES = ("f16", "bf16")
"""The dtypes of kernels with gates, and of residual blocks."""
_MAX_TAPS = 64
_SIDES = (4, 7, 8, 14, 16, 28, 32, 56, 64)
_MAX_CUTS, _MAX_CUT_WORK = 3, 1.3  # ways to cut an output that are tried; their work as a multiple of the least
_MAX_REGISTERS = 250  # of 255: the estimate leaves out a few addresses

# For the cost, in cycles and bytes a cycle of an SM: fitted, see `MmaConvFamily.cost`.
_LOADED_BYTES, _COPIED_BYTES = 28, 60  # from L2 in the main loop; by a tile's first loads
_START_CYCLES, _SLICE_CYCLES = 3000, 500  # of a tile; for the sums that slices exchange
_WAIT_CYCLES, _WAIT_CYCLES_OF_TWO = 350, 550  # of a warp's step; the latter with two buffers of weights

Solved = Conv2d | Conv2dSe | Conv2dFoldedSe
P = TypeVar("P", bound=Problem)


@dataclass(frozen=True)
class MmaConvShape:
    """A config by name, and what follows from it. hidden: columns of a warp's products for hidden values."""

    m: int
    n: int
    warp_m: int
    warp_n: int
    slices: int
    taps: int
    stages: int
    hidden: int

    @classmethod
    def from_config(cls, config: Config) -> MmaConvShape:
        """Return the shape of a config; families without `slices` or `hidden` have 1 and 0."""
        return cls(
            m=int(config["tile_m"]),
            n=int(config["tile_n"]),
            warp_m=int(config["warp_m"]),
            warp_n=int(config["warp_n"]),
            slices=int(config.get("slices", 1)),
            taps=int(config["taps"]),
            stages=int(config["stages"]),
            hidden=int(config.get("hidden", 0)),
        )

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.m // self.warp_m) * (self.n // self.warp_n) * self.slices

    @property
    def pieces(self) -> int:
        """Blocks of 16 pixels and 32 channels of a warp's sums."""
        return self.warp_m // 16 * (self.warp_n // 32)

    @property
    def accumulators(self) -> int:
        """Registers of a thread that hold sums."""
        return self.warp_m * (self.warp_n + self.hidden) // 32

    @property
    def registers(self) -> int:
        """Registers of a thread: sums, operands of two steps, and 56 others."""
        return self.accumulators + self.warp_m // 2 + (self.warp_n + self.hidden) // 2 + 56

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a step's weights."""
        return self.taps * (self.n + self.hidden) * ROW_BYTES

    def resident(self, arch: Architecture) -> int:
        """Return how many blocks the compiler must leave registers for on an SM."""
        return max(1, min(4, arch.sm_registers // (self.registers * self.threads)))

    def shared_bytes(self, pixels: int, patches: int) -> int:
        """Return the shared memory of a block with this many patches of this many pixels, in bytes."""
        warps = (self.m // self.warp_m) * (self.n // self.warp_n)
        sums = self.m * self.n * 4 + warps * (self.warp_m // 16) * self.hidden * 32
        exchanged = self.slices * sums if self.slices > 1 else 0
        return max(patches * pixels * ROW_BYTES + self.stages * self.stage_bytes, exchanged)


@dataclass(frozen=True)
class _OutputTile:
    """A way to cut the output.

    Attributes:
        p: Rows of an image that a tile has.
        q: Columns of it.
        images: Images that a tile has.
        pixels: Pixels of the input patch under a tile.
        tiles: Tiles of the problem.
    """

    p: int
    q: int
    images: int
    pixels: int
    tiles: int


def _output_tile(problem: Solved, x: MmaConvShape, p: int, q: int) -> _OutputTile:
    images = min(x.m // (p * q), problem.n) if (p, q) == (problem.p, problem.q) else 1
    high, wide = (
        stride * (extent - 1) + dilation * (filter_ - 1) + 1
        for stride, extent, dilation, filter_ in zip(
            problem.stride, (p, q), problem.dilation, (problem.r, problem.s), strict=True
        )
    )
    tiles = ceil(problem.n / images) * ceil(problem.p / p) * ceil(problem.q / q)
    return _OutputTile(p=p, q=q, images=images, pixels=images * high * wide, tiles=tiles)


def _output_tiles(problem: Solved, x: MmaConvShape) -> list[_OutputTile]:
    """Return the ways to cut the output that are worth trying: few tiles, and small patches."""
    if isinstance(problem, Conv2dSe | Conv2dFoldedSe):
        area = problem.p * problem.q
        return [_output_tile(problem, x, problem.p, problem.q)] if area <= x.m and x.m % area == 0 else []
    widths = sorted({min(side, problem.q, x.m) for side in (*_SIDES, problem.q)})
    cut = [_output_tile(problem, x, min(problem.p, x.m // width), width) for width in widths]
    work = {tile: tile.tiles * (x.m + tile.pixels / 2) for tile in cut}
    least = min(work.values())
    return sorted((tile for tile in cut if work[tile] < _MAX_CUT_WORK * least), key=work.__getitem__)[:_MAX_CUTS]


def _gate_bytes(problem: Solved, x: MmaConvShape) -> int:
    if isinstance(problem, Conv2dFoldedSe):
        return se_gate.folded_shared_bytes(rows=x.m, columns=x.n, hidden=x.hidden, warps=x.threads // 32)
    if not isinstance(problem, Conv2dSe):
        return 0
    return se_gate.shared_bytes(rows=x.m, columns=x.n, pixels=problem.p * problem.q, hidden=problem.hidden)


def _channel_bytes(problem: Solved) -> int:
    """Return the bytes of a pixel's channels."""
    return problem.c * DTYPES[problem.dtype].itemsize


def _multiplied_share(problem: Solved, x: MmaConvShape) -> float:
    """Return the share of the rows in shared memory that is multiplied: in int8, half of a half-full last chunk."""
    if problem.dtype in HALVES or x.slices > 2:
        return 1.0
    chunks, _ = _steps(problem, x)
    return ceil(_channel_bytes(problem) / (ROW_BYTES // 2)) / (2 * chunks)


def _steps(problem: Solved, x: MmaConvShape) -> tuple[int, int]:
    """Return (chunks of channels, steps of each chunk)."""
    return ceil(_channel_bytes(problem) / ROW_BYTES), problem.r * problem.s // x.taps


def _patch_counts(problem: Solved, x: MmaConvShape) -> list[int]:
    """Return how many patches can be in shared memory: two, to load one while another is read, or all."""
    chunks, steps = _steps(problem, x)
    if chunks > 1 and steps < x.stages - 1:
        return []  # a step waits for the loads issued stages - 1 steps before it, which would not cover the next patch
    return sorted({min(chunks, 2), chunks})


def _placements(problem: Solved, x: MmaConvShape, arch: Architecture) -> Iterator[tuple[_OutputTile, int, int]]:
    """Yield (output tile, patches, the block's shared memory) of every launch that fits shared memory."""
    for tile in _output_tiles(problem, x):
        for patches in _patch_counts(problem, x):
            shared = x.shared_bytes(tile.pixels, patches) + _gate_bytes(problem, x)
            if shared <= arch.block_shared:
                yield tile, patches, shared


def convolution_rules(problem: Solved) -> Rules:
    """Yield what a convolution must be so that some kernel computes it."""
    yield require(problem.groups == 1, "groups must be 1")
    unit = 16 // DTYPES[problem.dtype].itemsize  # channels of a copy to shared memory
    yield require(problem.c % unit == 0 and problem.k % 8 == 0, f"c must be a multiple of {unit}, and k of 8")
    yield require_no_overflow(problem.dtype, problem.r * problem.s * problem.c)
    yield require(problem.stride in ((1, 1), (2, 2)), "stride must be 1 or 2, the same along both axes")
    yield require(problem.r * problem.s <= _MAX_TAPS, f"filters must have at most {_MAX_TAPS} taps")
    if isinstance(problem, Conv2dSe | Conv2dFoldedSe):
        yield require(problem.dtype in HALVES, "gates are not computed from bytes")
        yield from se_gate.problem_rules(problem)
    yield require_addressable(problem)


class MmaConvFamily(CudaFamily[P]):
    """Convolutions of images by mma.sync, from sm_80 on, whose input stays in shared memory for all taps of a tile.

    CUTLASS 2.x's convolutions, in contrast, gather a step's pixels anew for each tap.
    """

    template = "cuda/conv2d.cu.j2"
    architectures = cuda_architectures(since=80)
    dtypes: tuple[str, ...] = HALVES
    parameters: tuple[Parameter, ...] = (
        Parameter("tile_m", (64, 128, 256), "output pixels of a tile"),
        Parameter("tile_n", (32, 64, 128, 256), "output channels of a tile"),
        Parameter("warp_m", (16, 32, 64), "pixels of a warp"),
        Parameter("warp_n", (32, 64), "channels of a warp"),
        Parameter("slices", (1, 2, 4), "warps that share the channels of a step, and their sums at the end"),
        Parameter("taps", (1, 3), "taps a step, of 128 bytes of channels"),
        Parameter("stages", (2, 3, 4), "buffers of weights"),
    )
    launch_parameters: tuple[Parameter, ...] = (
        Parameter("tile_p", tuple(range(1, 257)), "rows of a tile"),
        Parameter("tile_q", tuple(range(1, 257)), "columns of a tile"),
        Parameter("patches", tuple(range(1, 65)), "buffers of input"),
    )
    compile_seconds = (1.1, 1.3)

    @abstractmethod
    def convolution(self, problem: P) -> Solved:
        """Return the convolution that a problem's kernels are judged by."""

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        x = MmaConvShape.from_config(config)
        if "gate" in epilogue.names:
            yield require(dtype in HALVES, "gates are not computed from bytes")
            yield from se_gate.epilogue_rules(epilogue)
        yield require(x.warp_m <= x.m and x.warp_n <= x.n, "a warp's part must not be larger than the tile")
        yield require(64 <= x.threads <= 512, f"a block must have 64 to 512 threads; it has {x.threads}")
        yield require(x.pieces % x.slices == 0, "slices must divide a warp's blocks of 16 x 32 sums")
        yield require(
            x.threads // 8 <= x.n, "threads must be at most 8 tile_n: a thread copies the same filters each tap"
        )
        yield require(x.hidden == 0 or x.threads // 8 % 8 == 0, "threads must be a multiple of 64 with hidden values")
        yield require_registers(arch, x.threads, x.registers, _MAX_REGISTERS)
        least = x.shared_bytes(x.m, 1)
        yield require(
            least <= arch.block_shared,
            f"a block must fit {arch.block_shared} bytes of shared memory; it takes at least {least}",
        )

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: P | None
    ) -> Sequence[Value]:
        conv = self.convolution(problem) if problem else None

        def possible(value: int) -> bool:
            match parameter.name:
                case "warp_m" | "warp_n":
                    return value <= int(chosen[parameter.name.replace("warp", "tile")])
                case "tile_n" if conv:  # a gated tile has all channels; no tile is more than half empty
                    return (conv.k if isinstance(conv, Conv2dSe) else 0) <= value < 2 * max(conv.k, 32)
                case "taps" if conv:
                    return conv.r * conv.s % value == 0
            return True

        values = super().candidate_values(parameter, chosen, arch, dtype, problem)
        return tuple(value for value in values if possible(int(value)))

    def unsupported(self, problem: P) -> Rules:
        yield from convolution_rules(self.convolution(problem))

    def unfit(self, problem: P, config: Config, arch: Architecture) -> Rules:
        x, conv = MmaConvShape.from_config(config), self.convolution(problem)
        taps = conv.r * conv.s
        yield from super().unfit(problem, config, arch)
        yield require(taps % x.taps == 0, f"it takes {x.taps} taps a step, which must divide {taps}")
        yield require(
            not isinstance(conv, Conv2dSe) or conv.k <= x.n,
            f"tile_n must hold all {conv.k} channels of a gated image; it is {x.n}",
        )

    def launches(self, problem: P, config: Config, arch: Architecture) -> list[Launch]:
        placements = _placements(self.convolution(problem), MmaConvShape.from_config(config), arch)
        return [{"tile_p": tile.p, "tile_q": tile.q, "patches": patches} for tile, patches, _ in placements]

    def cost(self, problem: P, config: Config, arch: Architecture) -> float:
        """Estimate cycles: rounds of tiles, bound by products, shared memory or loads, or by a warp's dependent steps.

        The constants are fitted to 172 kernels timed on the layers of SE-ResNet9 on an H200.
        """
        x, conv = MmaConvShape.from_config(config), self.convolution(problem)
        chunks, each = _steps(conv, x)
        share = _multiplied_share(conv, x)
        best, columns = float("inf"), ceil(conv.k / x.n)
        for tile, _, shared in _placements(conv, x, arch):
            by_shared = arch.sm_shared // (shared + arch.reserved_shared)
            resident = max(1, min(by_shared, x.resident(arch), arch.sm_threads // x.threads))
            blocks = tile.tiles * columns
            rounds, sharing = ceil(blocks / (arch.processors * resident)), min(resident, ceil(blocks / arch.processors))
            step_bytes = x.stage_bytes + tile.pixels * ROW_BYTES / each
            # A product of 32 bytes of two rows takes as long in int8 as in half precision.
            products = share * x.taps * x.m * (x.n + x.hidden * (x.n // x.warp_n)) * CHANNELS_A_STEP / arch.mma_rate
            read = share * x.taps * (x.m * (x.n // x.warp_n) + x.n * (x.m // x.warp_m))
            wait = _WAIT_CYCLES_OF_TWO if x.stages == 2 else _WAIT_CYCLES
            alone = wait + 8 * x.taps * x.accumulators / x.slices + step_bytes / 8 / x.threads
            step = max(sharing * max(products, read, step_bytes / _LOADED_BYTES), alone)
            first_loads = (tile.pixels * ROW_BYTES + x.stage_bytes) / _COPIED_BYTES
            epilogue = x.m * x.n / 6 * sharing
            ends = _START_CYCLES + first_loads + epilogue + (_SLICE_CYCLES if x.slices > 1 else 0)
            best = min(best, rounds * (ends + chunks * each * step))
        return best

    def label(self, config: Config) -> str:
        x = MmaConvShape.from_config(config)
        split = f" slices {x.slices}" if x.slices > 1 else ""
        return f"{x.m}x{x.n}/{x.warp_m}x{x.warp_n} taps {x.taps} s{x.stages}{split}"

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        x = MmaConvShape.from_config(config)
        derived = {"slices": x.slices, "hidden": x.hidden, "threads": x.threads, "resident": x.resident(arch)}
        return {**config, **derived, "type": dtype, "block": False, "image": 0}

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight": "krsc"}


class CudaConv2d(MmaConvFamily[Conv2d | Conv2dSe]):
    """Convolutions of images by mma.sync, from sm_80 on: a tile's input stays in shared memory for all taps.

    fp16 and bf16 have float32 sums, int8 has int32 sums.
    """

    name = "cuda_conv2d"
    operator = (Conv2d, Conv2dSe)
    dtypes = (*HALVES, "s8")

    def convolution(self, problem: Conv2d | Conv2dSe) -> Solved:
        return problem


FAMILIES = (CudaConv2d(),)
