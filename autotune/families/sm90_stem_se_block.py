"""A network's first layer and the residual block behind it in one kernel for Hopper; fp16 and bf16.

It is the kernel of sm90_se_block with another beginning: templates/sm90/block_stem.cuh says how that works. So what is
said there of the block holds here of the block behind the stem.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.arch import Architecture
from autotune.epilogue import Epilogue
from autotune.families import sm90_se_block
from autotune.families.base import CHANNELS_LAST, DEVICE_IMAGE, Config, Family, Launch, Parameter, Value
from autotune.problem import Problem, SeBlock, StemSeBlock

_BLOCK = sm90_se_block.FAMILY
_PATCH = 4  # pixels of a side: a thread reads a line of them at once
_IMAGES = (1, 2, 3, 4)


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    if epilogue.places != StemSeBlock.places:
        return "an epilogue without the places of a stem and a block"
    if epilogue.at_pixels_early:
        return "steps before the identity is added that read or write tensors"
    return _BLOCK.legal(config, arch, dtype, Epilogue(SeBlock.places))


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, StemSeBlock)
    return next((why for beyond, why in _limits(problem) if beyond), _BLOCK.supports(problem.behind))


def _limits(problem: StemSeBlock) -> Iterator[tuple[bool, str]]:
    yield problem.block != _PATCH, f"block must be {_PATCH}"
    yield problem.c not in _IMAGES, f"images of {', '.join(map(str, _IMAGES))} channels"


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> Sequence[Value]:
    if isinstance(problem, StemSeBlock) and parameter.name == "image":
        return (problem.c,)
    behind = problem.behind if isinstance(problem, StemSeBlock) else None
    return _BLOCK.values(parameter, chosen, arch, dtype, behind)


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, StemSeBlock)
    if config["image"] != problem.c:
        return f"its images have {config['image']} channels"
    return _BLOCK.fits(problem.behind, config, arch)


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    assert isinstance(problem, StemSeBlock)
    return [{**launch, CHANNELS_LAST.name: 0} for launch in _BLOCK.launches(problem.behind, config, arch)]


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    assert isinstance(problem, StemSeBlock)
    return _BLOCK.cost(problem.behind, config, arch)


def _context(config: Config, arch: Architecture, dtype: str) -> dict[str, object]:
    return {**_BLOCK.context(config, arch, dtype), "image": config["image"]}


FAMILY = Family(
    name="sm90_stem_se_block",
    operator=StemSeBlock,
    kind=DEVICE_IMAGE,
    template=_BLOCK.template,
    architectures=_BLOCK.architectures,
    dtypes=_BLOCK.dtypes,
    parameters=(*_BLOCK.parameters, Parameter("image", _IMAGES, "channels of the image")),
    launch_parameters=(*_BLOCK.launch_parameters, CHANNELS_LAST),
    legal=_legal,
    values=_values,
    supports=_supports,
    fits=_fits,
    launches=_launches,
    cost=_cost,
    context=_context,
    label=_BLOCK.label,
    weight_layouts=lambda config: {"weight": "wgmma_patch", **_BLOCK.weight_layouts(config)},
    compile_seconds=_BLOCK.compile_seconds,
)
