"""A residual block that halves its images in one kernel for Hopper; fp16 and bf16 with float32 sums, NHWC.

A cluster has whole images in its shared memory and streams the filters:
templates/sm90/se_resnet9/down/se_down_block.cuh says how.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.core import Architecture, ceil_div
from autotune.families import se_gate
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter, Value
from autotune.families.sm90.se_resnet9.se_block import LOADED_BYTES_A_CYCLE, PRODUCTS_A_CYCLE
from autotune.ir import MAP_ELEMENTS, Epilogue, Problem, SeDownBlock

_CHUNK = 64  # channels that a swizzled row holds
_TILE_ROWS = 64
_TILE_BYTES = _TILE_ROWS * _CHUNK * 2
_SIDES = (4, 8)
_FILLS = (2, 3, 4, 6, 9)  # 9: all taps of 64 channels at once
_OUTPUT = {"out_h": "p", "out_w": "q"}  # parameters -> the problem's sizes
_READ_BYTES_A_CYCLE = 128  # from shared memory, or to it


@dataclass(frozen=True)
class _Shape:
    """A config with its names spelt out."""

    out_h: int
    n: int
    parts: int
    peers: int

    @property
    def channels(self) -> int:
        """Of the output."""
        return self.n * self.parts

    @property
    def cluster(self) -> int:
        return self.parts * self.peers


def _shape(config: Config) -> _Shape:
    return _Shape(*(int(config[name]) for name in ("out_h", "tile_n", "parts", "peers")))


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return next((why for broken, why in _rules(_shape(config), epilogue) if broken), None)


def _rules(x: _Shape, epilogue: Epilogue) -> Iterator[tuple[bool, str]]:
    yield epilogue.anchors != SeDownBlock.anchors, "an epilogue without the places of a block with a projection"
    yield epilogue.accesses_tensors_early, "steps before the projection that read or write tensors"
    yield x.cluster > 8, "clusters of up to eight blocks"
    yield x.out_h % x.parts > 0, "the blocks of a tile load its lines by turns"


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, SeDownBlock)
    return next((why for beyond, why in _limits(problem) if beyond), None)


def _limits(problem: SeDownBlock) -> Iterator[tuple[bool, str]]:
    yield problem.p not in _SIDES or problem.q not in _SIDES, "outputs of 4 or 8 by 4 or 8 pixels"
    yield problem.c % _CHUNK > 0, f"c must be a multiple of {_CHUNK}"
    yield problem.k % _CHUNK > 0 or problem.k > 256, f"k must be a multiple of {_CHUNK}, at most 256"
    yield problem.hidden % 4 > 0 or problem.hidden > 64, "hidden must be a multiple of 4, at most 64"
    yield problem.n * problem.h * problem.w * max(problem.c, problem.k) >= 2**31, "tensors of up to 2^31 elements"


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, SeDownBlock)
    x = _shape(config)
    if x.channels != problem.k:
        return f"it has {x.channels} channels"
    if any(config[name] != getattr(problem, side) for name, side in _OUTPUT.items()):
        return f"its output has {config['out_h']} x {config['out_w']} pixels"
    if problem.c > 3 * x.n:
        return "the pooled input must find room where the inner values will be"
    return "there are fewer tiles than a cluster has" if x.peers > _tiles(problem) else None


def _tiles(problem: SeDownBlock) -> int:
    return ceil_div(problem.n, _TILE_ROWS // (problem.p * problem.q))


def _fixed_bytes(problem: SeDownBlock, x: _Shape) -> int:
    """Shared memory of all but the rings: the inner values, the gate (templates/sm90/se_gate.cuh), a few barriers."""
    pixels = problem.p * problem.q
    inner = 3 * problem.k // _CHUNK * (problem.p + 2) * _TILE_BYTES // problem.p
    run = 16 if pixels == _TILE_ROWS else problem.q
    gated = se_gate.shared_bytes(_TILE_ROWS, x.n, pixels, problem.hidden, x.parts, run)
    return 1024 + inner + gated + 8 * (x.parts + 1)


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    """Buffers for the input's taps, and for weights as many as there is room for, or half of them."""
    assert isinstance(problem, SeDownBlock)
    x = _shape(config)
    room = arch.block_shared - _fixed_bytes(problem, x)
    launches: list[Launch] = []
    for fills in _FILLS:
        most = min((room - fills * (_TILE_BYTES + 16)) // (x.n * _CHUNK * 2 + 16), 16)
        launches += [{"fill_slots": fills, "weight_slots": slots} for slots in (most, most // 2) if slots > 1]
    return launches


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Cycles by a crude model: what of loads, products and shared memory takes longest, and latencies."""
    assert isinstance(problem, SeDownBlock)
    x = _shape(config)
    depth = 9 * problem.c + problem.c + 9 * problem.k
    rounds = ceil_div(_tiles(problem) * x.parts, arch.processors_for(x.cluster))
    loaded = depth * 2 * (x.n / x.peers + _TILE_ROWS / x.parts) / LOADED_BYTES_A_CYCLE
    products = depth * _TILE_ROWS * x.n / PRODUCTS_A_CYCLE
    moved = depth * 2 * (2 * x.n + _TILE_ROWS) / _READ_BYTES_A_CYCLE
    return rounds * (max(loaded, products, moved) + 6000 + 1000 * (x.parts > 1) + 200 * x.cluster)


def _context(config: Config, arch: Architecture, dtype: str) -> dict[str, object]:
    return {**config, "type": dtype, "map_element": MAP_ELEMENTS[dtype]}


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> Sequence[Value]:
    if isinstance(problem, SeDownBlock) and parameter.name in _OUTPUT:
        return (getattr(problem, _OUTPUT[parameter.name]),)
    if isinstance(problem, SeDownBlock) and parameter.name == "parts":
        return [parts for parts in parameter.values if int(parts) * int(chosen["tile_n"]) == problem.k]
    return parameter.values


def _label(config: Config) -> str:
    shared = f" c{config['peers']}" if config["peers"] != 1 else ""
    return f"{_TILE_ROWS}x{config['tile_n']} {config['parts']} parts{shared}"


FAMILY = Family(
    name="sm90_se_down_block",
    operator=SeDownBlock,
    kind=DEVICE_IMAGE,
    template="sm90/se_resnet9/down/se_down_block.cu.j2",
    architectures=("sm90",),
    dtypes=("f16", "bf16"),
    parameters=(
        Parameter("out_h", _SIDES, "height of the output"),
        Parameter("out_w", _SIDES, "its width"),
        Parameter("tile_n", (64, 128), "output channels of a block"),
        Parameter("parts", (1, 2, 4), "blocks of a cluster that share the channels of a tile of 64 pixels"),
        Parameter("peers", (1, 2, 4), "tiles of a cluster, which share the loads of the weights"),
    ),
    launch_parameters=(
        Parameter("fill_slots", _FILLS, "buffers for the input's taps"),
        Parameter("weight_slots", tuple(range(2, 17)), "buffers for weights"),
    ),
    legal=_legal,
    values=_values,
    supports=_supports,
    fits=_fits,
    launches=_launches,
    cost=_cost,
    context=_context,
    label=_label,
    weight_layouts=lambda _: {"weight1": "wgmma", "weight2": "wgmma", "projection": "wgmma"},
    compile_seconds=(1.0, 1.2),
)
