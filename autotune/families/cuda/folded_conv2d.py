"""cuda_conv2d with squeeze-and-excitation whose squeeze is folded into filters (problem conv2d_folded_se).

A warp multiplies its pixels by `hidden` filters beside those of its channels. See templates/common/folded_se_gate.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.core import Architecture
from autotune.families import se_gate
from autotune.families.base import Config, Parameter, Value
from autotune.families.base import RecordFamily as Family
from autotune.families.cuda.conv2d import FAMILY as CONV2D
from autotune.families.cuda.conv2d import HALVES
from autotune.families.rules import first_unmet, require
from autotune.ir import Conv2dFoldedSe, Epilogue

_HIDDEN = se_gate.HIDDEN[:-1]  # 64 columns leave too few registers


def _candidate_values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Conv2dFoldedSe | None
) -> Sequence[Value]:
    if parameter.name != "hidden":
        return CONV2D.candidate_values(parameter, chosen, arch, dtype, problem)
    return [se_gate.hidden_columns(problem.hidden)] if problem else _HIDDEN


def _why_unsupported(problem: Conv2dFoldedSe) -> str | None:
    return (
        require(problem.hidden <= _HIDDEN[-1], f"hidden must be at most {_HIDDEN[-1]}")
        or require(problem.p * problem.q % 16 == 0, "images must have a multiple of 16 output pixels")
        or CONV2D.why_unsupported(problem)
    )


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return (
        first_unmet(se_gate.folded_epilogue_rules(epilogue))
        or require("project" not in epilogue.names, "the epilogue must have no projection")
        or CONV2D.why_illegal(config, arch, dtype, epilogue)
    )


def _why_unfit(problem: Conv2dFoldedSe, config: Config, arch: Architecture) -> str | None:
    room = int(config["hidden"])
    return require(
        problem.hidden <= room, f"it has room for {room} hidden values; the problem has {problem.hidden}"
    ) or CONV2D.why_unfit(problem, config, arch)


FAMILY = Family[Conv2dFoldedSe](
    name="cuda_folded_conv2d",
    operator=Conv2dFoldedSe,
    kind=CONV2D.kind,
    template=CONV2D.template,
    architectures=CONV2D.architectures,
    dtypes=HALVES,
    parameters=(
        Parameter("hidden", _HIDDEN, "hidden values of a warp's products, beside its channels"),
        *CONV2D.parameters,
    ),
    launch_parameters=CONV2D.launch_parameters,
    why_illegal=_why_illegal,
    candidate_values=_candidate_values,
    why_unsupported=_why_unsupported,
    why_unfit=_why_unfit,
    launches=CONV2D.launches,
    cost=CONV2D.cost,
    context=CONV2D.context,
    label=lambda config: f"{CONV2D.label(config)} hidden {config['hidden']}",
    weight_layouts=lambda _: {"weight": "krsc", "w1": "krsc"},
    compile_seconds=CONV2D.compile_seconds,
)
