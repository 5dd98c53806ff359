"""A residual block that halves its images, by mma.sync: templates/cuda/down_block.cuh."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.core import Architecture, ceil_div
from autotune.families import se_gate
from autotune.families.base import Config, Launch, Rules, require
from autotune.families.cuda.conv2d import CHANNELS_A_STEP, ROW_BYTES, MmaConvFamily, MmaConvShape, convolution_rules
from autotune.families.se_resnet9.common import require_anchors
from autotune.ir import Epilogue
from autotune.ir.operators import Conv2dSe, SeDownBlock


def _convolution(problem: SeDownBlock, channels: int) -> Conv2dSe:
    """Return the second convolution, with another number of input channels."""
    return Conv2dSe(
        n=problem.n, h=problem.p, w=problem.q, c=channels, k=problem.k, r=3, s=3, pad=(1, 1),
        hidden=problem.hidden, dtype=problem.dtype,
    )  # fmt: skip


class CudaSeDownBlock(MmaConvFamily[SeDownBlock]):
    """A residual block that halves its images in one kernel, by mma.sync; fp16 and bf16 with float32 sums, NHWC.

    It is cuda_conv2d twice in a row on whole images, with a pool and a projection.
    """

    name = "cuda_se_down_block"
    operator = SeDownBlock
    template = "cuda/down_block.cu.j2"
    parameters = tuple(one for one in MmaConvFamily.parameters if one.name != "slices")
    launch_parameters = ()

    def convolution(self, problem: SeDownBlock) -> Conv2dSe:
        """Return one with as many steps as the block."""
        return _convolution(problem, CHANNELS_A_STEP + problem.k)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        yield require_anchors(epilogue, SeDownBlock)
        yield require(not epilogue.accesses_tensors_early, "steps before the projection must not read or write tensors")
        yield from super().illegal(config, arch, dtype, epilogue)

    def unsupported(self, problem: SeDownBlock) -> Rules:
        yield require(
            problem.c % 8 == 0 and problem.c <= CHANNELS_A_STEP,
            f"c must be a multiple of 8, at most {CHANNELS_A_STEP}",
        )
        yield from convolution_rules(_convolution(problem, problem.k))

    def launches(self, problem: SeDownBlock, config: Config, arch: Architecture) -> list[Launch]:
        x, pixels = MmaConvShape.from_config(config), problem.p * problem.q
        if pixels > x.m or x.m % pixels:
            return []
        # The inner values take the place of the first patch.
        inner = ceil_div(problem.k, CHANNELS_A_STEP) * (problem.p + 2) * (problem.q + 2)
        patches = min(x.m // pixels, problem.n) * max((2 * problem.p + 1) * (2 * problem.q + 1), inner)
        gate = se_gate.shared_bytes(rows=x.m, columns=x.n, pixels=pixels, hidden=problem.hidden)
        shared = ROW_BYTES * (patches + x.m + x.stages * x.taps * x.n) + gate
        return [{}] if shared <= arch.block_shared else []

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight1": "krsc", "weight2": "krsc", "projection": "krsc"}


FAMILIES = (CudaSeDownBlock(),)
