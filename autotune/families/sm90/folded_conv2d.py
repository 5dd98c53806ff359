"""sm90_conv2d with squeeze-and-excitation whose squeeze is folded into filters (problem conv2d_folded_se).

A tile's products have `hidden` columns more than it has channels. See templates/sm90/folded_se_gate.cuh.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from autotune.core import Architecture
from autotune.families import se_gate
from autotune.families.base import Config, Parameter, Value
from autotune.families.sm90 import conv2d
from autotune.ir import Conv2dFoldedSe, Conv2dSeSkip, FoldedSe, Problem

_SAME = ("tile_m", "tile_n", "groups", "schedule", "activations", "weights", "cluster_m", "cluster_n", "slices")
_CONV = conv2d.FAMILY


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> Sequence[Value]:
    """What can be legal beside the values chosen so far, and is no waste for the problem."""
    if parameter.name not in ("image", "hidden"):
        return _CONV.values(parameter, {"merge": 1, **chosen}, arch, dtype, problem)
    if problem is None:
        return parameter.values
    assert isinstance(problem, FoldedSe)
    return [se_gate.image(problem)] if parameter.name == "image" else [se_gate.columns(problem.hidden)]


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, FoldedSe)
    return _CONV.supports(problem) or next((why for beyond, why in _limits(problem) if beyond), None)


def _limits(problem: FoldedSe) -> Iterator[tuple[bool, str]]:
    yield problem.c <= 32, "more than 32 input channels"
    if isinstance(problem, Conv2dSeSkip):
        channels = problem.skip_c // problem.skip_groups
        yield channels % 8 > 0, "a projection of a multiple of 8 channels"
        yield problem.skip_groups > 1 and channels % 64 > 0, "a projection in groups of multiples of 64 channels"


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, FoldedSe)
    return se_gate.misfit(problem, config)


FAMILY = replace(
    _CONV,
    name="sm90_folded_conv2d",
    operator=(Conv2dFoldedSe, Conv2dSeSkip),
    parameters=(
        Parameter("image", ("warps", "rows"), "of a multiple of 16 pixels, or 1, 4 or 8 of a warp's rows"),
        Parameter("hidden", se_gate.HIDDEN, "hidden values of a tile's products, beside its channels"),
        *(parameter for parameter in _CONV.parameters if parameter.name in _SAME),
    ),
    values=_values,
    supports=_supports,
    fits=_fits,
    context=lambda config, arch, dtype: {**_CONV.context(config, arch, dtype), "tile_k": 64, "merge": 1},
    label=lambda config: f"{_CONV.label(config)} hidden {config['hidden']}",
    weight_layouts=lambda _: {"weight": "wgmma", "w1": "krsc", "projection": "wgmma"},
)
