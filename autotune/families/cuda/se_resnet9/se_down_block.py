"""A residual block that halves its images in one kernel, by mma.sync; fp16 and bf16 with float32 sums, NHWC.

It is cuda_conv2d twice in a row on whole images, with a pool and a projection: see templates/cuda/down_block.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.core import Architecture, ceil_div
from autotune.families import se_gate
from autotune.families.base import Config, Launch, Parameter, Value
from autotune.families.base import RecordFamily as Family
from autotune.families.cuda.conv2d import CHANNELS_A_STEP, HALVES, ROW_BYTES, MmaConvShape
from autotune.families.cuda.conv2d import FAMILY as CONV2D
from autotune.families.rules import require
from autotune.ir import Conv2dSe, Epilogue, SeDownBlock


def _convolution(problem: SeDownBlock, channels: int) -> Conv2dSe:
    """Return the second convolution, with another number of input channels."""
    return Conv2dSe(
        n=problem.n, h=problem.p, w=problem.q, c=channels, k=problem.k, r=3, s=3, pad=(1, 1),
        hidden=problem.hidden, dtype=problem.dtype,
    )  # fmt: skip


def _why_unsupported(problem: SeDownBlock) -> str | None:
    return require(
        problem.c % 8 == 0 and problem.c <= CHANNELS_A_STEP, f"c must be a multiple of 8, at most {CHANNELS_A_STEP}"
    ) or CONV2D.why_unsupported(_convolution(problem, problem.k))


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return (
        require(
            epilogue.anchors == SeDownBlock.anchors,
            f"the epilogue must have the steps {', '.join(SeDownBlock.anchors)}, in order",
        )
        or require(not epilogue.accesses_tensors_early, "steps before the projection must not read or write tensors")
        or CONV2D.why_illegal(config, arch, dtype, Epilogue(("gate",)))
    )


def _candidate_values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: SeDownBlock | None
) -> Sequence[Value]:
    second = _convolution(problem, problem.k) if problem else None
    return CONV2D.candidate_values(parameter, chosen, arch, dtype, second)


def _why_unfit(problem: SeDownBlock, config: Config, arch: Architecture) -> str | None:
    return CONV2D.why_unfit(_convolution(problem, problem.k), config, arch)


def _launches(problem: SeDownBlock, config: Config, arch: Architecture) -> list[Launch]:
    x, pixels = MmaConvShape.from_config(config), problem.p * problem.q
    if pixels > x.m or x.m % pixels:
        return []
    # The inner values take the place of the first patch.
    inner = ceil_div(problem.k, CHANNELS_A_STEP) * (problem.p + 2) * (problem.q + 2)
    patches = min(x.m // pixels, problem.n) * max((2 * problem.p + 1) * (2 * problem.q + 1), inner)
    gate = se_gate.shared_bytes(rows=x.m, columns=x.n, pixels=pixels, hidden=problem.hidden)
    shared = ROW_BYTES * (patches + x.m + x.stages * x.taps * x.n) + gate
    return [{}] if shared <= arch.block_shared else []


def _cost(problem: SeDownBlock, config: Config, arch: Architecture) -> float:
    """Return the cost of one convolution with as many steps as the block."""
    return CONV2D.cost(_convolution(problem, CHANNELS_A_STEP + problem.k), config, arch)


FAMILY = Family[SeDownBlock](
    name="cuda_se_down_block",
    operator=SeDownBlock,
    kind=CONV2D.kind,
    template="cuda/down_block.cu.j2",
    architectures=CONV2D.architectures,
    dtypes=HALVES,
    parameters=tuple(parameter for parameter in CONV2D.parameters if parameter.name != "slices"),
    why_illegal=_why_illegal,
    candidate_values=_candidate_values,
    why_unsupported=_why_unsupported,
    why_unfit=_why_unfit,
    launches=_launches,
    cost=_cost,
    context=CONV2D.context,
    label=CONV2D.label,
    weight_layouts=lambda _: {"weight1": "krsc", "weight2": "krsc", "projection": "krsc"},
    compile_seconds=CONV2D.compile_seconds,
)
