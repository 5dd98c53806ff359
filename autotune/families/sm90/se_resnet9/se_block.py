"""A residual block with squeeze-and-excitation in one kernel for Hopper; fp16 and bf16 with float32 sums, NHWC.

An SM has whole images and both filters in its shared memory: see templates/sm90/se_resnet9/block/se_block.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.core import MAX_PROCESSORS, Architecture, ceil_div
from autotune.families import se_gate
from autotune.families.base import Config, Launch, Parameter, Value
from autotune.families.rules import Rules, first_unmet, require
from autotune.families.sm90.hopper_family import hopper_context, hopper_family
from autotune.families.sm90.rates import LOADED_BYTES_A_CYCLE
from autotune.ir import Epilogue, SeBlock

_CHANNELS = (32, 64)
_MAX_SUMS = 64  # registers of a thread; others hold values that are loaded early for the sums
_MAX_HIDDEN = 64
_TILE_LATENCY = 4000  # cycles of a tile, divided by its warpgroups: an estimate for an H200


@dataclass(frozen=True)
class SeBlockShape:
    """A config by name; groups: warpgroups that multiply."""

    m: int
    pixels: int  # of an image
    channels: int
    groups: int
    cluster: int

    @classmethod
    def from_config(cls, config: Config) -> SeBlockShape:
        """Return the shape of a config."""
        return cls(
            m=int(config["tile_m"]),
            pixels=int(config["pixels"]),
            channels=int(config["channels"]),
            groups=int(config["groups"]),
            cluster=int(config["cluster"]),
        )

    @property
    def accumulators(self) -> int:
        """Registers of each thread that hold sums."""
        return self.m // self.groups // 64 * self.channels // 2

    @property
    def weight_bytes(self) -> int:
        """Shared memory of both filters."""
        return 2 * 9 * self.channels**2 * 2


def _tiles(problem: SeBlock, x: SeBlockShape) -> int:
    return ceil_div(problem.n * problem.h * problem.w, x.m)


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return first_unmet(_shape_rules(SeBlockShape.from_config(config), epilogue))


def _shape_rules(x: SeBlockShape, epilogue: Epilogue) -> Rules:
    yield require(
        epilogue.anchors == SeBlock.anchors, f"the epilogue must have the steps {', '.join(SeBlock.anchors)}, in order"
    )
    yield from se_gate.epilogue_rules(epilogue)
    yield require(x.m % x.pixels == 0, f"tile_m must be a multiple of the pixels of an image, {x.pixels}")
    yield require(x.m % (64 * x.groups) == 0, "tile_m must be a multiple of 64 rows per warpgroup")
    yield require(x.accumulators <= _MAX_SUMS, f"a thread must have at most {_MAX_SUMS} sums; it has {x.accumulators}")


def _why_unsupported(problem: SeBlock) -> str | None:
    return first_unmet(_problem_rules(problem))


def _problem_rules(problem: SeBlock) -> Rules:
    yield require(
        problem.c in _CHANNELS, f"c must be one of {', '.join(map(str, _CHANNELS))}: both filters stay in shared memory"
    )
    pixels = problem.h * problem.w
    squares = problem.h % 8 == 0 and problem.w % 8 == 0
    yield require(squares and 256 % pixels == 0, "images must have 64, 128 or 256 pixels, in squares of 8 x 8")
    yield require(
        problem.hidden % 4 == 0 and problem.hidden <= _MAX_HIDDEN,
        f"hidden must be a multiple of 4, at most {_MAX_HIDDEN}",
    )
    yield require(problem.n * pixels < 2**31, "tensors must have fewer than 2^31 pixels")


def _candidate_values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: SeBlock | None
) -> Sequence[Value]:
    if problem is None:
        return parameter.values
    pixels = problem.h * problem.w
    match parameter.name:
        case "channels":
            return (problem.c,)
        case "pixels":
            return (pixels,)
        case "tile_m":
            return [m for m in parameter.values if int(m) % pixels == 0 and int(m) < 2 * pixels * problem.n]
    return parameter.values


def _why_unfit(problem: SeBlock, config: Config, arch: Architecture) -> str | None:
    x, pixels = SeBlockShape.from_config(config), problem.h * problem.w
    return require(x.channels == problem.c, f"it has {x.channels} channels; the problem has {problem.c}") or require(
        x.pixels == pixels, f"its images have {x.pixels} pixels; the problem's have {pixels}"
    )


def _launches(problem: SeBlock, config: Config, arch: Architecture) -> list[Launch]:
    x = SeBlockShape.from_config(config)
    return block_launches(_tiles(problem, x), x.cluster, arch)


def block_launches(tiles: int, cluster: int, arch: Architecture) -> list[Launch]:
    """Return the launch values of kernels that keep both filters in shared memory.

    Each tile has its own block, or there are as many blocks as SMs, which load the filters once. There are none if a
    cluster has more blocks than there are tiles.
    """
    if tiles < cluster:
        return []
    room = arch.processors_for(cluster)
    grids = (0,) if tiles <= room else (room, 0)
    return [{"grid": grid, "early_taps": taps} for grid in grids for taps in (9, 0, 18)]


def _cost(problem: SeBlock, config: Config, arch: Architecture) -> float:
    """Estimate cycles: the filters' loads, then rounds of tiles."""
    x = SeBlockShape.from_config(config)
    rounds = ceil_div(_tiles(problem, x), arch.processors_for(x.cluster))
    arithmetic = 2 * 9 * x.m * x.channels**2 / arch.wgmma_rate
    latency = _TILE_LATENCY / x.groups
    return x.weight_bytes / 2 / x.cluster / LOADED_BYTES_A_CYCLE + rounds * (arithmetic + latency)


def _context(config: Config, arch: Architecture, dtype: str) -> dict[str, object]:
    return {**hopper_context(config, arch, dtype), "image": 0}  # no stem


def _label(config: Config) -> str:
    shared = f" c{config['cluster']}" if config["cluster"] != 1 else ""
    return f"{config['tile_m']}x{config['channels']} {config['groups']}wg{shared}"


FAMILY = hopper_family(
    "sm90_se_block",
    SeBlock,
    template="sm90/se_resnet9/block/se_block.cu.j2",
    parameters=(
        Parameter("tile_m", (64, 128, 256), "pixels of a tile of whole images"),
        Parameter("pixels", (64, 128, 256), "pixels of an image"),
        Parameter("channels", _CHANNELS, "channels, in and out"),
        Parameter("groups", (1, 2, 4), "warpgroups that multiply"),
        Parameter("cluster", (1, 2, 4), "blocks that share their loads of the filters"),
    ),
    launch_parameters=(
        Parameter("grid", tuple(range(MAX_PROCESSORS + 1)), "most blocks: 0 gives each tile a block of its own"),
        Parameter("early_taps", (0, 9, 18), "taps of the filters that are loaded before the image, of 18"),
    ),
    why_illegal=_why_illegal,
    candidate_values=_candidate_values,
    why_unsupported=_why_unsupported,
    why_unfit=_why_unfit,
    launches=_launches,
    cost=_cost,
    context=_context,
    label=_label,
    weight_layouts={"weight1": "wgmma", "weight2": "wgmma"},
)
