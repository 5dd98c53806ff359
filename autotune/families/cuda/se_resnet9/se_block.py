"""A residual block with squeeze-and-excitation in one kernel, by mma.sync; fp16 and bf16 with float32 sums, NHWC.

It is cuda_conv2d twice in a row on whole images: the result of the first convolution stays in shared memory, where the
second reads it. See templates/cuda/conv2d.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.core import Architecture
from autotune.families.base import Config, Launch, Parameter, Value
from autotune.families.base import RecordFamily as Family
from autotune.families.cuda.conv2d import CHANNELS_A_STEP, HALVES
from autotune.families.cuda.conv2d import FAMILY as CONV2D
from autotune.families.rules import require
from autotune.ir import Conv2dSe, Epilogue, SeBlock


def _convolution(problem: SeBlock, channels: int = 2 * CHANNELS_A_STEP) -> Conv2dSe:
    """Return a convolution with the block's steps and shared memory: one that reads the channels of two steps."""
    return Conv2dSe(
        n=problem.n, h=problem.h, w=problem.w, c=channels, k=problem.c, r=3, s=3, pad=(1, 1),
        hidden=problem.hidden, dtype=problem.dtype,
    )  # fmt: skip


def _why_unsupported(problem: SeBlock) -> str | None:
    return require(
        problem.c <= CHANNELS_A_STEP, f"c must be at most {CHANNELS_A_STEP}; it is {problem.c}"
    ) or CONV2D.why_unsupported(_convolution(problem, problem.c))


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return require(
        epilogue.anchors == SeBlock.anchors, f"the epilogue must have the steps {', '.join(SeBlock.anchors)}, in order"
    ) or CONV2D.why_illegal(config, arch, dtype, epilogue)


def _candidate_values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: SeBlock | None
) -> Sequence[Value]:
    return CONV2D.candidate_values(parameter, chosen, arch, dtype, _convolution(problem) if problem else None)


def _why_unfit(problem: SeBlock, config: Config, arch: Architecture) -> str | None:
    return CONV2D.why_unfit(_convolution(problem), config, arch)


def _launches(problem: SeBlock, config: Config, arch: Architecture) -> list[Launch]:
    return [{}] if CONV2D.launches(_convolution(problem), config, arch) else []


def _cost(problem: SeBlock, config: Config, arch: Architecture) -> float:
    return CONV2D.cost(_convolution(problem), config, arch)


FAMILY = Family[SeBlock](
    name="cuda_se_block",
    operator=SeBlock,
    kind=CONV2D.kind,
    template=CONV2D.template,
    architectures=CONV2D.architectures,
    dtypes=HALVES,
    parameters=tuple(parameter for parameter in CONV2D.parameters if parameter.name != "slices"),
    why_illegal=_why_illegal,
    candidate_values=_candidate_values,
    why_unsupported=_why_unsupported,
    why_unfit=_why_unfit,
    launches=_launches,
    cost=_cost,
    context=lambda config, arch, dtype: {**CONV2D.context(config, arch, dtype), "block": True},
    label=CONV2D.label,
    weight_layouts=lambda _: {"weight1": "krsc", "weight2": "krsc"},
    compile_seconds=CONV2D.compile_seconds,
)
