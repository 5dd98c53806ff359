"""What the families with templates/cpu/conv2d.h share: tiles of pixels x output channels in vector registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from autotune.core import Architecture
from autotune.families.base import SHARED_LIBRARY, Config, Family, Launch, Parameter
from autotune.families.cpu.common import THREADS, vector_registers
from autotune.ir import Problem

_POINTERS = 10  # of a tile's pixels that a general register holds; the others are read again for each channel
_CACHE = 768 * 1024  # bytes of weights that stay in cache from one tile to the next
_NEAR, _FAR = 24, 16  # bytes a cycle from that cache and from beyond it


@dataclass(frozen=True)
class Work:
    """What is to be tiled. c, k: input and output channels of a group, as the kernel sees them.

    taps: all of the window; met: those that a tile goes through on average.
    """

    pixels: int
    groups: int
    c: int
    k: int
    taps: int
    met: float


def family(
    name: str,
    operator: type[Problem] | tuple[type[Problem], ...],
    header: str,
    pixels: str,
    work: Callable[[Problem, Config], Work],
    layout: str,
    dtypes: tuple[str, ...] = ("f32",),
) -> Family:
    """A family of such tiles.

    header: the one that defines `pixels`, how a tile's pixels are walked. layout: of the weights, a letter of
    autotune/ir/weight_layout.py that the number of output channels of a tile is added to.
    """
    return Family(
        name=name,
        operator=operator,
        kind=SHARED_LIBRARY,
        template="cpu/conv2d.cpp.j2",
        architectures=("cpu",),
        dtypes=dtypes,
        parameters=(
            Parameter("block_k", (8, 16, 32, 48, 64), "output channels of a tile"),
            Parameter("block_pixels", (1, 2, 4, 6, 8, 12, 14), "output pixels of a tile"),
            Parameter("unroll_c", (1, 2), "input channels an iteration"),
        ),
        launch_parameters=(
            THREADS,
            Parameter("order", (0, 1), "tiles that follow each other share 0: their weights; 1: their input"),
        ),
        legal=lambda config, *_: fits(int(config["block_pixels"]), int(config["block_k"])),
        launches=lambda problem, config, arch: _launches(work(problem, config), config),
        cost=lambda problem, config, arch: _cost(work(problem, config), config, arch),
        context=lambda config, arch, dtype: {**config, "header": header, "pixels": pixels},
        weight_layouts=lambda config: {"weight": f"{layout}{config['block_k']}"},
    )


def vectors(channels: int) -> int:
    """Vector registers that hold this many channels."""
    return max(1, channels // vector_registers()[1])


def fits(rows: int, channels: int) -> str | None:
    """None if a tile's sums stay in registers with one row of vectors and one scalar, else how many it would need."""
    registers, columns = vector_registers()[0], vectors(channels)
    needed = rows * columns + columns + 1
    return None if needed <= registers else f"its tile needs {needed} vector registers and there are {registers}"


def _launches(work: Work, config: Config) -> list[Launch]:
    orders = (0, 1) if _columns(work, config) > 1 else (0,)  # of one column, both are the same
    return [{"threads": threads, "order": order} for threads in (0, 1) for order in orders]


def _columns(work: Work, config: Config) -> int:
    """Blocks of output channels in all groups."""
    return work.groups * ceil(work.k / int(config["block_k"]))


def _cost(work: Work, config: Config, arch: Architecture) -> float:
    """Cycles of the busiest core: its tiles' loops over channels and taps, and what a tile takes beside them."""
    block_k, block_pixels, unroll_c = (int(config[name]) for name in ("block_k", "block_pixels", "unroll_c"))
    columns = vectors(block_k)
    fma, loads = block_pixels * columns, block_pixels + columns + max(0, block_pixels - _POINTERS)
    weights = 4 * block_k / (_NEAR if 4 * block_k * work.c * work.taps <= _CACHE else _FAR)
    # two of each a cycle; a sum waits four cycles and some for its last value
    step = max(fma / 2, loads / 2, 4.5, weights) + 0.2 / unroll_c
    beside = block_pixels * (10 + 8 * columns + 3 * work.met)
    tiles = ceil(work.pixels / block_pixels) * _columns(work, config)
    return ceil(tiles / arch.processors) * (work.met * work.c * step + beside)
