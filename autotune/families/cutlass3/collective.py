"""What the families from CUTLASS 3.x for Hopper share: tiles, which of them compile, and what they take.

The rules mirror static assertions of CUTLASS's headers and what was seen to spill; the bytes are an upper bound of what
CUTLASS's kernels count, which each kernel asserts as it is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.core import Architecture, ceil_div
from autotune.families.base import Config, Parameter, Value
from autotune.ir import Epilogue, Problem

ELEMENTS = {"f16": "cutlass::half_t", "bf16": "cutlass::bfloat16_t", "tf32": "float"}
BYTES = {"f16": 2, "bf16": 2, "tf32": 4}
KERNEL_SCHEDULES = {"basic": "kBasic", "pingpong": "kPingpong", "cooperative": "kCooperative"}
_SWIZZLES = (32, 64, 128)  # bytes of a row in shared memory
_MOST_STAGES = 16
_OVERHEAD = 1024 + 16  # barriers and what aligns the buffers, and the scheduler's word
_REGISTERS = 65536
_MOST_SUMS = 192  # registers of a thread that can hold sums without spilling
_OTHER_REGISTERS = 44  # of a thread of a basic kernel
_READ_AHEAD = 24  # of one that reads tensors
_TAKEN = 8  # of one that takes what TMA has read
_WIDE_PART = 16  # of one that stores 64 columns at a time

# For the cost: a multiprocessor's rates a cycle.
_PRODUCTS_A_CYCLE = 2048  # of 16-bit elements
_LOADED_BYTES_A_CYCLE = 100
_LATENCY, _FILLING = 900, 1200  # cycles until a load has come; until a block multiplies


@dataclass(frozen=True)
class Tile:
    """A config with its names spelt out. stages: as many as fit."""

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
    def of(cls, config: Config, dtype: str) -> Tile:
        """The tile of a config; a family without schedules has the basic one alone."""
        m, n, k, cluster_m, cluster_n, epilogue_n, resident = (
            int(config[name])
            for name in ("tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n", "epilogue_n", "resident")
        )
        schedule, by_tma = str(config.get("schedule", "basic")), config["source"] == "tma"
        return cls(m, n, k, schedule, cluster_m, cluster_n, epilogue_n, by_tma, resident, BYTES[dtype])

    @property
    def groups(self) -> int:
        """Warpgroups that multiply."""
        return 1 if self.schedule == "basic" else 2

    @property
    def threads(self) -> int:
        """Threads of a block: those that multiply, and a warpgroup that loads."""
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
        """Shared memory that the output passes through, and what is added to it, in whole patterns of its swizzle."""
        parts = self.m // self.epilogue_m * (self.n // self.epilogue_n)
        stores = min(parts, 2)
        buffers = max(min(parts, 4), stores + 1) if self.by_tma else stores
        pattern = 8 * min(self.epilogue_n * self.bytes, _SWIZZLES[-1])
        return buffers * self.epilogue_m * self.epilogue_n * self.bytes + pattern  # for what it keeps beside them

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage, with its barriers."""
        return (self.m + self.n) * self.k * self.bytes + 16

    def stages(self, arch: Architecture) -> int:
        """As many as fit the share of a multiprocessor that the block has."""
        room = arch.sm_shared // self.resident - arch.reserved_shared - _OVERHEAD
        kept = 0 if self.schedule == "basic" else self.epilogue_bytes  # a block that ends with its tile reuses it
        return min((min(room, arch.block_shared - _OVERHEAD) - kept) // self.stage_bytes, _MOST_STAGES)

    def shared_bytes(self, arch: Architecture) -> int:
        """At most so many bytes of dynamic shared memory."""
        loads = self.stages(arch) * self.stage_bytes
        basic = self.schedule == "basic"
        return _OVERHEAD + (max(loads, self.epilogue_bytes) if basic else loads + self.epilogue_bytes)

    def clusters(self, arch: Architecture) -> int:
        """Clusters that fill the machine."""
        return arch.processors_for(self.cluster) // self.cluster


def rules(x: Tile, arch: Architecture, epilogue: Epilogue) -> Iterator[tuple[bool, str]]:
    """What a tile may break, and why it is refused then."""
    tensors = sum(argument.kind == "tensor" for argument in epilogue.arguments)
    ahead = _READ_AHEAD if tensors > x.by_tma else _TAKEN if x.by_tma else 0
    ahead += _WIDE_PART if x.epilogue_n > 32 else 0
    row = x.k * x.bytes
    yield x.by_tma and not tensors, "there is no tensor to load by TMA"
    yield x.schedule == "cooperative" and x.m % 128 > 0, "two warpgroups share tiles of multiples of 128 rows"
    yield x.sums + (ahead if x.groups > 1 else 0) > _MOST_SUMS, "the accumulators would spill"
    wide_beside_short = x.epilogue_n > 32 and row < _SWIZZLES[-1]
    yield x.groups > 1 and x.sums >= 128 and wide_beside_short, "wide stores of sums from short rows would spill"
    yield row % _SWIZZLES[0] > 0 or (row > _SWIZZLES[-1] and row % _SWIZZLES[-1] > 0), "rows that no swizzle fits"
    yield x.n % x.epilogue_n > 0, "the epilogue's part must divide the tile"
    yield x.cluster > 4, "clusters of up to four blocks"
    yield x.resident > 1 and x.schedule != "basic", "two warpgroups that multiply take all registers"
    registers = x.sums + ahead + _OTHER_REGISTERS
    yield x.resident > 1 and registers > _REGISTERS // (x.threads * x.resident) // 8 * 8, "registers for so many blocks"
    yield x.stages(arch) < 2 or x.shared_bytes(arch) > arch.block_shared, "shared memory"


def legal(x: Tile, arch: Architecture, epilogue: Epilogue) -> str | None:
    """None if it compiles and does not spill, or why it is refused."""
    return next((why for broken, why in rules(x, arch, epilogue) if broken), None)


def parameters(m: str, n: str, k: str, tiles_m: tuple[int, ...]) -> tuple[Parameter, ...]:
    """The axes that all have; m, n, k: what the GEMM's sizes stand for."""
    return (
        Parameter("tile_m", tiles_m, f"{m} of a tile"),
        Parameter("tile_n", (32, 64, 96, 128, 192, 256), f"{n} of a tile"),
        Parameter("tile_k", (16, 32, 64, 128), f"{k} a step"),
        Parameter("cluster_m", (1, 2, 4), "blocks along m that share their loads of B"),
        Parameter("cluster_n", (1, 2, 4), "blocks along n that share their loads of A"),
        Parameter("epilogue_n", (32, 64), f"{n} that the epilogue stores at a time"),
        Parameter("source", ("threads", "tma"), "who reads the first tensor that is added: each its part, or TMA"),
        Parameter("resident", (1, 2, 3), "blocks a multiprocessor, which share its memory and registers"),
    )


def values(parameter: Parameter, chosen: Config, dtype: str, epilogue: Epilogue | None) -> Sequence[Value]:
    """What can be legal beside the values chosen so far. epilogue: of the problem, if there is one."""
    match parameter.name:
        case "tile_k":
            return [k for k in parameter.values if 64 <= int(k) * BYTES[dtype] <= 256]
        case "source" if epilogue and not any(argument.kind == "tensor" for argument in epilogue.arguments):
            return ("threads",)
        case "resident" if chosen.get("schedule", "basic") != "basic":
            return (1,)
    return parameter.values


def fitting(parameter: Parameter, found: Sequence[Value], dtype: str, sizes: tuple[int, int, int]) -> Sequence[Value]:
    """Of an axis's values those that are no waste for a GEMM of m x n x k."""
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


def misaligned(dtype: str, *extents: int) -> str | None:
    """TMA takes rows of multiples of 16 bytes."""
    width = 16 // BYTES[dtype]
    return f"channels in multiples of {width}" if any(extent % width for extent in extents) else None


@dataclass(frozen=True)
class Work:
    """Sizes of the GEMM in tiles, and how many steps of tile_k a tile takes."""

    tiles_m: int
    tiles_n: int
    steps: int

    def tiles(self, x: Tile) -> int:
        """Tiles of whole clusters."""
        return ceil_div(self.tiles_m, x.cluster_m) * ceil_div(self.tiles_n, x.cluster_n)

    def wasteful(self, x: Tile) -> str | None:
        """Clusters that reach beyond the output."""
        beyond = self.tiles_m < x.cluster_m or self.tiles_n < x.cluster_n
        return "a cluster is larger than the output" if beyond else None


def cost(work: Work, x: Tile, arch: Architecture, slices: int = 1) -> float:
    """Cycles by a crude model: rounds of tiles, each bound by products, loads or latency, and what others do not hide.

    slices: of each tile.
    """
    rounds = ceil_div(work.tiles(x) * slices, x.clusters(arch) * x.resident)
    products = x.m * max(x.n, 32) * x.k * x.bytes / 2 / _PRODUCTS_A_CYCLE * x.resident
    loads = (x.m / x.cluster_n + x.n / x.cluster_m) * x.k * x.bytes / _LOADED_BYTES_A_CYCLE * x.resident
    step = max(products, loads, _LATENCY / x.stages(arch)) * (1 + 0.01 * x.cluster)
    exposed = {"basic": 1 / x.resident, "pingpong": 0.3, "cooperative": 0.8}[x.schedule]
    epilogue = exposed * x.m * x.n / (6.5 if x.by_tma else 6)
    gather = x.m * x.n * (slices + 1) / 80 if slices > 1 else 0
    filling = _FILLING * (rounds if x.schedule == "basic" else 1)
    return rounds * (ceil_div(work.steps, slices) * step + epilogue + gather) + filling


def label(config: Config) -> str:
    """A config in few characters."""
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
    """The template's variables."""
    x = Tile.of(config, dtype)
    return {
        **config,
        "cutlass_element": ELEMENTS[dtype],
        "kernel_schedule": KERNEL_SCHEDULES[x.schedule],
        "stages": x.stages(arch),
        "threads": x.threads,
        "shared_bytes": x.shared_bytes(arch),
    }


def too_large(problem: Problem) -> str | None:
    """What CUTLASS's 32-bit coordinates cannot count."""
    rows = max(operand.bytes // BYTES[problem.dtype] // operand.shape[-1] for operand in problem.operands())
    return "tensors of up to 2^31 rows" if rows >= 2**31 else None
