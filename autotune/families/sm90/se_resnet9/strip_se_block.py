"""A network's first layer and the residual block behind it in one kernel for Hopper, by strips; fp16 and bf16.

The products are transposed, so that channels are rows:
templates/sm90/se_resnet9/strip/strip_se_block.cuh says what that saves.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.core import MAX_PROCESSORS, Architecture, ceil_div, round_up
from autotune.families.base import CHANNELS_LAST, Config, Launch, Parameter, Value
from autotune.families.rules import Rules, first_unmet, require
from autotune.families.se_resnet9.with_stem import IMAGE_CHANNELS, image_rules
from autotune.families.sm90.hopper_family import hopper_context, hopper_family
from autotune.families.sm90.rates import LOADED_BYTES_A_CYCLE
from autotune.ir import Epilogue, StemBlock, StemSeBlock, StemSeBlockPool

_CHANNELS = 64  # rows of a product
_HEIGHTS, _WIDTHS = (8, 16), (8, 16, 32)
_MAX_PIXELS = 256  # more would spill: a thread keeps sums and the identity
_MAX_POOLED_WIDTH = 16  # with more strips, the warps that pool have too few registers
_MAX_HIDDEN = 32
_FILTER_BYTES = 18 * 8192  # shared memory of both filters: 18 taps of 64 x 64 channels
_IMAGE_LATENCY = 1500  # cycles of an image beside its products: an estimate for an H200


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    height, width = int(config["height"]), int(config["width"])

    def rules() -> Rules:
        yield require(
            epilogue.anchors == StemBlock.anchors,
            f"the epilogue must have the steps {', '.join(StemBlock.anchors)}, in order",
        )
        tensors = any(argument.kind in ("tensor", "output") for argument in epilogue.arguments)
        yield require(not tensors, "steps must not read or write tensors: a thread has only two channels")
        yield require(height * width <= _MAX_PIXELS, f"height times width must be at most {_MAX_PIXELS}")
        yield require(
            not config.get("pool", 0) or width <= _MAX_POOLED_WIDTH,
            f"width must be at most {_MAX_POOLED_WIDTH} with a pool",
        )

    return first_unmet(rules())


def _why_unsupported(problem: StemBlock) -> str | None:
    return first_unmet(_problem_rules(problem))


def _problem_rules(problem: StemBlock) -> Rules:
    behind = problem.behind
    yield from image_rules(problem)
    yield require(behind.c == _CHANNELS, f"k must be {_CHANNELS}: all channels are the rows of a product")
    yield require(
        behind.h in _HEIGHTS and behind.w in _WIDTHS,
        "images behind the stem must be 8 or 16 high, and 8, 16 or 32 wide",
    )
    yield require(
        problem.hidden % 4 == 0 and problem.hidden <= _MAX_HIDDEN,
        f"hidden must be a multiple of 4, at most {_MAX_HIDDEN}",
    )
    yield require(problem.n * problem.h * problem.w < 2**31, "tensors must have fewer than 2^31 pixels")
    yield require(
        not _pool(problem) or behind.w <= _MAX_POOLED_WIDTH,
        f"images behind the stem must be at most {_MAX_POOLED_WIDTH} wide with a pool",
    )


def _pool(problem: StemBlock) -> int:
    return int(isinstance(problem, StemSeBlockPool))


def _candidate_values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: StemBlock | None
) -> Sequence[Value]:
    if problem:
        behind = problem.behind
        fixed = {"height": behind.h, "width": behind.w, "image": problem.c, "pool": _pool(problem)}
        if parameter.name in fixed:
            return (fixed[parameter.name],)
    return parameter.values


def _why_unfit(problem: StemBlock, config: Config, arch: Architecture) -> str | None:
    behind, shared = problem.behind, _shared_bytes(problem)

    def rules() -> Rules:
        yield require(
            (config["height"], config["width"], config["image"]) == (behind.h, behind.w, problem.c),
            f"it is for images of {config['image']} channels, {config['height']} x {config['width']} behind the stem; "
            f"the problem's have {problem.c}, {behind.h} x {behind.w}",
        )
        yield require(
            config.get("pool", 0) == _pool(problem), f"pool must be {_pool(problem)}; it is {config.get('pool', 0)}"
        )
        yield require(
            shared <= arch.block_shared,
            f"a block must fit {arch.block_shared} bytes of shared memory; it takes {shared}",
        )

    return first_unmet(rules())


def _shared_bytes(problem: StemBlock) -> int:
    """Return the shared memory of a block: filters, the padded image, its patches, the stem, gates, barriers."""
    behind = problem.behind
    patch = round_up((behind.h + 2) * (behind.w + 2) * 128, 256)
    lines, stem = problem.c * behind.h * behind.w * 32, problem.c * 2048
    gates = behind.w // 8 * 256 + problem.hidden * 260 + 256
    return 1024 + _FILTER_BYTES + patch + lines + stem + gates + 8 * 23


def _launches(problem: StemBlock, config: Config, arch: Architecture) -> list[Launch]:
    """Return the launch values: a block for each image, or as many blocks as SMs, which load the filters once.

    There are none if a cluster has more blocks than there are images.
    """
    cluster = int(config["cluster"])
    if problem.n < cluster:
        return []
    room = arch.processors_for(cluster)
    grids = (0,) if problem.n <= room else (room, 0)
    return [{"grid": grid, "early_taps": taps, CHANNELS_LAST.name: 0} for grid in grids for taps in (9, 0, 18)]


def _cost(problem: StemBlock, config: Config, arch: Architecture) -> float:
    """Estimate cycles: the filters' loads, then rounds of images."""
    cluster = int(config["cluster"])
    rounds = ceil_div(problem.n, arch.processors_for(cluster))
    arithmetic = 2 * 9 * problem.behind.h * problem.behind.w * _CHANNELS**2 / arch.wgmma_rate
    return _FILTER_BYTES / 2 / cluster / LOADED_BYTES_A_CYCLE + rounds * (arithmetic + _IMAGE_LATENCY)


def _context(config: Config, arch: Architecture, dtype: str) -> dict[str, object]:
    return {"pool": 0, **hopper_context(config, arch, dtype)}  # kernels of older databases have no `pool`


def _label(config: Config) -> str:
    shared = f" c{config['cluster']}" if config["cluster"] != 1 else ""
    return f"strips{shared}{' pool' if config.get('pool', 0) else ''}"


FAMILY = hopper_family(
    "sm90_strip_se_block",
    (StemSeBlock, StemSeBlockPool),
    template="sm90/se_resnet9/strip/strip_se_block.cu.j2",
    parameters=(
        Parameter("height", _HEIGHTS, "lines of the image behind the stem"),
        Parameter("width", _WIDTHS, "its columns; eight of them are a warpgroup's strip"),
        Parameter("image", IMAGE_CHANNELS, "channels of the network's image"),
        Parameter("cluster", (1, 2, 4), "blocks that share their loads of the filters"),
        Parameter("pool", (0, 1), "whether a pool of the image is its second output"),
    ),
    launch_parameters=(
        Parameter("grid", tuple(range(MAX_PROCESSORS + 1)), "most blocks: 0 gives each tile a block of its own"),
        Parameter("early_taps", (0, 9, 18), "taps of the filters that are loaded before the image, of 18"),
        CHANNELS_LAST,
    ),
    why_illegal=_why_illegal,
    candidate_values=_candidate_values,
    why_unsupported=_why_unsupported,
    why_unfit=_why_unfit,
    launches=_launches,
    cost=_cost,
    context=_context,
    label=_label,
    weight_layouts={"weight1": "krsc", "weight2": "krsc"},
)
