"""3x3 convolution of small images for Hopper, whose pixels are loaded once for all taps; fp16 and bf16, NHWC.

Plain, with a folded squeeze-and-excitation, and with a skip connection's projection behind that. A tile is 64 pixels of
whole images. See templates/sm90/small_image/conv2d.cuh.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.core import Architecture, ceil_div, round_up
from autotune.families import se_gate
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter, Value
from autotune.families.sm90.conv2d_launches import columns_fit
from autotune.families.sm90.se_resnet9.se_block import LOADED_BYTES_A_CYCLE
from autotune.ir import MAP_ELEMENTS, Conv2d, Conv2dFoldedSe, Conv2dSeSkip, Epilogue, FoldedSe, Problem

_ROWS, _CHUNK, _TAPS = 64, 64, 9
_PLANE_BYTES = _ROWS * _CHUNK * 2
_GROUPS = 2
_MOST_SUMS = 96  # of a thread, so that the rest finds registers
_MOST_SLOTS = 16  # of a warpgroup

_Solved = Conv2d | FoldedSe


@dataclass(frozen=True)
class _Shape:
    """A config with its names spelt out."""

    n: int
    stride: int
    peers: int
    hidden: int

    @property
    def columns(self) -> int:
        """Of a tile's products."""
        return self.n + self.hidden

    @property
    def owners(self) -> int:
        """Warpgroups that finish a part of a tile's channels."""
        return _GROUPS if self.n % 64 == 0 else 1

    @property
    def own(self) -> int:
        """Channels of each."""
        return self.n // self.owners

    @property
    def chunk_bytes(self) -> int:
        """Shared memory of 64 channels of a tile's input."""
        return self.stride**2 * _PLANE_BYTES

    @property
    def weight_bytes(self) -> int:
        """Shared memory of a step's weights."""
        return self.columns * _CHUNK * 2


def _shape(config: Config) -> _Shape:
    return _Shape(*(int(config[name]) for name in ("tile_n", "stride", "peers", "hidden")))


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    x = _shape(config)
    return next((why for broken, why in _rules(x, str(config["image"]), epilogue) if broken), None)


def _rules(x: _Shape, image: str, epilogue: Epilogue) -> Iterator[tuple[bool, str]]:
    yield (x.hidden > 0) != ("gate" in epilogue.names), "hidden values are a gate's"
    if x.hidden:
        yield from se_gate.folded_legal(epilogue)
    yield x.hidden == 0 and image != "warps", "images differ only in how a gate adds up their pixels"
    yield x.own // x.peers % 8 > 0, "each of the peers loads a multiple of eight rows of weights"
    yield x.columns // 2 > _MOST_SUMS, "the accumulators would spill"


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, _Solved)
    return next((why for beyond, why in _limits(problem) if beyond), None)


def _limits(problem: _Solved) -> Iterator[tuple[bool, str]]:
    pixels, (down, across) = problem.p * problem.q, problem.stride
    yield (problem.r, problem.s) != (3, 3) or problem.pad != (1, 1) or problem.dilation != (1, 1), "3x3, padding 1"
    yield down != across or down > 2, "stride 1 or 2"
    yield (problem.h, problem.w) != (down * problem.p, across * problem.q), "images that the stride divides"
    yield pixels > _ROWS or _ROWS % pixels > 0, "outputs of up to 64 pixels, a divisor of 64"
    yield problem.groups > 1, "groups"
    yield problem.c % 8 > 0 or problem.k % 8 > 0, "c and k must be multiples of 8"
    yield problem.n * pixels >= 2**31, "tensors of up to 2^31 pixels"
    if isinstance(problem, FoldedSe):
        yield from se_gate.limits(problem)
    if isinstance(problem, Conv2dSeSkip):
        whole = problem.skip_groups == 1 and problem.skip_c % 8 == 0
        yield not whole, "a projection without groups, of a multiple of 8 channels"


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, _Solved)
    x = _shape(config)
    if x.stride != problem.stride[0]:
        return f"its stride is {x.stride}"
    if isinstance(problem, FoldedSe) and (why := se_gate.misfit(problem, config)):
        return why
    if not columns_fit(problem, x.n):
        return "half of a tile would be empty"
    return "there are fewer tiles than a cluster has" if x.peers > _tiles(problem) else None


def _tiles(problem: _Solved) -> int:
    return ceil_div(problem.n * problem.p * problem.q, _ROWS)


def _chunks(problem: _Solved) -> tuple[int, int]:
    """Of 64 channels: of the input, and of what a projection reads."""
    return ceil_div(problem.c, _CHUNK), ceil_div(problem.skip_c, _CHUNK) if isinstance(problem, Conv2dSeSkip) else 0


def _fixed_bytes(problem: _Solved, x: _Shape) -> int:
    """Shared memory of all but the rings: images, gates, the sums that warpgroups leave to each other, barriers."""
    chunks, skips = _chunks(problem)
    gates = x.owners * se_gate.folded_bytes(_ROWS, x.own, x.hidden, 4) if x.hidden else 0
    sums = x.owners * _ROWS * (x.own + x.hidden) * 4
    return 1024 + chunks * (x.chunk_bytes + 8) + skips * (_PLANE_BYTES + 8) + 128 + gates + sums


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    """As many buffers for weights as there is room for, or as leave room for another block."""
    assert isinstance(problem, _Solved)
    x = _shape(config)
    a_slot = _GROUPS * (x.weight_bytes + 16)
    rooms = (arch.block_shared, arch.sm_shared // 2 - arch.reserved_shared)
    counts = [min((room - _fixed_bytes(problem, x)) // a_slot, _MOST_SLOTS) for room in rooms]
    return [{"weight_slots": count} for i, count in enumerate(counts) if count >= 2 and count not in counts[:i]]


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Cycles by a crude model: rounds of tiles, each bound by products or by loads."""
    assert isinstance(problem, _Solved)
    x, (chunks, skips) = _shape(config), _chunks(problem)
    tiles = round_up(_tiles(problem), x.peers) * ceil_div(problem.k, x.n)
    rounds = ceil_div(tiles, arch.processors_for(x.peers))
    steps = _TAPS * chunks
    products = steps * max(2 * x.columns, 150)
    loaded = steps * x.weight_bytes + chunks * x.chunk_bytes + skips * (_PLANE_BYTES + x.n * _CHUNK * 2)
    return rounds * (max(products, loaded / LOADED_BYTES_A_CYCLE) + 4000 + 400 * skips)


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> Sequence[Value]:
    if problem is None:
        return parameter.values
    assert isinstance(problem, _Solved)
    own: dict[str, Value] = {"image": "warps", "hidden": 0, "stride": problem.stride[0]}
    if isinstance(problem, FoldedSe):
        own |= {"image": se_gate.image(problem), "hidden": se_gate.columns(problem.hidden)}
    return [own[parameter.name]] if parameter.name in own else parameter.values


def _label(config: Config) -> str:
    x = _shape(config)
    shared, hidden = f" c{x.peers}" if x.peers > 1 else "", f" hidden {x.hidden}" if x.hidden else ""
    return f"{_ROWS}x{x.n} stride {x.stride}{shared}{hidden}"


FAMILY = Family(
    name="sm90_image_conv2d",
    operator=(Conv2d, Conv2dFoldedSe, Conv2dSeSkip),
    kind=DEVICE_IMAGE,
    template="sm90/small_image/conv2d.cu.j2",
    architectures=("sm90",),
    dtypes=("f16", "bf16"),
    parameters=(
        Parameter("image", ("warps", "rows"), "for a gate: of a multiple of 16 pixels, or 1, 4 or 8 of a warp's rows"),
        Parameter(
            "hidden", (0, *se_gate.HIDDEN), "hidden values of a tile's products, beside its channels; 0: no gate"
        ),
        Parameter("stride", (1, 2), "of the convolution"),
        Parameter("tile_n", (32, 64, 128), "output channels of a tile"),
        Parameter("peers", (1, 2, 4), "tiles of a cluster, which share the loads of the weights"),
    ),
    launch_parameters=(
        Parameter("weight_slots", tuple(range(2, _MOST_SLOTS + 1)), "buffers for weights of a warpgroup"),
    ),
    legal=_legal,
    values=_values,
    supports=_supports,
    fits=_fits,
    launches=_launches,
    cost=_cost,
    context=lambda config, arch, dtype: {**config, "type": dtype, "map_element": MAP_ELEMENTS[dtype]},
    label=_label,
    weight_layouts=lambda _: {"weight": "wgmma", "w1": "krsc", "projection": "wgmma"},
    compile_seconds=(1.0, 1.2),
)
