"""Residual blocks with squeeze-and-excitation by mma.sync, without and with a network's first layer before them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TypeVar

from autotune.core import Architecture
from autotune.families.base import CHANNELS_LAST, Config, Launch, Parameter, Rules, require
from autotune.families.cuda.conv2d import CHANNELS_A_STEP, MmaConvFamily, convolution_rules
from autotune.families.se_resnet9.common import IMAGE, StemFamily, require_anchors
from autotune.ir import Epilogue
from autotune.ir.operators import Conv2dSe, SeBlock, StemSeBlock

P = TypeVar("P", bound=SeBlock | StemSeBlock)


def _convolution(problem: SeBlock, channels: int) -> Conv2dSe:
    """Return one of the convolutions, with another number of input channels."""
    return Conv2dSe(
        n=problem.n, h=problem.h, w=problem.w, c=channels, k=problem.c, r=3, s=3, pad=(1, 1),
        hidden=problem.hidden, dtype=problem.dtype,
    )  # fmt: skip


class BlockFamily(MmaConvFamily[P]):
    """cuda_conv2d twice in a row on whole images.

    The result of the first convolution stays in shared memory, where the second reads it.
    """

    parameters: tuple[Parameter, ...] = tuple(
        parameter for parameter in MmaConvFamily.parameters if parameter.name != "slices"
    )
    launch_parameters: tuple[Parameter, ...] = ()

    @abstractmethod
    def block(self, problem: P) -> SeBlock:
        """Return the block."""

    def convolution(self, problem: P) -> Conv2dSe:
        """Return one with the block's steps and shared memory: it reads the channels of two steps."""
        return _convolution(self.block(problem), 2 * CHANNELS_A_STEP)

    def unsupported(self, problem: P) -> Rules:
        block = self.block(problem)
        yield require(block.c <= CHANNELS_A_STEP, f"c must be at most {CHANNELS_A_STEP}; it is {block.c}")
        yield from convolution_rules(_convolution(block, block.c))

    def launches(self, problem: P, config: Config, arch: Architecture) -> list[Launch]:
        return [{}] if super().launches(problem, config, arch) else []

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return {**super().context(config, arch, dtype), "block": True}

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight1": "krsc", "weight2": "krsc"}


class CudaSeBlock(BlockFamily[SeBlock]):
    """A residual block with squeeze-and-excitation in one kernel, by mma.sync; fp16 and bf16, float32 sums, NHWC."""

    name = "cuda_se_block"
    operator = SeBlock

    def block(self, problem: SeBlock) -> SeBlock:
        return problem

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        yield require_anchors(epilogue, SeBlock)
        yield from super().illegal(config, arch, dtype, epilogue)


class CudaStemSeBlock(StemFamily, BlockFamily[StemSeBlock]):
    """A network's first layer and the residual block behind it in one kernel, by mma.sync; fp16 and bf16.

    A warp multiplies the image's patches, from registers, by the stem's weights, and writes what comes of it to where
    the first convolution reads. See templates/cuda/conv2d_stem.cuh.
    """

    name = "cuda_stem_se_block"
    parameters = (*BlockFamily.parameters, IMAGE)
    launch_parameters = (CHANNELS_LAST,)


FAMILIES = (CudaSeBlock(), CudaStemSeBlock())
