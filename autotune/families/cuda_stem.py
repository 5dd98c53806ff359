"""A network's first convolution with its max pool, from NCHW to NHWC, on tensor cores: templates/cuda/stem.cuh."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from autotune.arch import Architecture
from autotune.epilogue import Epilogue
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter, Value
from autotune.problem import Problem, Stem

_REGISTERS = 65536
_WALKS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class _Shape:
    """A config with its names spelt out, and what stem.cuh derives from it."""

    wgmma: bool
    pool: bool
    filter: int
    channels: int
    tile_k: int
    strips: int
    rows: int
    together: int
    stages: int
    access: int
    resident: int

    @property
    def warp_k(self) -> int:
        """Output channels of a warp: all of the block's, or as many as have room in registers."""
        return self.tile_k if self.wgmma else 32

    @property
    def slices(self) -> int:
        return self.tile_k // self.warp_k

    @property
    def threads(self) -> int:
        return 32 * self.strips * self.slices

    @property
    def taps(self) -> int:
        return 4 if self.filter == 3 else 8

    @property
    def steps(self) -> int:
        return ceil(self.channels * self.filter * self.taps / 16)

    @property
    def tile_q(self) -> int:
        """Output columns of a block."""
        return self.strips * (7 if self.pool else 16)

    @property
    def conv_rows(self) -> int:
        return 2 * self.rows + 1 if self.pool else self.rows

    @property
    def stage_bytes(self) -> int:
        words = (self.strips - 1) * (14 if self.pool else 16) + 14 + self.taps // 2 + self.access // 2
        return self.channels * (2 * (self.conv_rows - 1) + self.filter) * ceil(words / 4) * 16

    @property
    def shared_bytes(self) -> int:
        weights = self.steps * self.tile_k * 32 + 256 if self.wgmma else 0
        return self.stages * self.stage_bytes + weights

    @property
    def registers(self) -> int:
        """Of a thread, roughly: sums, the pool's, pixels, weights."""
        sums = self.warp_k // 2 * (self.together + self.pool)
        operands = self.steps * (2 + 2 * self.together) if self.wgmma else self.steps * self.warp_k // 4 + 8
        return sums + operands + 40


def _shape(config: Config) -> _Shape:
    names = ("filter", "channels", "tile_k", "strips", "rows", "together", "stages", "access", "resident")
    numbers = {name: int(config[name]) for name in names}
    return _Shape(config["instruction"] == "wgmma", bool(config["pool"]), **numbers)


def _rules(x: _Shape, arch: Architecture) -> Iterator[tuple[bool, str]]:
    yield x.wgmma and arch.name != "sm90", "wgmma is Hopper's"
    yield x.wgmma and x.strips % 4 > 0, "a warpgroup has four strips"
    yield x.threads > 512, "up to 512 threads a block"
    yield x.registers > 224, "the sums and operands would spill"
    yield x.resident * x.threads * x.registers > _REGISTERS, "registers for the blocks of a processor"
    yield x.resident * (x.shared_bytes + arch.reserved_shared) > arch.sm_shared, "shared memory"
    yield x.shared_bytes > arch.block_shared, "shared memory of a block"


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return next((why for broken, why in _rules(_shape(config), arch) if broken), None)


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, Stem)
    if problem.stride != (2, 2) or problem.r != problem.s or problem.pad != (problem.r // 2, problem.r // 2):
        return "square filters with stride 2 and half of them as padding"
    if (problem.pool, problem.pool_stride, problem.pool_pad) not in ((1, 1, 0), (3, 2, 1)):
        return "no pool, or 3x3 with stride 2 and padding 1"
    if problem.r not in (3, 5, 7) or problem.c > 4:
        return "filters of 3, 5 or 7 and up to 4 channels"
    return "k must be a multiple of 8 and w of 2" if problem.k % 8 or problem.w % 2 else None


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> tuple[Value, ...]:
    """What the problem asks for, where it decides."""
    if not isinstance(problem, Stem):
        return parameter.values
    asked = {
        "filter": problem.r,
        "channels": problem.c,
        "pool": int(problem.pool > 1),
        "access": 8 if problem.w % 8 == 0 else 2,
    }
    if parameter.name == "tile_k" and problem.k <= 32:
        return (32,)
    return (asked[parameter.name],) if parameter.name in asked else parameter.values


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, Stem)
    x = _shape(config)
    if (x.filter, x.channels, x.pool) != (problem.r, problem.c, problem.pool > 1):
        return "another filter, number of channels or pool"
    if x.access != (8 if problem.w % 8 == 0 else 2):
        return "w must be a multiple of an access, and the widest is best"
    return "half of the channels would be none" if problem.k <= 32 < x.tile_k else None


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    assert isinstance(problem, Stem)
    tiles = ceil(problem.p / int(config["rows"]))
    return [{"walk": walk} for walk in _WALKS if walk == 1 or walk < 2 * tiles]


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Cycles by a crude model: waves of blocks that share a processor, or wait alone, after reading weights."""
    assert isinstance(problem, Stem)
    x = _shape(config)
    by_shared = arch.sm_shared // (x.shared_bytes + arch.reserved_shared)
    resident = max(1, min(by_shared, _REGISTERS // (x.registers * x.threads), arch.sm_threads // x.threads))
    rate = 1.0 if x.wgmma else 1.7 if arch.name == "sm90" else 2.0  # cycles of 16 x 8 x 16 products
    best = float("inf")
    for launch in _launches(problem, config, arch):
        walk = launch["walk"]
        parts = ceil(ceil(problem.p / x.rows) / walk)
        blocks = problem.n * ceil(problem.k / x.tile_k) * parts * ceil(problem.q / x.tile_q)
        sharing = min(resident, ceil(blocks / arch.processors))
        rows = walk * (x.conv_rows - x.pool) + x.pool
        steps = rows * x.strips * x.steps
        busy = steps * (x.tile_k / 8 * rate + 2 * x.slices) + walk * x.stage_bytes / 80
        wait = rows / x.together * (x.steps * x.warp_k * rate / 2 + 250) + walk * (600 if x.stages == 1 else 100)
        start = 1500 + x.steps * x.tile_k * 160 / x.threads
        best = min(best, ceil(blocks / (arch.processors * resident)) * (start + max(busy * sharing, wait)))
    return best


def _context(config: Config, arch: Architecture, dtype: str) -> dict[str, object]:
    x = _shape(config)
    return {**config, "warp_k": x.warp_k, "slices": x.slices, "threads": x.threads, "type": dtype}


def _label(config: Config) -> str:
    x = _shape(config)
    return f"{config['instruction']} {x.rows}x{x.tile_q}x{x.tile_k} together {x.together} s{x.stages} r{x.resident}"


FAMILY = Family(
    name="cuda_stem",
    operator=Stem,
    kind=DEVICE_IMAGE,
    template="cuda/stem.cu.j2",
    architectures=("sm80", "sm86", "sm89", "sm90"),
    dtypes=("f16", "bf16"),
    parameters=(
        Parameter("instruction", ("mma", "wgmma"), "tensor cores' instruction; wgmma on Hopper alone"),
        Parameter("filter", (3, 5, 7), "side of the filter"),
        Parameter("channels", (1, 2, 3, 4), "input channels"),
        Parameter("pool", (0, 1), "1: the 3x3 max pool with stride 2 behind the convolution"),
        Parameter("access", (2, 8), "pixels a load"),
        Parameter("tile_k", (32, 64), "output channels a block"),
        Parameter("strips", (2, 4, 8), "strips of 16 pixels of the convolution side by side"),
        Parameter("rows", (2, 4, 8), "output rows a tile"),
        Parameter("together", (1, 2), "rows of the convolution at a time"),
        Parameter("stages", (1, 2), "tiles in shared memory"),
        Parameter("resident", (1, 2, 3), "blocks that a processor must have registers for"),
    ),
    launch_parameters=(Parameter("walk", _WALKS, "tiles below each other a block"),),
    legal=_legal,
    values=_values,
    supports=_supports,
    fits=_fits,
    launches=_launches,
    cost=_cost,
    context=_context,
    compile_seconds=(1.2, 1.5),
    label=_label,
)
