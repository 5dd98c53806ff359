"""Normalizations, softmax, resizing and pixel shuffles -> layers. Handlers as in operators.py."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import fx

from autotune.core import ProblemError
from autotune.ir import ConstantSource, Problem
from autotune.ir.operators import DepthToSpace, GroupNorm, LayerNorm, Softmax, Upsample
from fused_resnet.capture.layer_builder import AppliedStep, LayerBuilder, Value
from fused_resnet.capture.lower import Handler, Lowering
from fused_resnet.capture.nodes import arguments, buffer, name_of
from fused_resnet.capture.pointwise import number

_LARGEST_FACTOR = 4096  # largest numerator or denominator of a factor of a resize


def _layer_norm(lowering: Lowering, node: fx.Node) -> bool:
    given = arguments(node)
    x = lowering.view(given["input"], channels=-1)
    if x is None or list(given["normalized_shape"]) != [x.shape[-1]]:
        return False
    return _normalized(lowering, node, lambda sizes: LayerNorm(**sizes), x)


def _group_norm(lowering: Lowering, node: fx.Node) -> bool:
    given = arguments(node)
    x = lowering.view(given["input"], channels=1)
    return x is not None and _normalized(
        lowering, node, lambda sizes: GroupNorm(**sizes, groups=given["num_groups"]), x
    )


def _instance_norm(lowering: Lowering, node: fx.Node) -> bool:
    given = arguments(node)
    x = lowering.view(given["input"], channels=1)
    if x is None or not given["use_input_stats"]:
        return False
    return _normalized(lowering, node, lambda sizes: GroupNorm(**sizes, groups=sizes["c"]), x)


def _normalized(lowering: Lowering, node: fx.Node, make: Callable[[dict[str, Any]], Problem], x: Value) -> bool:
    """Add a normalization, with its weight and bias as steps."""
    given = arguments(node)
    steps = []
    for name, step in (("weight", "scale"), ("bias", "bias")):
        if given[name] is not None:
            constant = lowering.constant(given[name])
            if constant is None:
                return False
            steps.append(AppliedStep(step, (constant.source,)))
    return _of_pixels(lowering, node, make, x, steps, [number(given["eps"])])


def _softmax(lowering: Lowering, node: fx.Node) -> bool:
    given = arguments(node)
    x = lowering.view(given["self"], channels=int(given["dim"]))
    return x is not None and _of_pixels(lowering, node, lambda sizes: Softmax(**sizes), x)


def _pixel_shuffle(lowering: Lowering, node: fx.Node) -> bool:
    given = arguments(node)
    x, block = lowering.value(given["self"]), given["upscale_factor"]
    if x is None or len(x.shape) != 4:
        return False

    def make(sizes: dict[str, Any]) -> Problem:
        return DepthToSpace(**{**sizes, "c": sizes["c"] // block**2}, block=(block, block), inner=1)

    return _of_pixels(lowering, node, make, x)


def _upsample(lowering: Lowering, node: fx.Node) -> bool:
    given = arguments(node)
    x = lowering.value(given.get("input", given.get("self")))
    if x is None or len(x.shape) != 4:
        return False
    corners = bool(given.get("align_corners"))
    mode = {"upsample_nearest2d": "nearest", "_upsample_nearest_exact2d": "nearest_exact"}.get(
        name_of(node), "bilinear_corners" if corners else "bilinear"
    )
    factors = given.get("scale_factors") or (given.get("scales_h"), given.get("scales_w"))
    made = tuple(node.meta["val"].shape[2:])
    rows, columns = (_ratio(*sizes, corners) for sizes in zip(x.shape[2:], made, factors, strict=True))

    def make(sizes: dict[str, Any]) -> Problem:
        problem = Upsample(**sizes, p=made[0], q=made[1], rows=rows, columns=columns, mode=mode)
        if not problem.linear and not _takes_the_same_pixels(node, problem):
            raise ProblemError(f"'{problem}': torch rounds its positions to other pixels")
        return problem

    return _of_pixels(lowering, node, make, x)


def _ratio(size: int, made: int, factor: float | None, corners: bool) -> tuple[int, int]:
    """Return the input pixels for each output pixel along an axis as a fraction, as torch has it."""
    if corners:
        ratio = Fraction(size - 1, made - 1) if made > 1 else Fraction(0)
    elif size == made:
        ratio = Fraction(1)  # torch copies then, whatever the factor
    elif factor:
        ratio = 1 / Fraction(factor).limit_denominator(_LARGEST_FACTOR)
    else:
        ratio = Fraction(size, made)
    return ratio.numerator, ratio.denominator


def _takes_the_same_pixels(node: fx.Node, problem: Upsample) -> bool:
    """Return whether torch, whose positions are rounded to float32, takes the pixels that the problem says."""
    rows, columns = torch.meshgrid(
        *(torch.arange(size, device="cpu") for size in (problem.h, problem.w)), indexing="ij"
    )
    image = torch.stack([rows, columns])[None].float()
    taken = node.target(image, *node.args[1:], **node.kwargs)  # type: ignore[operator]
    return torch.equal(taken.movedim(1, -1), problem.reference({"x": image.movedim(1, -1)}, ()))


def _of_pixels(
    lowering: Lowering,
    node: fx.Node,
    make: Callable[[dict[str, Any]], Problem],
    x: Value,
    steps: list[AppliedStep] | None = None,
    scalars: list[ConstantSource] | None = None,
) -> bool:
    """Add a layer that reads pixels and writes pixels in the same layout.

    Args:
        lowering: The layers so far.
        node: The node.
        make: Makes the problem from the sizes of the input.
        x: The input.
        steps: The first steps of its epilogue.
        scalars: The problem's own scalars.

    Returns:
        False if the problem does not allow these sizes, although torch does.
    """
    if x.pixels is None:
        return False
    n, h, w, c = x.pixels
    try:
        problem = make({"n": n, "h": h, "w": w, "c": c, "dtype": lowering.dtype})
    except ProblemError:
        return False
    builder = LayerBuilder(lowering.name(node), problem, {"x": x.buffer}, scalars=list(scalars or ()), values=[x])
    is_resized = problem.output_shape != (n, h, w, c)
    lowering.add(node, builder, strides=() if is_resized else x.strides)
    return builder.follow(steps or [], buffer(node))


PIXEL_HANDLERS: dict[str, Handler] = {
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "softmax": _softmax,
    "_softmax": _softmax,
    "pixel_shuffle": _pixel_shuffle,
    "upsample_nearest2d": _upsample,
    "_upsample_nearest_exact2d": _upsample,
    "upsample_bilinear2d": _upsample,
}
"""Handler of each operator, by its name in aten."""
