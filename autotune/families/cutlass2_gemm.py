"""Matrix products from CUTLASS 2.x, fp16 and bf16 with float32 accumulation; also 1x1 convolutions, which are some."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.arch import Architecture
from autotune.epilogue import Epilogue
from autotune.families import cutlass2_stream as stream
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter, Value
from autotune.problem import Conv2d, Gemm, Problem


def _tile(config: Config) -> stream.Tile:
    return stream.Tile.of(config, k_major=(True, True))


def _gemm(problem: Problem) -> tuple[int, int, int]:
    """(m, n, k)."""
    conv = problem.as_conv2d if isinstance(problem, Gemm) else problem
    assert isinstance(conv, Conv2d)
    return conv.n * conv.h * conv.w, conv.k, conv.c


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return stream.unavailable(config, arch, dtype) or _tile(config).broken(arch)


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> Sequence[Value]:
    if problem is None:
        return stream.possible(parameter, chosen, arch, None)
    _, n, k = _gemm(problem)
    if parameter.name in ("alignment", "vector"):
        return (stream.widest(k if parameter.name == "alignment" else n),)
    return stream.possible(parameter, chosen, arch, stream.widest(k))


def _supports(problem: Problem) -> str | None:
    if isinstance(problem, Conv2d):
        plain = (problem.r, problem.s, problem.stride, problem.pad, problem.groups) == (1, 1, (1, 1), (0, 0), 1)
        if not plain:
            return "convolutions 1x1 with stride 1, no padding and no groups"
    return stream.too_large(problem)


def _work(problem: Problem, tile: stream.Tile) -> stream.Work:
    m, n, k = (stream.ceil_div(size, part) for size, part in zip(_gemm(problem), tile.shape, strict=True))
    return stream.Work(m, n, k)


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    _, n, k = _gemm(problem)
    if (config["alignment"], config["vector"]) != (stream.widest(k), stream.widest(n)):
        return []
    return stream.launches(_work(problem, _tile(config)), _tile(config), arch)


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    return stream.cost(_work(problem, _tile(config)), _tile(config), arch)


FAMILY = Family(
    name="cutlass2_gemm",
    operator=(Gemm, Conv2d),
    kind=DEVICE_IMAGE,
    template="cutlass2/gemm.cu.j2",
    architectures=stream.ARCHITECTURES,
    dtypes=("f16", "bf16"),
    parameters=(
        *stream.parameters("rows of x", "rows of the weight", "columns of both"),
        Parameter("alignment", stream.ALIGNMENTS, "elements of an access to x and the weight: the most that k allows"),
        Parameter("vector", stream.ALIGNMENTS, "elements of an access to the output: the most that n allows"),
    ),
    launch_parameters=stream.launch_parameters("columns"),
    legal=_legal,
    values=_values,
    supports=_supports,
    launches=_launches,
    cost=_cost,
    context=lambda config, arch, dtype: stream.context(_tile(config), dtype),
    label=stream.label,
    weight_layouts=lambda _: {"weight": "kcrs"},
)
