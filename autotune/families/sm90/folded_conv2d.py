"""sm90_conv2d with squeeze-and-excitation whose squeeze is folded into filters (problem conv2d_folded_se).

A tile's products have `hidden` columns beside its channels. See templates/common/folded_se_gate.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.core import Architecture
from autotune.families import se_gate
from autotune.families.base import Config, Parameter, Value
from autotune.families.base import RecordFamily as Family
from autotune.families.rules import Rules, first_unmet, require
from autotune.families.sm90.conv2d import FAMILY as CONV2D
from autotune.ir import Conv2dFoldedSe, Conv2dSeSkip, FoldedSe

_SHARED_PARAMETERS = (
    "tile_m", "tile_n", "groups", "schedule", "activations", "weights", "cluster_m", "cluster_n", "slices"
)  # fmt: skip


def _candidate_values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: FoldedSe | None
) -> Sequence[Value]:
    if parameter.name not in ("image", "hidden"):
        return CONV2D.candidate_values(parameter, {"merge": 1, **chosen}, arch, dtype, problem)
    if problem is None:
        return parameter.values
    if parameter.name == "image":
        return [se_gate.image_kind(problem)]
    return [se_gate.hidden_columns(problem.hidden)]


def _why_unsupported(problem: FoldedSe) -> str | None:
    return CONV2D.why_unsupported(problem) or first_unmet(_problem_rules(problem))


def _problem_rules(problem: FoldedSe) -> Rules:
    yield require(problem.c > 32, f"c must be more than 32, for steps of 64 channels; it is {problem.c}")
    if isinstance(problem, Conv2dSeSkip):
        channels = problem.skip_c // problem.skip_groups
        yield require(channels % 8 == 0, "the projection's input channels must be a multiple of 8")
        yield require(
            problem.skip_groups == 1 or channels % 64 == 0,
            "the input channels of a projection's group must be a multiple of 64",
        )


def _why_unfit(problem: FoldedSe, config: Config, arch: Architecture) -> str | None:
    return first_unmet(se_gate.folded_fit_rules(problem, config))


FAMILY = Family[FoldedSe](
    name="sm90_folded_conv2d",
    operator=(Conv2dFoldedSe, Conv2dSeSkip),
    kind=CONV2D.kind,
    template=CONV2D.template,
    architectures=CONV2D.architectures,
    dtypes=("f16", "bf16"),
    parameters=(
        Parameter("image", ("warps", "rows"), "of a multiple of 16 pixels, or 1, 4 or 8 of a warp's rows"),
        Parameter("hidden", se_gate.HIDDEN, "hidden values of a tile's products, beside its channels"),
        *(parameter for parameter in CONV2D.parameters if parameter.name in _SHARED_PARAMETERS),
    ),
    launch_parameters=CONV2D.launch_parameters,
    why_illegal=CONV2D.why_illegal,
    candidate_values=_candidate_values,
    why_unsupported=_why_unsupported,
    why_unfit=_why_unfit,
    launches=CONV2D.launches,
    cost=CONV2D.cost,
    context=lambda config, arch, dtype: {**CONV2D.context(config, arch, dtype), "tile_k": 64, "merge": 1},
    label=lambda config: f"{CONV2D.label(config)} hidden {config['hidden']}",
    weight_layouts=lambda _: {"weight": "wgmma", "w1": "krsc", "projection": "wgmma"},
    compile_seconds=CONV2D.compile_seconds,
)
