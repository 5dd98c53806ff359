"""What the convolutions of few channels on tensor cores share: templates/cuda/stem.cuh."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from autotune.core import Architecture
from autotune.families import cuda_shared
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter, Value
from autotune.ir import Conv2d, Epilogue, Problem, Stem

_WALKS = (1, 2, 4, 8, 16, 32)
FILTERS = (3, 5, 7)
MOST_CHANNELS = 4


@dataclass(frozen=True)
class _Shape:
    """A config with its names spelt out, and what stem.cuh derives from it."""

    wgmma: bool
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
    def side(self) -> int:
        """Elements of a pixel in a row of the image."""
        return self.channels if self.interleaved else 1

    @property
    def taps(self) -> int:
        line = self.filter * self.side + self.filter // 2 * self.side % 2
        return 4 if line <= 4 else ceil(line / 8) * 8

    @property
    def lines(self) -> int:
        return self.filter * self.channels // self.side

    @property
    def steps(self) -> int:
        return ceil(self.lines * self.taps / 16)

    @property
    def tile_q(self) -> int:
        """Output columns of a block."""
        return self.strips * (7 if self.pool else 16)

    @property
    def conv_rows(self) -> int:
        return 2 * self.rows + 1 if self.pool else self.rows

    @property
    def stage_bytes(self) -> int:
        pixels = (self.strips - 1) * (14 if self.pool else 16) + 15
        words = pixels * self.stride * self.side // 2 + self.taps // 2 + self.access // 2 - 1
        return self.channels // self.side * (self.stride * (self.conv_rows - 1) + self.filter) * ceil(words / 4) * 16

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
    interleaved = "pool" not in config  # only NCHW images are pooled, and those with stride 2 alone
    stride = int(config.get("stride", 2))
    return _Shape(config["instruction"] == "wgmma", interleaved, bool(config.get("pool")), stride=stride, **numbers)


def _rules(x: _Shape, arch: Architecture) -> Iterator[tuple[bool, str]]:
    yield x.stride * x.side % 2 > 0, "lines of neighbouring pixels begin whole words apart"
    yield x.wgmma and arch.name != "sm90", "wgmma is Hopper's"
    yield x.wgmma and x.strips % 4 > 0, "a warpgroup has four strips"
    yield x.threads > 512, "up to 512 threads a block"
    yield x.registers > 224, "the sums and operands would spill"
    yield x.resident * x.threads * x.registers > cuda_shared.REGISTERS, "registers for the blocks of a processor"
    yield x.resident * (x.shared_bytes + arch.reserved_shared) > arch.sm_shared, "shared memory"
    yield x.shared_bytes > arch.block_shared, "shared memory of a block"


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return next((why for broken, why in _rules(_shape(config), arch) if broken), None)


def unserved(problem: Conv2d | Stem, strides: tuple[int, ...]) -> str | None:
    """Family.supports of the window and channels."""
    if problem.stride[0] not in strides or problem.stride[0] != problem.stride[1]:
        return f"stride {' or '.join(map(str, strides))}"
    if problem.r != problem.s or problem.pad != (problem.r // 2, problem.r // 2):
        return "square filters with half of them as padding"
    if problem.r not in FILTERS or problem.c > MOST_CHANNELS:
        return f"filters of 3, 5 or 7 and up to {MOST_CHANNELS} channels"
    return "k must be a multiple of 8" if problem.k % 8 else None


def widest(elements: int) -> int:
    """The elements of an access to rows of the image."""
    return 8 if elements % 8 == 0 else 2


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    assert isinstance(problem, Conv2d | Stem)
    tiles = ceil(problem.p / int(config["rows"]))
    return [{"walk": walk} for walk in _WALKS if walk == 1 or walk < 2 * tiles]


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Cycles by a crude model: waves of blocks that share a processor, or wait alone, after reading weights."""
    assert isinstance(problem, Conv2d | Stem)
    x = _shape(config)
    by_shared = arch.sm_shared // (x.shared_bytes + arch.reserved_shared)
    resident = max(1, min(by_shared, cuda_shared.REGISTERS // (x.registers * x.threads), arch.sm_threads // x.threads))
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


def _label(config: Config) -> str:
    x = _shape(config)
    return f"{config['instruction']} {x.rows}x{x.tile_q}x{x.tile_k} together {x.together} s{x.stages} r{x.resident}"


def family(
    name: str,
    operator: type[Conv2d] | type[Stem],
    more: tuple[Parameter, ...],
    supports: Callable[[Problem], str | None],
    asked: Callable[[Problem], Mapping[str, int]],
) -> Family:
    """A family with parameters of its own. asked: (problem) -> the values of parameters that it decides."""

    def values(
        parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
    ) -> tuple[Value, ...]:
        if not isinstance(problem, Conv2d | Stem):
            return parameter.values
        if parameter.name == "tile_k" and problem.k <= 32:
            return (32,)
        decided = asked(problem)
        return (decided[parameter.name],) if parameter.name in decided else parameter.values

    def fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
        assert isinstance(problem, Conv2d | Stem)
        for parameter, value in asked(problem).items():
            if config[parameter] != value:
                return f"it asks for {parameter} {value}"
        return "half of the channels would be none" if problem.k <= 32 < int(config["tile_k"]) else None

    def context(config: Config, arch: Architecture, dtype: str) -> dict[str, object]:
        x = _shape(config)
        derived = {"warp_k": x.warp_k, "slices": x.slices, "threads": x.threads, "type": dtype}
        return {**config, **derived, "interleaved": x.interleaved, "stride": x.stride, "pool": x.pool}

    return Family(
        name=name,
        operator=operator,
        kind=DEVICE_IMAGE,
        template="cuda/stem.cu.j2",
        architectures=cuda_shared.MMA_ARCHITECTURES,
        dtypes=("f16", "bf16"),
        parameters=(
            Parameter("instruction", ("mma", "wgmma"), "tensor cores' instruction; wgmma on Hopper alone"),
            Parameter("filter", FILTERS, "side of the filter"),
            Parameter("channels", tuple(range(1, MOST_CHANNELS + 1)), "input channels"),
            *more,
            Parameter("access", (2, 8), "elements of a row a load: the most that its length allows"),
            Parameter("tile_k", (32, 64), "output channels a block"),
            Parameter("strips", (2, 4, 8), "strips of 16 pixels of the convolution side by side"),
            Parameter("rows", (2, 4, 8), "output rows a tile"),
            Parameter("together", (1, 2), "rows of the convolution at a time"),
            Parameter("stages", (1, 2), "tiles in shared memory"),
            Parameter("resident", (1, 2, 3), "blocks that a processor must have registers for"),
        ),
        launch_parameters=(Parameter("walk", _WALKS, "tiles below each other a block"),),
        legal=_legal,
        values=values,
        supports=supports,
        fits=fits,
        launches=_launches,
        cost=_cost,
        context=context,
        weight_layouts=lambda config: {"weight": "krsc"} if _shape(config).interleaved else {},
        compile_seconds=(1.2, 1.5),
        label=_label,
    )
