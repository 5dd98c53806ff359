"""Depthwise convolution on a GPU, channels last: each channel has a filter of its own, so memory is what bounds it."""

from __future__ import annotations

from math import ceil

from autotune.core import Architecture
from autotune.families import cuda_shared
from autotune.families.base import DEVICE_IMAGE, Config, Family, Parameter
from autotune.ir import DTYPES, Conv2d, Epilogue, Problem

_FILTERS, _STRIDES = (3, 5, 7), (1, 2)  # known when the kernel is compiled; 0 is any, known when it runs
_MOST_REGISTERS = 160  # of sums and of one input row


def _numbers(config: Config) -> tuple[int, ...]:
    return tuple(int(config[name]) for name in ("filter", "stride", "vector", "columns", "rows", "threads"))


def _registers(config: Config, dtype: str) -> int:
    filter_, stride, vector, columns, rows, _ = _numbers(config)
    line = (columns - 1) * stride + filter_ if filter_ else 1
    return rows * columns * vector + ceil(line * vector * DTYPES[dtype].itemsize / 4)


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    filter_, stride, vector, *_ = _numbers(config)
    if (filter_ == 0) != (stride == 0):
        return "filter and stride are known together"
    if wide := cuda_shared.too_wide(vector, dtype):
        return wide
    return "the sums would spill" if _registers(config, dtype) > _MOST_REGISTERS else None


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, Conv2d)
    return None if problem.c == problem.k == problem.groups > 1 else "a channel a group"


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, Conv2d)
    filter_, stride, vector, *_ = _numbers(config)
    return cuda_shared.odd(problem.c, vector) or cuda_shared.another_window(
        problem, _FILTERS, _STRIDES, (filter_, stride)
    )


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Cycles by a crude model: waves of threads, each with its accesses, its products and what starting one takes."""
    assert isinstance(problem, Conv2d)
    _, _, vector, columns, rows, threads = _numbers(config)
    tiles = problem.n * ceil(problem.p / rows) * ceil(problem.q / columns)
    blocks = ceil(tiles * problem.c / vector / threads)
    registers = (_registers(config, problem.dtype) + 40) * threads
    resident = max(1, min(arch.sm_threads // threads, cuda_shared.REGISTERS // registers))
    tall = (rows - 1) * problem.stride[0] + problem.r
    wide = (columns - 1) * problem.stride[1] + problem.s
    accesses = (tall * wide + rows * columns) * (8 if config["filter"] else 12) / (8 / vector + 1)
    products = rows * columns * problem.r * problem.s * vector / 4
    return ceil(blocks / (arch.processors * resident)) * (resident * threads / 128 * max(accesses, products) + 600)


FAMILY = Family(
    name="cuda_depthwise_conv2d",
    operator=Conv2d,
    kind=DEVICE_IMAGE,
    template="cuda/depthwise_conv2d.cu.j2",
    architectures=cuda_shared.ARCHITECTURES,
    parameters=(
        Parameter("filter", (0, *_FILTERS), "side of the filter; 0: any"),
        Parameter("stride", (0, *_STRIDES), "stride of both axes; 0: any"),
        Parameter("vector", (1, 2, 4, 8), "channels a thread"),
        Parameter("columns", (1, 2, 4, 8), "neighbouring output pixels of a row a thread"),
        Parameter("rows", (1, 2, 4), "output rows a thread"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    ),
    legal=_legal,
    supports=_supports,
    fits=_fits,
    cost=_cost,
    weight_layouts=lambda _: {"weight": "rsck"},
)
