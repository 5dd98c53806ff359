"""A residual block that halves its images in one kernel, by mma.sync; fp16 and bf16 with float32 sums, NHWC.

It is cuda_conv2d twice in a row on whole images, with a pool and a projection: see templates/cuda/down_block.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.core import Architecture, ceil_div
from autotune.families import se_gate
from autotune.families.base import Config, Launch, Parameter, Value
from autotune.families.cuda import conv2d
from autotune.ir import Conv2dSe, Epilogue, Problem, SeDownBlock

_CONV = conv2d.FAMILY
_CHANNELS = 64  # of a step
_ROW = 128  # bytes of a pixel's or a filter's channels of a step


def _convolution(problem: Problem, channels: int) -> Conv2dSe:
    """The second convolution, as if of so many channels."""
    assert isinstance(problem, SeDownBlock)
    sizes = {name: getattr(problem, name) for name in ("n", "k", "hidden", "dtype")}
    return Conv2dSe(**sizes, h=problem.p, w=problem.q, c=channels, r=3, s=3, pad=(1, 1))


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, SeDownBlock)
    if problem.c > _CHANNELS or problem.c % 8:
        return f"multiples of 8 channels, up to {_CHANNELS}"
    return _CONV.supports(_convolution(problem, problem.k))


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    if epilogue.anchors != SeDownBlock.anchors:
        return "an epilogue without the places of a block with a projection"
    if epilogue.accesses_tensors_early:
        return "steps before the projection that read or write tensors"
    return _CONV.legal(config, arch, dtype, Epilogue(("gate",)))


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> Sequence[Value]:
    behind = _convolution(problem, problem.k) if isinstance(problem, SeDownBlock) else None
    return _CONV.values(parameter, chosen, arch, dtype, behind)


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, SeDownBlock)
    return _CONV.fits(_convolution(problem, problem.k), config, arch)


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    assert isinstance(problem, SeDownBlock)
    m, n, taps, stages = (int(config[name]) for name in ("tile_m", "tile_n", "taps", "stages"))
    pixels = problem.p * problem.q
    if pixels > m or m % pixels:
        return []
    inner = ceil_div(problem.k, _CHANNELS) * (problem.p + 2) * (problem.q + 2)  # in the place of the first patch
    patches = min(m // pixels, problem.n) * max((2 * problem.p + 1) * (2 * problem.q + 1), inner)
    shared = _ROW * (patches + m + stages * taps * n) + se_gate.shared_bytes(m, n, pixels, problem.hidden)
    return [{}] if shared <= arch.block_shared else []


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Of one convolution that takes as many steps."""
    assert isinstance(problem, SeDownBlock)
    return _CONV.cost(_convolution(problem, _CHANNELS + problem.k), config, arch)


FAMILY = replace(
    _CONV,
    name="cuda_se_down_block",
    operator=SeDownBlock,
    template="cuda/down_block.cu.j2",
    parameters=tuple(parameter for parameter in _CONV.parameters if parameter.name != "slices"),
    launch_parameters=(),
    legal=_legal,
    values=_values,
    supports=_supports,
    fits=_fits,
    launches=_launches,
    cost=_cost,
    weight_layouts=lambda _: {"weight1": "krsc", "weight2": "krsc", "projection": "krsc"},
)
