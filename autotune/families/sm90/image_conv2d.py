"""3x3 convolution of small images for Hopper: templates/sm90/small_image/conv2d.cuh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.core import Architecture, ceil_div
from autotune.families import se_gate
from autotune.families.base import Config, Launch, Parameter, Rules, Value, require, require_no_overflow
from autotune.families.sm90.common import LOADED_BYTES_A_CYCLE, HopperFamily
from autotune.families.sm90.conv2d_launches import columns_fit
from autotune.ir import BYTE_FORMATS, DTYPES, Epilogue
from autotune.ir.operators import Conv2d, Conv2dFoldedSe, Conv2dSeSkip, FoldedSe

_ROWS, _TAPS = 64, 9
_ROW_BYTES = 128  # of a pixel's or an output channel's step: 64 channels, or 128 of bytes
_PLANE_BYTES = _ROWS * _ROW_BYTES
_GROUPS = 2  # warpgroups that multiply
_MAX_SUMS = 96  # registers of a thread; others hold operands and the gate's values
_MAX_SLOTS = 16  # buffers for weights of a warpgroup

# For the cost, in cycles: estimates for an H200, not fitted.
_MIN_STEP_CYCLES, _TILE_CYCLES, _SKIP_CYCLES = 150, 4000, 400  # of a step, a tile, and a chunk of a projection
_PROMOTION_WAIT = 60  # from the last product to the first addition

Solved = Conv2d | FoldedSe


@dataclass(frozen=True)
class ImageConvShape:
    """A config by name.

    Attributes:
        image: How a gate adds up an image's pixels, as se_gate.image_kind has it.
        peers: Tiles of a cluster.
        hidden: Columns of a tile's products for hidden values.
        promote: A warpgroup's steps after which float32 registers take over the sums of e4m3 products; 0: never.
    """

    image: str
    n: int
    stride: int
    peers: int
    hidden: int
    promote: int

    @classmethod
    def from_config(cls, config: Config) -> ImageConvShape:
        """Return the shape of a config."""
        return cls(
            image=str(config["image"]),
            n=int(config["tile_n"]),
            stride=int(config["stride"]),
            peers=int(config["peers"]),
            hidden=int(config["hidden"]),
            promote=int(config.get("promote", 0)),
        )

    @property
    def columns(self) -> int:
        """Columns of a tile's products."""
        return self.n + self.hidden

    @property
    def sums(self) -> int:
        """Registers of a thread for sums: two for each of them if float32 registers take over."""
        return self.columns // 2 * (2 if self.promote else 1)

    @property
    def owners(self) -> int:
        """Warpgroups that finish a part of a tile's channels."""
        return _GROUPS if self.n % 64 == 0 else 1

    @property
    def own(self) -> int:
        """Channels of each owner."""
        return self.n // self.owners

    @property
    def chunk_bytes(self) -> int:
        """Shared memory of a step's channels of a tile's input."""
        return self.stride**2 * _PLANE_BYTES

    @property
    def weight_bytes(self) -> int:
        """Shared memory of a step's weights."""
        return self.columns * _ROW_BYTES


def _tiles(problem: Solved) -> int:
    """Return the tiles of pixels, of as many whole images as fit; one image where none does."""
    return ceil_div(problem.n, max(1, _ROWS // (problem.p * problem.q)))


def _chunks(problem: Solved) -> tuple[int, int]:
    """Return the steps' chunks of channels of the input, and of a projection's input."""
    chunk = _ROW_BYTES // DTYPES[problem.dtype].itemsize
    return ceil_div(problem.c, chunk), ceil_div(problem.skip_c, chunk) if isinstance(problem, Conv2dSeSkip) else 0


def _fixed_bytes(problem: Solved, x: ImageConvShape) -> int:
    """Return the shared memory beside the rings: images, gates, sums that warpgroups exchange, barriers."""
    chunks, skips = _chunks(problem)
    a_gate = se_gate.folded_shared_bytes(rows=_ROWS, columns=x.own, hidden=x.hidden, warps=4) if x.hidden else 0
    gates = x.owners * a_gate
    sums = x.owners * _ROWS * (x.own + x.hidden) * 4
    return 1024 + chunks * (x.chunk_bytes + 8) + skips * (_PLANE_BYTES + 8) + 128 + gates + sums


class Sm90ImageConv2d(HopperFamily[Solved]):
    """3x3 convolution of small images for Hopper, which loads pixels once for all taps; fp16, bf16 and s8, NHWC.

    It solves plain convolutions, those with a folded squeeze-and-excitation, and those with a skip connection's
    projection behind it; of signed bytes, which have int32 sums, only plain ones. A tile is 64 pixels of whole images.
    e4m3.py has the kernels for e4m3.
    """

    name = "sm90_image_conv2d"
    operator: type[Solved] | tuple[type[Solved], ...] = (Conv2d, Conv2dFoldedSe, Conv2dSeSkip)
    template = "sm90/small_image/conv2d.cu.j2"
    parameters: tuple[Parameter, ...] = (
        Parameter("image", ("warps", "rows"), "for a gate: of a multiple of 16 pixels, or 1, 4 or 8 of a warp's rows"),
        Parameter(
            "hidden", (0, *se_gate.HIDDEN), "hidden values of a tile's products, beside its channels; 0: no gate"
        ),
        Parameter("stride", (1, 2), "of the convolution"),
        Parameter("tile_n", (32, 64, 128), "output channels of a tile"),
        Parameter("peers", (1, 2, 4), "tiles of a cluster, which share the loads of the weights"),
    )
    launch_parameters = (
        Parameter("weight_slots", tuple(range(2, _MAX_SLOTS + 1)), "buffers for weights of a warpgroup"),
    )
    dtypes: tuple[str, ...] = ("f16", "bf16", "s8")

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        x = ImageConvShape.from_config(config)
        yield require(dtype not in BYTE_FORMATS or "gate" not in epilogue.names, "gates are not computed from bytes")
        yield require((x.hidden > 0) == ("gate" in epilogue.names), "hidden must be more than 0 with a gate, else 0")
        if x.hidden:
            yield from se_gate.folded_epilogue_rules(epilogue)
        yield require(x.hidden or x.image == "warps", "image must be warps without a gate")
        yield require(
            x.own // x.peers % 8 == 0, f"each of the peers must load a multiple of 8 rows of weights of {x.own}"
        )
        yield require(x.sums <= _MAX_SUMS, f"a thread must have at most {_MAX_SUMS} sums, or spills; it has {x.sums}")

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Solved | None
    ) -> Sequence[Value]:
        if problem is None:
            return parameter.values
        only: dict[str, Value] = {"image": "warps", "hidden": 0, "stride": problem.stride[0]}
        if isinstance(problem, FoldedSe):
            only |= {"image": se_gate.image_kind(problem), "hidden": se_gate.hidden_columns(problem.hidden)}
        return [only[parameter.name]] if parameter.name in only else parameter.values

    def unsupported(self, problem: Solved) -> Rules:
        pixels, (down, across) = problem.p * problem.q, problem.stride
        window = (problem.r, problem.s) == (3, 3) and problem.pad == (1, 1) and problem.dilation == (1, 1)
        yield require(window, "the filter must be 3x3 with padding 1 and dilation 1")
        yield require(down == across and down <= 2, "stride must be 1 or 2, the same along both axes")
        yield require(
            (problem.h, problem.w) == (down * problem.p, across * problem.q), "h and w must be multiples of the stride"
        )
        in_bytes = problem.dtype in BYTE_FORMATS
        yield require(pixels <= _ROWS, f"an output image must have at most {_ROWS} pixels; it has {pixels}")
        yield require(in_bytes or _ROWS % pixels == 0, f"the pixels of an output image must divide {_ROWS}")
        yield require(problem.groups == 1, "groups must be 1")
        granule = 16 // DTYPES[problem.dtype].itemsize  # TMA's strides are multiples of 16 bytes
        words = "c and k must be multiples of 8" if granule == 8 else f"c must be a multiple of {granule}, and k of 8"
        yield require(problem.c % granule == 0 and problem.k % 8 == 0, words)
        yield require_no_overflow(problem.dtype, _TAPS * problem.c)
        yield require(problem.n * pixels < 2**31, "the output must have fewer than 2^31 pixels")
        if isinstance(problem, FoldedSe):
            yield require(not in_bytes, "gates are not computed from bytes")
            yield from se_gate.problem_rules(problem)
        if isinstance(problem, Conv2dSeSkip):
            yield require(
                problem.skip_groups == 1 and problem.skip_c % 8 == 0,
                "the projection must have no groups, and a multiple of 8 input channels",
            )

    def unfit(self, problem: Solved, config: Config, arch: Architecture) -> Rules:
        x = ImageConvShape.from_config(config)
        yield require(x.stride == problem.stride[0], f"its stride is {x.stride}; the problem's is {problem.stride[0]}")
        if isinstance(problem, FoldedSe):
            yield from se_gate.folded_fit_rules(problem, config)
        yield require(columns_fit(problem, x.n), f"tile_n {x.n} would leave half of a tile empty")
        yield require(x.peers <= _tiles(problem), f"peers must be at most the number of tiles, {_tiles(problem)}")

    def launches(self, problem: Solved, config: Config, arch: Architecture) -> list[Launch]:
        """Return as many buffers for weights as fit, and as many as leave room for a second block."""
        x = ImageConvShape.from_config(config)
        a_slot = _GROUPS * (x.weight_bytes + 16)
        rooms = (arch.block_shared, arch.sm_shared // 2 - arch.reserved_shared)
        counts = [min((room - _fixed_bytes(problem, x)) // a_slot, _MAX_SLOTS) for room in rooms]
        return [{"weight_slots": count} for i, count in enumerate(counts) if count >= 2 and count not in counts[:i]]

    def cost(self, problem: Solved, config: Config, arch: Architecture) -> float:
        """Estimate cycles: rounds of tiles, each bound by products (two cycles a column) or by loads.

        While a warpgroup promotes its sums, the other one multiplies.
        """
        x, (chunks, skips) = ImageConvShape.from_config(config), _chunks(problem)
        tiles = ceil_div(_tiles(problem), x.peers) * x.peers * ceil_div(problem.k, x.n)
        rounds = ceil_div(tiles, arch.processors_for(x.peers))
        steps = _TAPS * chunks
        promotion = (_PROMOTION_WAIT + x.sums / 2) / x.promote / _GROUPS if x.promote else 0.0
        products = steps * (max(2 * x.columns, _MIN_STEP_CYCLES) + promotion)
        loaded = steps * x.weight_bytes + chunks * x.chunk_bytes + skips * (_PLANE_BYTES + x.n * _ROW_BYTES)
        return rounds * (max(products, loaded / LOADED_BYTES_A_CYCLE) + _TILE_CYCLES + _SKIP_CYCLES * skips)

    def label(self, config: Config) -> str:
        x = ImageConvShape.from_config(config)
        shared, hidden = f" c{x.peers}" if x.peers > 1 else "", f" hidden {x.hidden}" if x.hidden else ""
        return f"{_ROWS}x{x.n} stride {x.stride}{shared}{hidden}"

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight": "wgmma", "w1": "krsc", "projection": "wgmma"}


FAMILIES = (Sm90ImageConv2d(),)
