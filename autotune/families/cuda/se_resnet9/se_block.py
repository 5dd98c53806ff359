"""A residual block with squeeze-and-excitation in one kernel, by mma.sync; fp16 and bf16 with float32 sums, NHWC.

It is cuda_conv2d twice in a row on whole images: what the first convolution yields stays in shared memory, where the
second reads it. See templates/cuda/conv2d.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.core import Architecture
from autotune.families.base import Config, Launch, Parameter, Value
from autotune.families.cuda import conv2d
from autotune.ir import Conv2dSe, Epilogue, Problem, SeBlock

_CONV = conv2d.FAMILY
_CHANNELS = 64  # of a step


def _convolution(problem: Problem, channels: int = 2 * _CHANNELS) -> Conv2dSe:
    """The convolution that takes as many steps, and as much memory: from the channels of two steps."""
    assert isinstance(problem, SeBlock)
    sizes = {name: getattr(problem, name) for name in ("n", "h", "w", "hidden", "dtype")}
    return Conv2dSe(**sizes, c=channels, k=problem.c, r=3, s=3, pad=(1, 1))


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, SeBlock)
    return f"up to {_CHANNELS} channels" if problem.c > _CHANNELS else _CONV.supports(_convolution(problem, problem.c))


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    if epilogue.anchors != SeBlock.anchors:
        return "an epilogue without the places of a block"
    return _CONV.legal(config, arch, dtype, epilogue)


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> Sequence[Value]:
    return _CONV.values(parameter, chosen, arch, dtype, _convolution(problem) if problem else None)


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    return _CONV.fits(_convolution(problem), config, arch)


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    return [{}] if _CONV.launches(_convolution(problem), config, arch) else []


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    return _CONV.cost(_convolution(problem), config, arch)


FAMILY = replace(
    _CONV,
    name="cuda_se_block",
    operator=SeBlock,
    parameters=tuple(parameter for parameter in _CONV.parameters if parameter.name != "slices"),
    launch_parameters=(),
    legal=_legal,
    values=_values,
    supports=_supports,
    fits=_fits,
    launches=_launches,
    cost=_cost,
    context=lambda config, arch, dtype: {**_CONV.context(config, arch, dtype), "block": True},
    weight_layouts=lambda _: {"weight1": "krsc", "weight2": "krsc"},
)
