"""cuda_conv2d with squeeze-and-excitation whose squeeze is folded into filters (problem conv2d_folded_se).

A warp multiplies its pixels by `hidden` filters more than it has channels. See templates/sm90/folded_se_gate.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.core import Architecture
from autotune.families import se_gate
from autotune.families.base import Config, Parameter, Value
from autotune.families.cuda import conv2d
from autotune.ir import Conv2dFoldedSe, Epilogue, Problem

_CONV = conv2d.FAMILY
_HIDDEN = se_gate.HIDDEN[:-1]  # more leave no registers


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> Sequence[Value]:
    """What can be legal beside the values chosen so far, and is no waste for the problem."""
    if parameter.name != "hidden":
        return _CONV.values(parameter, chosen, arch, dtype, problem)
    assert problem is None or isinstance(problem, Conv2dFoldedSe)
    return [se_gate.columns(problem.hidden)] if problem else _HIDDEN


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, Conv2dFoldedSe)
    if problem.hidden > _HIDDEN[-1] or problem.p * problem.q % 16:
        return f"images of a multiple of 16 pixels, and up to {_HIDDEN[-1]} hidden values"
    return _CONV.supports(problem)


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    own = next((why for broken, why in se_gate.folded_legal(epilogue) if broken), None)
    return own or ("a projection" if "project" in epilogue.names else _CONV.legal(config, arch, dtype, epilogue))


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, Conv2dFoldedSe)
    if problem.hidden > int(config["hidden"]):
        return f"it has {config['hidden']} hidden values"
    return _CONV.fits(problem, config, arch)


FAMILY = replace(
    _CONV,
    name="cuda_folded_conv2d",
    operator=Conv2dFoldedSe,
    parameters=(
        Parameter("hidden", _HIDDEN, "hidden values of a warp's products, beside its channels"),
        *_CONV.parameters,
    ),
    legal=_legal,
    values=_values,
    supports=_supports,
    fits=_fits,
    label=lambda config: f"{_CONV.label(config)} hidden {config['hidden']}",
    weight_layouts=lambda _: {"weight": "krsc", "w1": "krsc"},
)
