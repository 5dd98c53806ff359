"""A network's first layer and the residual block behind it in one kernel for Hopper, by strips; fp16 and bf16.

The products are turned round: templates/sm90/se_resnet9/strip/strip_se_block.cuh says how that works and what it
saves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.core import Architecture, ceil_div, round_up
from autotune.families.base import CHANNELS_LAST, DEVICE_IMAGE, Config, Family, Launch, Parameter, Value
from autotune.families.sm90.se_resnet9 import se_block
from autotune.ir import MAP_ELEMENTS, Epilogue, Problem, StemBlock, StemSeBlock, StemSeBlockPool

_CHANNELS = 64  # rows of a product
_PATCH = 4
_HEIGHTS, _WIDTHS = (8, 16), (8, 16, 32)
_IMAGES = (1, 2, 3, 4)
_POOLED = 16  # beside more strips, those who pool have too few registers


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    if epilogue.anchors != StemBlock.anchors:
        return "an epilogue without the places of a stem and a block"
    if any(argument.kind in ("tensor", "output") for argument in epilogue.arguments):
        return "steps that read or write tensors: a thread has two channels"
    if int(config["height"]) * int(config["width"]) > 256:
        return "images of up to 256 pixels: sums and the identity would spill"
    if config.get("pool", 0) and int(config["width"]) > _POOLED:
        return f"up to {_POOLED} pixels wide, with a pool"
    return None


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, StemBlock)
    return next((why for beyond, why in _limits(problem) if beyond), None)


def _limits(problem: StemBlock) -> Iterator[tuple[bool, str]]:
    behind = problem.behind
    yield problem.block != _PATCH, f"block must be {_PATCH}"
    yield problem.c not in _IMAGES, f"images of {', '.join(map(str, _IMAGES))} channels"
    yield behind.c != _CHANNELS, f"k must be {_CHANNELS}: all channels are the rows of a product"
    yield behind.h not in _HEIGHTS or behind.w not in _WIDTHS, "behind the stem 8 or 16 lines of 8, 16 or 32 pixels"
    yield problem.hidden % 4 > 0 or problem.hidden > 32, "hidden must be a multiple of 4, at most 32"
    yield problem.n * problem.h * problem.w >= 2**31, "tensors of up to 2^31 pixels"
    yield _pool(problem) == 1 and behind.w > _POOLED, f"up to {_POOLED} pixels wide, with a pool"


def _pool(problem: StemBlock) -> int:
    return int(isinstance(problem, StemSeBlockPool))


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> Sequence[Value]:
    if isinstance(problem, StemBlock):
        behind = problem.behind
        fixed = {"height": behind.h, "width": behind.w, "image": problem.c, "pool": _pool(problem)}
        if parameter.name in fixed:
            return (fixed[parameter.name],)
    return parameter.values


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, StemBlock)
    behind = problem.behind
    if (config["height"], config["width"], config["image"]) != (behind.h, behind.w, problem.c):
        return f"it has images of {config['image']} channels, {config['height']} x {config['width']} behind the stem"
    if config.get("pool", 0) != _pool(problem):
        return "it has no pool" if _pool(problem) else "it has a pool"
    patch = round_up((behind.h + 2) * (behind.w + 2) * 128, 256)
    lines, stem = problem.c * behind.h * behind.w * 32, problem.c * 2048
    gates = behind.w // 8 * 256 + problem.hidden * 260 + 256
    if 1024 + 18 * 8192 + patch + lines + stem + gates + 8 * 23 > arch.block_shared:
        return "shared memory"
    return None


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    """A block for every image, or as many blocks as there are multiprocessors, which load the filters once."""
    assert isinstance(problem, StemBlock)
    found = se_block.launches_of(problem.n, int(config["cluster"]), arch)
    return [{**launch, CHANNELS_LAST.name: 0} for launch in found]


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Cycles by a crude model: the filters' loads, then rounds of images."""
    assert isinstance(problem, StemBlock)
    cluster = int(config["cluster"])
    rounds = ceil_div(problem.n, arch.processors_for(cluster))
    arithmetic = 2 * 9 * problem.behind.h * problem.behind.w * _CHANNELS**2 / se_block.PRODUCTS_A_CYCLE
    return 18 * 8192 / 2 / cluster / se_block.LOADED_BYTES_A_CYCLE + rounds * (arithmetic + 1500)


def _context(config: Config, arch: Architecture, dtype: str) -> dict[str, object]:
    return {"pool": 0, **config, "type": dtype, "map_element": MAP_ELEMENTS[dtype]}


def _label(config: Config) -> str:
    shared = f" c{config['cluster']}" if config["cluster"] != 1 else ""
    return f"strips{shared}{' pool' if config.get('pool', 0) else ''}"


FAMILY = Family(
    name="sm90_strip_se_block",
    operator=(StemSeBlock, StemSeBlockPool),
    kind=DEVICE_IMAGE,
    template="sm90/se_resnet9/strip/strip_se_block.cu.j2",
    architectures=("sm90",),
    dtypes=("f16", "bf16"),
    parameters=(
        Parameter("height", _HEIGHTS, "lines of the image behind the stem"),
        Parameter("width", _WIDTHS, "its columns; eight of them are a warpgroup's strip"),
        Parameter("image", _IMAGES, "channels of the network's image"),
        Parameter("cluster", (1, 2, 4), "blocks that share their loads of the filters"),
        Parameter("pool", (0, 1), "whether a pool of the image is its second output"),
    ),
    launch_parameters=(*se_block.FAMILY.launch_parameters, CHANNELS_LAST),
    legal=_legal,
    values=_values,
    supports=_supports,
    fits=_fits,
    launches=_launches,
    cost=_cost,
    context=_context,
    label=_label,
    weight_layouts=lambda _: {"weight1": "krsc", "weight2": "krsc"},
    compile_seconds=(1.0, 1.2),
)
