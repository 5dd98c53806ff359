"""Direct convolution on the CPU: a tile of output pixels x output channels stays in vector registers."""

from __future__ import annotations

from math import ceil

from autotune.arch import Architecture
from autotune.epilogue import Epilogue
from autotune.families.base import SHARED_LIBRARY, Config, Family, Launch, Parameter
from autotune.families.cpu import THREADS, vector_registers
from autotune.problem import Conv2d, Problem

ORDER = Parameter("order", (0, 1), "tiles that follow each other share 0: their weights; 1: their input")

_POINTERS = 10  # of a tile's pixels that a general register holds; the others are read again for each channel
_CACHE = 768 * 1024  # bytes of weights that stay in cache from one tile to the next
_NEAR, _FAR = 24, 16  # bytes a cycle from that cache and from beyond it


def _vectors(block_k: int) -> int:
    return max(1, block_k // vector_registers()[1])


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    registers, vectors = vector_registers()[0], _vectors(int(config["block_k"]))
    needed = int(config["block_pixels"]) * vectors + vectors + 1  # the sums, one channel's weights, one input
    return None if needed <= registers else f"its tile needs {needed} vector registers and there are {registers}"


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    orders = (0, 1) if _columns(problem, config) > 1 else (0,)  # of one column, both are the same
    return [{"threads": threads, "order": order} for threads in (0, 1) for order in orders]


def _columns(problem: Problem, config: Config) -> int:
    """Blocks of output channels in all groups."""
    assert isinstance(problem, Conv2d)
    return problem.groups * ceil(problem.k // problem.groups / int(config["block_k"]))


def _inside(problem: Conv2d, axis: int) -> float:
    """The share of an axis's taps that meet the image and not its padding."""
    out, size, taps = ((problem.p, problem.h, problem.r), (problem.q, problem.w, problem.s))[axis]
    stride, pad, dilation = problem.stride[axis], problem.pad[axis], problem.dilation[axis]
    inside = sum(0 <= i * stride - pad + tap * dilation < size for i in range(out) for tap in range(taps))
    return inside / (out * taps)


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Cycles of the busiest core: its tiles' loops over channels and taps, and what a tile takes beside them."""
    assert isinstance(problem, Conv2d)
    block_k, block_pixels, unroll_c = (int(config[name]) for name in ("block_k", "block_pixels", "unroll_c"))
    vectors, c = _vectors(block_k), problem.c // problem.groups
    fma, loads = block_pixels * vectors, block_pixels + vectors + max(0, block_pixels - _POINTERS)
    near = 4 * block_k * c * problem.r * problem.s <= _CACHE
    weights = 4 * block_k / (_NEAR if near else _FAR)
    # two of each a cycle; a sum waits four cycles and some for its last value
    step = max(fma / 2, loads / 2, 4.5, weights) + 0.2 / unroll_c

    taps = float(problem.r * problem.s)
    if block_pixels < problem.n * problem.q:  # most tiles lie in one output row,
        taps *= _inside(problem, 0)
    if problem.n % block_pixels == 0:  # or even at one place of several images, and skip its padding
        taps *= _inside(problem, 1)
    beside = block_pixels * (10 + 8 * vectors + 3 * taps)

    rows = ceil(problem.n * problem.p * problem.q / block_pixels)
    return ceil(rows * _columns(problem, config) / arch.processors) * (taps * c * step + beside)


FAMILY = Family(
    name="cpu_conv2d",
    operator=Conv2d,
    kind=SHARED_LIBRARY,
    template="cpu/conv2d.cpp.j2",
    architectures=("cpu",),
    parameters=(
        Parameter("block_k", (8, 16, 32, 48, 64), "output channels of a tile"),
        Parameter("block_pixels", (1, 2, 4, 6, 8, 12, 14), "output pixels of a tile"),
        Parameter("unroll_c", (1, 2), "input channels an iteration"),
    ),
    legal=_legal,
    cost=_cost,
    launch_parameters=(THREADS, ORDER),
    launches=_launches,
    weight_layouts=lambda config: {"weight": f"k{config['block_k']}"},
)
