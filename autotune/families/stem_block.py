"""What families of a network's first layer and the residual block behind it share: a block with another beginning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from autotune.core import Architecture
from autotune.families.base import CHANNELS_LAST, Config, Family, Launch, Parameter, Value
from autotune.ir import Epilogue, Problem, SeBlock, StemSeBlock

_PATCH = 4  # pixels of a side: a thread reads a line of them at once
_IMAGES = (1, 2, 3, 4)


def with_stem(block: Family, name: str) -> Family:
    """The family of a block's kernels that read the network's image; block: a family of se_block."""

    def behind(problem: Problem) -> SeBlock:
        assert isinstance(problem, StemSeBlock)
        return problem.behind

    def legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
        if epilogue.anchors != StemSeBlock.anchors:
            return "an epilogue without the places of a stem and a block"
        if epilogue.accesses_tensors_early:
            return "steps before the identity is added that read or write tensors"
        return block.legal(config, arch, dtype, Epilogue(SeBlock.anchors))

    def supports(problem: Problem) -> str | None:
        return next((why for beyond, why in _limits(problem) if beyond), block.supports(behind(problem)))

    def values(
        parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
    ) -> Sequence[Value]:
        if isinstance(problem, StemSeBlock) and parameter.name == "image":
            return (problem.c,)
        return block.values(parameter, chosen, arch, dtype, behind(problem) if problem else None)

    def fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
        assert isinstance(problem, StemSeBlock)
        if config["image"] != problem.c:
            return f"its images have {config['image']} channels"
        return block.fits(problem.behind, config, arch)

    def launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
        return [{**launch, CHANNELS_LAST.name: 0} for launch in block.launches(behind(problem), config, arch)]

    return replace(
        block,
        name=name,
        operator=StemSeBlock,
        parameters=(*block.parameters, Parameter("image", _IMAGES, "channels of the image")),
        launch_parameters=(*block.launch_parameters, CHANNELS_LAST),
        legal=legal,
        values=values,
        supports=supports,
        fits=fits,
        launches=launches,
        cost=lambda problem, config, arch: block.cost(behind(problem), config, arch),
        context=lambda config, arch, dtype: {**block.context(config, arch, dtype), "image": config["image"]},
        weight_layouts=lambda config: {"weight": "wgmma_patch", **block.weight_layouts(config)},
    )


def _limits(problem: Problem) -> Iterator[tuple[bool, str]]:
    assert isinstance(problem, StemSeBlock)
    yield problem.block != _PATCH, f"block must be {_PATCH}"
    yield problem.c not in _IMAGES, f"images of {', '.join(map(str, _IMAGES))} channels"
