"""Tiles of CUTLASS 3.x kernels for Hopper: their rules, resources and cost, for all families from CUTLASS 3.x.

The rules mirror static assertions of CUTLASS's headers and spills that were observed. The shared memory is an upper
bound of what CUTLASS computes; each kernel asserts it at compile time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.core import Architecture, ceil_div
from autotune.families.base import Config, Parameter, Value
from autotune.families.rules import Rules, first_unmet, require
from autotune.ir import Epilogue, Problem

ELEMENTS = {"f16": "cutlass::half_t", "bf16": "cutlass::bfloat16_t", "tf32": "float"}
BYTES = {"f16": 2, "bf16": 2, "tf32": 4}
KERNEL_SCHEDULES = {"basic": "kBasic", "pingpong": "kPingpong", "cooperative": "kCooperative"}
_SWIZZLES = (32, 64, 128)  # bytes of a row in shared memory
_MAX_STAGES = 16
_OVERHEAD = 1024 + 16  # bytes of shared memory: barriers, alignment of the buffers, the scheduler's word

# Registers of a thread, from kernels that were compiled and spilled or not (compiled_cutlass3.csv of the tests).
_MAX_SUMS = 192  # that can hold sums without spilling
_OTHER_REGISTERS = 44  # of a basic kernel beside its sums
_READ_AHEAD_REGISTERS = 24  # if the epilogue reads tensors
_TMA_SOURCE_REGISTERS = 8  # if TMA has read them
_WIDE_STORE_REGISTERS = 16  # if it stores 64 columns at a time

# For the cost: estimates for an H200, not fitted.
_LOADED_BYTES_A_CYCLE = 100  # of an SM, from the L2 cache
_LOAD_CYCLES, _START_CYCLES = 900, 1200  # until a load arrives; until a block starts to multiply


@dataclass(frozen=True)
class CollectiveTile:
    """A config by name.

    Attributes:
        by_tma: Whether TMA reads the first tensor that the epilogue adds.
        resident: Blocks of an SM.
        bytes: Bytes of an element.
    """

    m: int
    n: int
    k: int
    schedule: str
    cluster_m: int
    cluster_n: int
    epilogue_n: int
    by_tma: bool
    resident: int
    bytes: int

    @classmethod
    def from_config(cls, config: Config, dtype: str) -> CollectiveTile:
        """Return a config's tile; a family without schedules has only the basic one."""
        return cls(
            m=int(config["tile_m"]),
            n=int(config["tile_n"]),
            k=int(config["tile_k"]),
            schedule=str(config.get("schedule", "basic")),
            cluster_m=int(config["cluster_m"]),
            cluster_n=int(config["cluster_n"]),
            epilogue_n=int(config["epilogue_n"]),
            by_tma=config["source"] == "tma",
            resident=int(config["resident"]),
            bytes=BYTES[dtype],
        )

    @property
    def groups(self) -> int:
        """Warpgroups that multiply."""
        return 1 if self.schedule == "basic" else 2

    @property
    def threads(self) -> int:
        """Threads of a block: warpgroups that multiply, and one that loads."""
        return 128 * (self.groups + 1)

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def sums(self) -> int:
        """Registers of a thread that hold sums."""
        return self.m * self.n // (256 if self.schedule == "cooperative" else 128)

    @property
    def epilogue_m(self) -> int:
        """Rows that the epilogue stores at a time."""
        return 128 if self.schedule == "cooperative" else 64

    @property
    def epilogue_bytes(self) -> int:
        """Shared memory that stages the output and the tensor added to it, in whole patterns of its swizzle."""
        parts = self.m // self.epilogue_m * (self.n // self.epilogue_n)
        stores = min(parts, 2)
        buffers = max(min(parts, 4), stores + 1) if self.by_tma else stores
        pattern = 8 * min(self.epilogue_n * self.bytes, _SWIZZLES[-1])
        return buffers * self.epilogue_m * self.epilogue_n * self.bytes + pattern  # for the epilogue's own state

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage, with its barriers."""
        return (self.m + self.n) * self.k * self.bytes + 16

    def stages(self, arch: Architecture) -> int:
        """Return how many stages fit the block's share of an SM."""
        room = arch.sm_shared // self.resident - arch.reserved_shared - _OVERHEAD
        kept = (
            0 if self.schedule == "basic" else self.epilogue_bytes
        )  # a basic block ends with its tile and reuses the stages
        return min((min(room, arch.block_shared - _OVERHEAD) - kept) // self.stage_bytes, _MAX_STAGES)

    def shared_bytes(self, arch: Architecture) -> int:
        """Return an upper bound of the dynamic shared memory, in bytes."""
        loads = self.stages(arch) * self.stage_bytes
        basic = self.schedule == "basic"
        return _OVERHEAD + (max(loads, self.epilogue_bytes) if basic else loads + self.epilogue_bytes)

    def clusters(self, arch: Architecture) -> int:
        """Return how many clusters fill the machine."""
        return arch.processors_for(self.cluster) // self.cluster


def why_illegal(tile: CollectiveTile, arch: Architecture, epilogue: Epilogue) -> str | None:
    """Return the first requirement that a tile does not meet, or None if it compiles and does not spill."""
    return first_unmet(_tile_rules(tile, arch, epilogue))


def _tile_rules(x: CollectiveTile, arch: Architecture, epilogue: Epilogue) -> Rules:
    tensors = sum(argument.kind == "tensor" for argument in epilogue.arguments)
    beside = _READ_AHEAD_REGISTERS if tensors > x.by_tma else _TMA_SOURCE_REGISTERS if x.by_tma else 0
    beside += _WIDE_STORE_REGISTERS if x.epilogue_n > 32 else 0
    row = x.k * x.bytes
    yield require(not x.by_tma or tensors, "source must be threads: the epilogue adds no tensor")
    yield require(x.schedule != "cooperative" or x.m % 128 == 0, "cooperative: tile_m must be a multiple of 128")
    yield require(
        x.sums + (beside if x.groups > 1 else 0) <= _MAX_SUMS, f"sums and epilogue must fit {_MAX_SUMS} registers"
    )
    wide_and_short = x.epilogue_n > 32 and row < _SWIZZLES[-1]
    yield require(
        x.groups == 1 or x.sums < 128 or not wide_and_short,
        "epilogue_n must be 32 if a thread has 128 sums and tile_k less than 128 bytes: other kernels spill",
    )
    yield require(
        row % _SWIZZLES[0] == 0 and (row <= _SWIZZLES[-1] or row % _SWIZZLES[-1] == 0),
        "tile_k must be a multiple of 32 bytes and, above 128 bytes, of 128: the swizzles of shared memory",
    )
    yield require(x.n % x.epilogue_n == 0, "epilogue_n must divide tile_n")
    yield require(x.cluster <= 4, "a cluster must have at most 4 blocks")
    yield require(x.resident == 1 or x.schedule == "basic", "resident must be 1 with two warpgroups that multiply")
    registers = x.sums + beside + _OTHER_REGISTERS
    room = arch.sm_registers // (x.threads * x.resident) // 8 * 8
    yield require(x.resident == 1 or registers <= room, f"a thread must fit {room} registers; it takes {registers}")
    yield require(
        x.stages(arch) >= 2 and x.shared_bytes(arch) <= arch.block_shared, "two stages must fit a block's shared memory"
    )


def parameters(m: str, n: str, k: str, tiles_m: tuple[int, ...]) -> tuple[Parameter, ...]:
    """Return the parameters that all families have; m, n, k: the meaning of the GEMM's sizes."""
    return (
        Parameter("tile_m", tiles_m, f"{m} of a tile"),
        Parameter("tile_n", (32, 64, 96, 128, 192, 256), f"{n} of a tile"),
        Parameter("tile_k", (16, 32, 64, 128), f"{k} a step"),
        Parameter("cluster_m", (1, 2, 4), "blocks along m that share their loads of B"),
        Parameter("cluster_n", (1, 2, 4), "blocks along n that share their loads of A"),
        Parameter("epilogue_n", (32, 64), f"{n} that the epilogue stores at a time"),
        Parameter(
            "source", ("threads", "tma"), "reader of the first tensor that is added: each thread its part, or TMA"
        ),
        Parameter("resident", (1, 2, 3), "blocks an SM, which share its memory and registers"),
    )


def candidate_values(parameter: Parameter, chosen: Config, dtype: str, epilogue: Epilogue | None) -> Sequence[Value]:
    """Return the values that can be legal with those chosen so far; epilogue: the problem's, if there is one."""
    match parameter.name:
        case "tile_k":
            return [k for k in parameter.values if 64 <= int(k) * BYTES[dtype] <= 256]
        case "source" if epilogue and not any(argument.kind == "tensor" for argument in epilogue.arguments):
            return ("threads",)
        case "resident" if chosen.get("schedule", "basic") != "basic":
            return (1,)
    return parameter.values


def fitting_values(
    parameter: Parameter, found: Sequence[Value], dtype: str, sizes: tuple[int, int, int]
) -> Sequence[Value]:
    """Return the values for which a tile is not more than half empty with a GEMM of m x n x k."""
    m, n, k = sizes
    match parameter.name:
        case "tile_m":
            return [value for value in found if int(value) < 2 * max(m, 64)]
        case "tile_n":
            return [value for value in found if int(value) < 2 * max(n, 32)]
        case "tile_k":
            narrow, row = [value for value in found if int(value) < 2 * k], _SWIZZLES[-1] // BYTES[dtype]
            return [value for value in narrow if int(value) >= min(k, row)] or found[:1]
    return found


def require_aligned(dtype: str, *extents: int) -> str | None:
    """Require that rows are multiples of 16 bytes, as TMA reads them."""
    width = 16 // BYTES[dtype]
    return require(all(extent % width == 0 for extent in extents), f"channels must be multiples of {width} in {dtype}")


@dataclass(frozen=True)
class TileGrid:
    """Sizes of a GEMM in tiles; steps: steps of tile_k of each tile."""

    tiles_m: int
    tiles_n: int
    steps: int

    def clusters(self, tile: CollectiveTile) -> int:
        """Return how many clusters cover the output."""
        return ceil_div(self.tiles_m, tile.cluster_m) * ceil_div(self.tiles_n, tile.cluster_n)

    def require_full_cluster(self, tile: CollectiveTile) -> str | None:
        """Require that a cluster is not larger than the output."""
        return require(
            self.tiles_m >= tile.cluster_m and self.tiles_n >= tile.cluster_n,
            f"a cluster of {tile.cluster_m}x{tile.cluster_n} tiles must not be larger than the output, "
            f"{self.tiles_m}x{self.tiles_n} tiles",
        )


def cost(grid: TileGrid, x: CollectiveTile, arch: Architecture, slices: int = 1) -> float:
    """Estimate cycles: rounds of tiles, each bound by products, loads or latency, and the exposed epilogues.

    Args:
        grid: The GEMM's tiles.
        x: The kernel's tile.
        arch: The architecture.
        slices: Blocks that split the steps of each tile.
    """
    rounds = ceil_div(grid.clusters(x) * slices, x.clusters(arch) * x.resident)
    products = x.m * max(x.n, 32) * x.k * x.bytes / 2 / arch.wgmma_rate * x.resident
    loads = (x.m / x.cluster_n + x.n / x.cluster_m) * x.k * x.bytes / _LOADED_BYTES_A_CYCLE * x.resident
    step = max(products, loads, _LOAD_CYCLES / x.stages(arch)) * (1 + 0.01 * x.cluster)
    exposed = {"basic": 1 / x.resident, "pingpong": 0.3, "cooperative": 0.8}[x.schedule]
    epilogue = exposed * x.m * x.n / (6.5 if x.by_tma else 6)
    gather = x.m * x.n * (slices + 1) / 80 if slices > 1 else 0
    start = _START_CYCLES * (rounds if x.schedule == "basic" else 1)
    return rounds * (ceil_div(grid.steps, slices) * step + epilogue + gather) + start


def label(config: Config) -> str:
    """Return a config in few characters."""
    tile = "x".join(str(config[f"tile_{axis}"]) for axis in "mnk")
    m, n = config["cluster_m"], config["cluster_n"]
    extras = [
        f" {config['schedule']}" if "schedule" in config else "",
        f" c{m}x{n}" if (m, n) != (1, 1) else "",
        f" e{config['epilogue_n']}",
        " tma" if config["source"] == "tma" else "",
        f" {config['resident']} blocks" if config["resident"] != 1 else "",
    ]
    return tile + "".join(extras)


def context(config: Config, arch: Architecture, dtype: str) -> dict[str, object]:
    """Return the template's variables."""
    x = CollectiveTile.from_config(config, dtype)
    return {
        **config,
        "cutlass_element": ELEMENTS[dtype],
        "kernel_schedule": KERNEL_SCHEDULES[x.schedule],
        "stages": x.stages(arch),
        "threads": x.threads,
        "shared_bytes": x.shared_bytes(arch),
    }


def require_countable(problem: Problem) -> str | None:
    """Require that CUTLASS's 32-bit coordinates can count the rows of all tensors."""
    rows = max(operand.bytes // BYTES[problem.dtype] // operand.shape[-1] for operand in problem.operands())
    return require(rows < 2**31, f"tensors must have fewer than 2^31 rows; the longest has {rows}")
