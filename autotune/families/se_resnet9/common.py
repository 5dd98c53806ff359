"""Rules and a base class of the families for SE-ResNet9-Fixup's blocks, on all devices."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.core import Architecture
from autotune.families.base import CHANNELS_LAST, Config, Family, Launch, Parameter, Rules, Value, require
from autotune.ir import Epilogue, Problem
from autotune.ir.operators import SeBlock, StemBlock, StemSeBlock

PATCH = 4
"""Pixels of a patch's side: a thread reads one line of a patch at once."""
IMAGE_CHANNELS = (1, 2, 3, 4)
"""Channels of a network's image that kernels are compiled for."""
IMAGE = Parameter("image", IMAGE_CHANNELS, "channels of the image")


def require_anchors(epilogue: Epilogue, operator: type[Problem]) -> str | None:
    """Require that a chain has the steps that an operator's chain must have, in their order."""
    return require(
        epilogue.anchors == operator.anchors,
        f"the epilogue must have the steps {', '.join(operator.anchors)}, in order",
    )


def image_rules(problem: StemBlock) -> Rules:
    """Yield what a network's image and patches must be."""
    yield require(problem.block == PATCH, f"block must be {PATCH}; it is {problem.block}")
    yield require(
        problem.c in IMAGE_CHANNELS, f"images must have {', '.join(map(str, IMAGE_CHANNELS))} channels; c={problem.c}"
    )


class StemFamily(Family[StemSeBlock]):
    """Kernels of a network's first layer and the residual block behind it: a block's with another beginning.

    It stands before the base class of the block's kernels, which asks `block` for the block. Their parameters must have
    IMAGE behind them, and their launch parameters CHANNELS_LAST.
    """

    operator = StemSeBlock

    def block(self, problem: StemSeBlock) -> SeBlock:
        """Return the block behind the stem."""
        return problem.behind

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        yield require_anchors(epilogue, StemSeBlock)
        yield require(
            not epilogue.accesses_tensors_early, "steps before the identity is added must not read or write tensors"
        )
        yield from super().illegal(config, arch, dtype, epilogue)

    def unsupported(self, problem: StemSeBlock) -> Rules:
        yield from image_rules(problem)
        yield from super().unsupported(problem)

    def decided(self, problem: StemSeBlock) -> Mapping[str, Value]:
        return {IMAGE.name: problem.c}

    def launches(self, problem: StemSeBlock, config: Config, arch: Architecture) -> list[Launch]:
        return [{**launch, CHANNELS_LAST.name: 0} for launch in super().launches(problem, config, arch)]

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return {**super().context(config, arch, dtype), "image": config["image"]}

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight": "wgmma_patch", **super().weight_layouts(config)}
