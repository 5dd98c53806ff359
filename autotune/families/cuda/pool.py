"""What the two pools on a GPU share: a template, its parameters, and which of them can be had."""

from __future__ import annotations

from math import ceil

from autotune.core import Architecture
from autotune.families import cuda_shared
from autotune.families.base import DEVICE_IMAGE, Config, Family, Parameter
from autotune.ir import DTYPES, Epilogue, Pool2d, Problem

_FILTERS, _STRIDES = (2, 3), (1, 2)  # known when the kernel is compiled; 0 is any, known when it runs
_MOST_REGISTERS = 128  # of windows and of one input row


def _numbers(config: Config) -> tuple[int, ...]:
    return tuple(int(config[name]) for name in ("filter", "stride", "vector", "columns", "rows", "threads"))


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    filter_, stride, vector, columns, rows, _ = _numbers(config)
    if (filter_ == 0) != (stride == 0):
        return "filter and stride are known together"
    if not filter_ and rows * columns > 1:
        return "outputs of a thread share pixels only where the window is known"
    if wide := cuda_shared.too_wide(vector, dtype):
        return wide
    line = (columns - 1) * stride + filter_
    registers = rows * columns * vector + ceil(line * vector * DTYPES[dtype].itemsize / 4)
    return "the windows would spill" if registers > _MOST_REGISTERS else None


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, Pool2d)
    filter_, stride, vector, *_ = _numbers(config)
    return cuda_shared.odd(problem.c, vector) or cuda_shared.another_window(
        problem, _FILTERS, _STRIDES, (filter_, stride)
    )


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Accesses for each output, dearer where there are too few threads to hide them."""
    assert isinstance(problem, Pool2d)
    _, _, vector, columns, rows, threads = _numbers(config)
    tall, wide = (rows - 1) * problem.stride[0] + problem.r, (columns - 1) * problem.stride[1] + problem.s
    accesses = (tall * wide / (rows * columns) + 1) * 8 / vector
    started = problem.n * ceil(problem.p / rows) * ceil(problem.q / columns) * problem.c / vector
    return accesses * max(1.0, arch.processors * arch.sm_threads / 2 / started) + abs(threads - 128) / 1024


def family(name: str, operator: type[Pool2d], maximum: bool) -> Family:
    """The family of one of the pools."""
    return Family(
        name=name,
        operator=operator,
        kind=DEVICE_IMAGE,
        template="cuda/pool2d.cu.j2",
        architectures=cuda_shared.ARCHITECTURES,
        dtypes=("f16", "bf16", "tf32", "f32", "s8"),
        parameters=(
            Parameter("filter", (0, *_FILTERS), "side of the window; 0: any"),
            Parameter("stride", (0, *_STRIDES), "stride of both axes; 0: any"),
            Parameter("vector", (1, 2, 4, 8, 16), "channels a thread"),
            Parameter("columns", (1, 2, 4), "neighbouring output pixels of a row a thread"),
            Parameter("rows", (1, 2, 4), "output rows a thread"),
            Parameter("threads", (64, 128, 256), "threads a block"),
        ),
        legal=_legal,
        fits=_fits,
        cost=_cost,
        context=lambda config, arch, dtype: {**config, "maximum": maximum},
        compile_seconds=(0.9, 0.1),
    )
