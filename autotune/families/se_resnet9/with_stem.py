"""Families of a network's first layer and the residual block behind it: a block's kernels with another beginning."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.core import Architecture
from autotune.families.base import CHANNELS_LAST, Config, Launch, Parameter, Value
from autotune.families.base import RecordFamily as Family
from autotune.families.rules import Rules, first_unmet, require
from autotune.ir import Epilogue, SeBlock, StemBlock, StemSeBlock

PATCH = 4
"""Pixels of a patch's side: a thread reads one line of a patch at once."""
IMAGE_CHANNELS = (1, 2, 3, 4)
"""Channels of a network's image that kernels are compiled for."""


def image_rules(problem: StemBlock) -> Rules:
    """Yield what a network's image and patches must be."""
    yield require(problem.block == PATCH, f"block must be {PATCH}; it is {problem.block}")
    yield require(
        problem.c in IMAGE_CHANNELS, f"images must have {', '.join(map(str, IMAGE_CHANNELS))} channels; c={problem.c}"
    )


def with_stem(block: Family[SeBlock], name: str) -> Family[StemSeBlock]:
    """Return the family of a block's kernels that read the network's image.

    Args:
        block: A family of se_block.
        name: The new family's name.
    """

    def why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
        return (
            require(
                epilogue.anchors == StemSeBlock.anchors,
                f"the epilogue must have the steps {', '.join(StemSeBlock.anchors)}, in order",
            )
            or require(
                not epilogue.accesses_tensors_early, "steps before the identity is added must not read or write tensors"
            )
            or block.why_illegal(config, arch, dtype, Epilogue(SeBlock.anchors))
        )

    def why_unsupported(problem: StemSeBlock) -> str | None:
        return first_unmet(image_rules(problem)) or block.why_unsupported(problem.behind)

    def candidate_values(
        parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: StemSeBlock | None
    ) -> Sequence[Value]:
        if problem and parameter.name == "image":
            return (problem.c,)
        return block.candidate_values(parameter, chosen, arch, dtype, problem.behind if problem else None)

    def why_unfit(problem: StemSeBlock, config: Config, arch: Architecture) -> str | None:
        return require(
            config["image"] == problem.c, f"its images have {config['image']} channels; the problem's have {problem.c}"
        ) or block.why_unfit(problem.behind, config, arch)

    def launches(problem: StemSeBlock, config: Config, arch: Architecture) -> list[Launch]:
        return [{**launch, CHANNELS_LAST.name: 0} for launch in block.launches(problem.behind, config, arch)]

    return Family[StemSeBlock](
        name=name,
        operator=StemSeBlock,
        kind=block.kind,
        template=block.template,
        architectures=block.architectures,
        dtypes=block.dtypes,
        parameters=(*block.parameters, Parameter("image", IMAGE_CHANNELS, "channels of the image")),
        launch_parameters=(*block.launch_parameters, CHANNELS_LAST),
        why_illegal=why_illegal,
        candidate_values=candidate_values,
        why_unsupported=why_unsupported,
        why_unfit=why_unfit,
        launches=launches,
        cost=lambda problem, config, arch: block.cost(problem.behind, config, arch),
        context=lambda config, arch, dtype: {**block.context(config, arch, dtype), "image": config["image"]},
        label=block.label,
        weight_layouts=lambda config: {"weight": "wgmma_patch", **block.weight_layouts(config)},
        compile_seconds=block.compile_seconds,
    )
