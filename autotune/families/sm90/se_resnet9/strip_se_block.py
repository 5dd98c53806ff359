"""A network's first layer and residual block for Hopper: templates/sm90/se_resnet9/strip/strip_se_block.cuh."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.core import MAX_PROCESSORS, Architecture, ceil_div, round_up
from autotune.families.base import CHANNELS_LAST, Config, Launch, Parameter, Rules, Value, require
from autotune.families.se_resnet9.common import IMAGE_CHANNELS, image_rules, require_anchors
from autotune.families.sm90.common import LOADED_BYTES_A_CYCLE, HopperFamily
from autotune.ir import Epilogue
from autotune.ir.operators import StemBlock, StemSeBlock, StemSeBlockPool

_CHANNELS = 64  # rows of a product
_HEIGHTS, _WIDTHS = (8, 16), (8, 16, 32)
_MAX_PIXELS = 256  # more would spill: a thread keeps sums and the identity
_MAX_POOLED_WIDTH = 16  # with more strips, the warps that pool have too few registers
_MAX_HIDDEN = 32
_FILTER_BYTES = 18 * 8192  # shared memory of both filters: 18 taps of 64 x 64 channels
_IMAGE_LATENCY = 1500  # cycles of an image beside its products: an estimate for an H200


def _pool(problem: StemBlock) -> int:
    return int(isinstance(problem, StemSeBlockPool))


def _shared_bytes(problem: StemBlock) -> int:
    """Return the shared memory of a block: filters, the padded image, its patches, the stem, gates, barriers."""
    behind = problem.behind
    patch = round_up((behind.h + 2) * (behind.w + 2) * 128, 256)
    lines, stem = problem.c * behind.h * behind.w * 32, problem.c * 2048
    gates = behind.w // 8 * 256 + problem.hidden * 260 + 256
    return 1024 + _FILTER_BYTES + patch + lines + stem + gates + 8 * 23


class Sm90StripSeBlock(HopperFamily[StemBlock]):
    """A network's first layer and the residual block behind it in one kernel for Hopper, by strips; fp16 and bf16.

    The products are transposed, so that channels are rows; the header says what that saves.
    """

    name = "sm90_strip_se_block"
    operator = (StemSeBlock, StemSeBlockPool)
    template = "sm90/se_resnet9/strip/strip_se_block.cu.j2"
    parameters = (
        Parameter("height", _HEIGHTS, "lines of the image behind the stem"),
        Parameter("width", _WIDTHS, "its columns; eight of them are a warpgroup's strip"),
        Parameter("image", IMAGE_CHANNELS, "channels of the network's image"),
        Parameter("cluster", (1, 2, 4), "blocks that share their loads of the filters"),
        Parameter("pool", (0, 1), "whether a pool of the image is its second output"),
    )
    launch_parameters = (
        Parameter("grid", tuple(range(MAX_PROCESSORS + 1)), "most blocks: 0 gives each tile a block of its own"),
        Parameter("early_taps", (0, 9, 18), "taps of the filters that are loaded before the image, of 18"),
        CHANNELS_LAST,
    )

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        height, width = int(config["height"]), int(config["width"])
        yield require_anchors(epilogue, StemBlock)
        tensors = any(argument.kind in ("tensor", "output") for argument in epilogue.arguments)
        yield require(not tensors, "steps must not read or write tensors: a thread has only two channels")
        yield require(height * width <= _MAX_PIXELS, f"height times width must be at most {_MAX_PIXELS}")
        yield require(
            not config.get("pool", 0) or width <= _MAX_POOLED_WIDTH,
            f"width must be at most {_MAX_POOLED_WIDTH} with a pool",
        )

    def unsupported(self, problem: StemBlock) -> Rules:
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

    def decided(self, problem: StemBlock) -> Mapping[str, Value]:
        behind = problem.behind
        return {"height": behind.h, "width": behind.w, "image": problem.c}

    def unfit(self, problem: StemBlock, config: Config, arch: Architecture) -> Rules:
        shared, pool = _shared_bytes(problem), _pool(problem)
        yield from super().unfit(problem, config, arch)
        yield require(config.get("pool", 0) == pool, f"pool must be {pool}; it is {config.get('pool', 0)}")
        yield require(
            shared <= arch.block_shared,
            f"a block must fit {arch.block_shared} bytes of shared memory; it takes {shared}",
        )

    def launches(self, problem: StemBlock, config: Config, arch: Architecture) -> list[Launch]:
        """Return a block for each image, or as many blocks as SMs, which load the filters once.

        There are none if a cluster has more blocks than there are images.
        """
        cluster = int(config["cluster"])
        if problem.n < cluster:
            return []
        room = arch.processors_for(cluster)
        grids = (0,) if problem.n <= room else (room, 0)
        return [{"grid": grid, "early_taps": taps, CHANNELS_LAST.name: 0} for grid in grids for taps in (9, 0, 18)]

    def cost(self, problem: StemBlock, config: Config, arch: Architecture) -> float:
        """Estimate cycles: the filters' loads, then rounds of images."""
        cluster = int(config["cluster"])
        rounds = ceil_div(problem.n, arch.processors_for(cluster))
        arithmetic = 2 * 9 * problem.behind.h * problem.behind.w * _CHANNELS**2 / arch.wgmma_rate
        return _FILTER_BYTES / 2 / cluster / LOADED_BYTES_A_CYCLE + rounds * (arithmetic + _IMAGE_LATENCY)

    def label(self, config: Config) -> str:
        shared = f" c{config['cluster']}" if config["cluster"] != 1 else ""
        return f"strips{shared}{' pool' if config.get('pool', 0) else ''}"

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return {"pool": 0, **super().context(config, arch, dtype)}  # kernels of older databases have no `pool`

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight1": "krsc", "weight2": "krsc"}


FAMILIES = (Sm90StripSeBlock(),)
