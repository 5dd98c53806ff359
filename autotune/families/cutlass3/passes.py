"""What the three passes of a convolution from CUTLASS 3.x for Hopper share: a template and what is legal.

CUTLASS's implicit GEMM for Hopper has one schedule: a warpgroup loads, another multiplies, a block ends with its tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from autotune.core import Architecture, ceil_div
from autotune.families.base import DEVICE_IMAGE, Config, Family, Parameter, Value
from autotune.families.cutlass3 import collective
from autotune.families.cutlass3.collective import Tile, Work
from autotune.ir import Convolution, Epilogue, Problem

# Of TMA: corners of the box of starting pixels, offsets of taps, strides.
_LEAST_CORNER, _MOST_CORNER, _MOST_OFFSET, _MOST_STRIDE = -128, 127, 254, 8
_MOST_ROW = 128  # bytes: a longer row of the im2col matrix is loaded eight pixels at a time

Sizes = Callable[[Convolution], tuple[int, int, int, int]]
"""A problem's GEMM: m, n and k, of which one is met again under each tap, and how many taps there are.

The taps multiply k, or, of the gradient by the weight, n.
"""


def family(
    name: str,
    operator: type[Convolution],
    pass_: str,
    sizes: tuple[str, str, str],
    gemm: Sizes,
    dtypes: tuple[str, ...],
    layouts: dict[str, str],
) -> Family:
    """The family of a pass. pass_: CUTLASS's name; sizes: what m, n and k are; layouts: of the weight."""
    by_weight = pass_ == "kWgrad"

    def extents(problem: Problem) -> tuple[int, int, int, int]:
        assert isinstance(problem, Convolution)
        return gemm(problem)

    def work(problem: Problem, x: Tile) -> Work:
        m, n, k, taps = extents(problem)
        tiles_n, steps = ceil_div(n, x.n), ceil_div(k, x.k)
        return Work(ceil_div(m, x.m), tiles_n * (taps if by_weight else 1), steps * (1 if by_weight else taps))

    def legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
        x = Tile.of(config, dtype)
        if not by_weight and x.k * x.bytes > _MOST_ROW:
            return "rows that TMA gathers in pieces"
        return collective.legal(x, arch, epilogue)

    def values(
        parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
    ) -> Sequence[Value]:
        found = collective.values(parameter, chosen, dtype, problem.epilogue if problem else None)
        return collective.fitting(parameter, found, dtype, extents(problem)[:3]) if problem else found

    def supports(problem: Problem) -> str | None:
        assert isinstance(problem, Convolution)
        return next((why for beyond, why in _limits(problem, strided=pass_ != "kDgrad") if beyond), None) or (
            collective.misaligned(problem.dtype, problem.c, problem.k) or collective.too_large(problem)
        )

    def fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
        x = Tile.of(config, problem.dtype)
        return work(problem, x).wasteful(x)

    def cost(problem: Problem, config: Config, arch: Architecture) -> float:
        x = Tile.of(config, problem.dtype)
        return collective.cost(work(problem, x), x, arch)

    return Family(
        name=name,
        operator=operator,
        kind=DEVICE_IMAGE,
        template="cutlass3/conv2d.cu.j2",
        architectures=("sm90",),
        dtypes=dtypes,
        parameters=collective.parameters(*sizes, (64, 128, 192, 256)),
        legal=legal,
        values=values,
        supports=supports,
        fits=fits,
        cost=cost,
        context=lambda config, arch, dtype: {**collective.context(config, arch, dtype), "pass": pass_},
        label=collective.label,
        weight_layouts=lambda _: layouts,
        compile_seconds=(7.0, 33.0),
        by_name=True,
    )


def _limits(problem: Convolution, strided: bool) -> Iterator[tuple[bool, str]]:
    yield problem.groups != 1, "groups"
    yield not strided and problem.stride != (1, 1), "a stride"
    yield max(problem.stride) > _MOST_STRIDE, f"strides up to {_MOST_STRIDE}"
    for pad, dilation, extent in zip(problem.pad, problem.dilation, (problem.r, problem.s), strict=True):
        reach = dilation * (extent - 1)
        corners = (-pad, pad - reach)
        far = reach > _MOST_OFFSET or min(corners) < _LEAST_CORNER or max(corners) > _MOST_CORNER
        yield far, "filters that reach further than TMA can"
