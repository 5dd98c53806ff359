"""Two convolutions of which one adds the other's result and one is a projection, as one layer."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.ir.alternatives.joining import add_arguments, fields_without_epilogue
from autotune.ir.alternatives.wiring import Wiring
from autotune.ir.byte_formats import BYTE_FORMATS
from autotune.ir.constant_expr import ConstantExpr, ConstantSource
from autotune.ir.epilogue import Epilogue
from autotune.ir.network import Alternative, Layer
from autotune.ir.operators import Conv2d, Conv2dSkip


def projected_skips(wiring: Wiring, first: Layer) -> Iterator[Alternative]:
    """Yield a convolution together with the one that adds its result."""
    adding = wiring.only_reader(first) if _is_convolution(first) else None
    if adding is None or not _is_convolution(adding) or adding.buffers["x"] == first.buffers["y"]:
        return
    for conv, project in ((adding, first), (first, adding)):
        both = _joined(conv, project, adding, f"{adding.name}.projected")
        if both:
            yield Alternative(both.name, (first.name, adding.name), (both,))
            return  # both may be projections


def _is_convolution(layer: Layer) -> bool:
    """Return whether a layer is a convolution in 16 or 8 bits, with a result in the same dtype."""
    problem = layer.problem
    in_dtype = problem.dtype in ("f16", "bf16", *BYTE_FORMATS) and problem.output_dtype == problem.dtype
    return isinstance(problem, Conv2d) and in_dtype


def _joined(conv: Layer, project: Layer, adding: Layer, name: str) -> Layer | None:
    """Return two convolutions whose results are added as one layer, without the result of either.

    None unless both have no step but biases before the sum, and in bytes a scale before these, and `project` is a 1x1
    convolution without padding. In bytes the result is closer to the exact one: the sum is rounded once. A step
    `mul_scalar` behind the sum becomes a factor of scales and bias there.

    Args:
        conv: The first.
        project: The second.
        adding: That of the two whose step `add` adds the other's result; its steps after it are the layer's.
        name: Name of the layer.
    """
    product, skip, whole = conv.problem, project.problem, adding.problem
    assert isinstance(product, Conv2d) and isinstance(skip, Conv2d) and isinstance(whole, Conv2d)
    other = project if adding is conv else conv
    sums = [
        step
        for step in whole.epilogue.steps
        if step.name == "add" and adding.buffers[step.arguments[0].name] == other.buffers["y"]
    ]
    window = (skip.r, skip.s, skip.pad, skip.groups, product.groups)
    if len(sums) != 1 or window != (1, 1, (0, 0), 1, 1) or product.output_shape != skip.output_shape:
        return None
    begins = whole.epilogue.steps.index(sums[0])
    before, after = whole.epilogue.steps[:begins], whole.epilogue.steps[begins + 1 :]
    ahead = [(adding, before), (other, other.problem.epilogue.steps)]
    scales: dict[str, ConstantSource] = {}
    if product.dtype in BYTE_FORMATS:
        if any(not steps or steps[0].name != "scale" for _, steps in ahead):
            return None
        for layer, (first, *_) in ahead:
            scales["scale" if layer is conv else "skip_scale"] = layer.weights[first.arguments[0].name]
        ahead = [(layer, steps[1:]) for layer, steps in ahead]
    biases = [(layer, step) for layer, steps in ahead for step in steps]
    if any(step.name != "bias" for _, step in biases):
        return None
    scalars, factor = adding.scalars, tuple[ConstantSource, ...]()
    if scales and after and after[0].name == "mul_scalar":  # the conversion to the output's scale
        factor, scalars, after = scalars[:1], scalars[1:], after[1:]
        scales = {name: ConstantExpr("product", (scale, *factor)) for name, scale in scales.items()}
    fields = fields_without_epilogue(product)
    chain = Epilogue((*("bias" for _ in biases[:1]), *(step.name for step in after)))
    problem = Conv2dSkip(**fields, skip_h=skip.h, skip_w=skip.w, skip_c=skip.c, skip_stride=skip.stride, epilogue=chain)
    buffers = {"x": conv.buffers["x"], "skip": project.buffers["x"], "y": adding.buffers["y"]}
    weights = {"weight": conv.weights["weight"], "projection": project.weights["weight"], **scales}
    arguments = list(problem.epilogue.arguments)
    if biases:
        values = [layer.weights[step.arguments[0].name] for layer, step in biases]
        bias = values[0] if len(values) == 1 else ConstantExpr("sum", tuple(values))
        weights[arguments.pop(0).name] = ConstantExpr("product", (bias, *factor)) if factor else bias
    kept = [(adding, argument) for step in after for argument in step.arguments]
    add_arguments(kept, arguments, buffers, weights)
    return Layer(name, problem, buffers, weights, scalars)
