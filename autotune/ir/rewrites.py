"""Two layers as one that computes the same, with weights computed from theirs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from autotune.ir.constant_expr import Derived, Source
from autotune.ir.epilogue import Argument, Epilogue
from autotune.ir.problem import AvgPool2d, Conv2d, Conv2dFoldedSe, Conv2dSe, Conv2dSeSkip, Gemm, Problem, SeTail

if TYPE_CHECKING:
    from autotune.ir.network import Layer


def pooled_projection(pool: Layer, conv: Layer, name: str) -> Layer:
    """An average pool and a 1x1 convolution with stride 1 are one convolution of the pool's window."""
    window, product = pool.problem, conv.problem
    assert isinstance(window, AvgPool2d) and isinstance(product, Conv2d)
    sizes = {size: getattr(window, size) for size in ("h", "w", "r", "s", "stride", "pad")}
    weight = Derived("pool_filter", (conv.weights["weight"],), (window.r, window.s))
    return dataclasses.replace(
        conv,
        name=name,
        problem=dataclasses.replace(product, **sizes),
        buffers={**conv.buffers, "x": pool.buffers["x"]},
        weights={**conv.weights, "weight": weight},
    )


def gated(conv: Layer, tail: Layer, name: str) -> Layer:
    """A convolution with the squeeze-and-excitation behind it: what lies between stays on the chip."""
    return _with_gate(conv, tail, name, Conv2dSe, {})


def folded(conv: Layer, tail: Layer, name: str) -> Layer | None:
    """The same, the hidden values from a filter of the convolution's input; None unless what lies between is linear."""
    product = conv.problem
    assert isinstance(product, Conv2d)
    change = _affine(conv)
    if change is None or product.groups > 1:
        return None
    scale, shift = change
    filters = Derived("squeeze_filter", (conv.weights["weight"], tail.weights["w1"], *([scale] if scale else [])))
    bias = tail.weights["b1"]
    if shift:
        bias = Derived("squeeze_bias", (bias, tail.weights["w1"], shift))
    return _with_gate(conv, tail, name, Conv2dFoldedSe, {"w1": filters, "b1": bias})


def of_one_pixel(dense: Layer, tail: Layer) -> tuple[Layer, Layer]:
    """A product with whole images and the squeeze-and-excitation behind it, of images of one pixel with all channels.

    The mean over the pixels is then one over channels, in the tail's first product.
    """
    product, gate = dense.problem, tail.problem
    assert isinstance(product, Gemm) and isinstance(gate, SeTail)
    pixels = gate.h * gate.w
    filters = Derived("as_filter", (dense.weights["weight"],))
    conv = dataclasses.replace(dense, problem=product.as_conv2d, weights={**dense.weights, "weight": filters})
    share = Derived("numbers", (), (1 / pixels,))
    weights = {
        "w1": Derived("scale_rows", (Derived("tile", (tail.weights["w1"],), (1, pixels)), share)),
        "w2": Derived("tile", (tail.weights["w2"],), (pixels, 1)),
        "b2": Derived("tile", (tail.weights["b2"],), (pixels,)),
    }
    flat = dataclasses.replace(gate, h=1, w=1, c=pixels * gate.c)
    return conv, dataclasses.replace(tail, problem=flat, weights={**tail.weights, **weights})


def projected(gate: Layer, project: Layer, name: str) -> Layer | None:
    """A convolution with its gate, and the 1x1 convolution whose result is added right behind it; None if it is not so.

    Where the first is of images as one pixel with all channels (see of_one_pixel), the second is one in groups.
    """
    problem, conv = gate.problem, project.problem
    assert isinstance(problem, Conv2dFoldedSe) and isinstance(conv, Conv2d)
    names = list(problem.epilogue.names)
    behind = names.index("gate") + 1
    added = problem.epilogue.steps[behind].arguments if names[behind : behind + 1] == ["add"] else ()
    plain = conv.is_pointwise and conv.groups == 1 and not conv.epilogue.names
    if not added or gate.buffers[added[0].name] != project.buffers["y"] or not plain:
        return None
    groups = problem.k // conv.k
    skip = Conv2dSeSkip(
        **_sizes(problem),
        skip_c=groups * conv.c,
        skip_groups=groups,
        epilogue=Epilogue((*names[:behind], "project", *names[behind + 1 :])),
    )
    weight = project.weights["weight"]
    tiled = Derived("tile", (weight,), (groups, 1, 1, 1)) if groups > 1 else weight
    own = {argument.name for argument in problem.epilogue.arguments}
    buffers = {key: value for key, value in gate.buffers.items() if key not in own}
    weights = {key: value for key, value in gate.weights.items() if key not in own}
    kept = [argument for argument in problem.epilogue.arguments if argument not in added]
    _rename([(gate, argument) for argument in kept], skip.epilogue, buffers, weights)
    buffers["skip"], weights["projection"] = project.buffers["x"], tiled
    return dataclasses.replace(gate, name=name, problem=skip, buffers=buffers, weights=weights)


def _with_gate(
    conv: Layer, tail: Layer, name: str, kind: type[Conv2dSe | Conv2dFoldedSe], changed: dict[str, Source]
) -> Layer:
    """changed: weights that are not the tail's own."""
    product, gate = conv.problem, tail.problem
    assert isinstance(product, Conv2d) and isinstance(gate, SeTail)
    before, after = product.epilogue, gate.epilogue
    problem = kind(**_sizes(product), hidden=gate.hidden, epilogue=Epilogue((*before.names, "gate", *after.names)))
    old = [*((conv, argument) for argument in before.arguments), *((tail, argument) for argument in after.arguments)]
    buffers = {"x": conv.buffers["x"], "y": tail.buffers["y"]}
    weights = {"weight": conv.weights["weight"], **{key: tail.weights[key] for key in ("w1", "b1", "w2", "b2")}}
    weights |= changed
    _rename(old, problem.epilogue, buffers, weights)
    scalars = (*conv.scalars, *tail.scalars)
    return dataclasses.replace(tail, name=name, problem=problem, buffers=buffers, weights=weights, scalars=scalars)


def _sizes(problem: Problem) -> dict[str, Any]:
    """A problem's fields but for its epilogue."""
    return {f.name: getattr(problem, f.name) for f in dataclasses.fields(problem) if f.name != "epilogue"}


def _rename(
    old: Sequence[tuple[Layer, Argument]], chain: Epilogue, buffers: dict[str, str], weights: dict[str, Source]
) -> None:
    """Add what steps of layers take to the operands of one chain of them: numbered along it, they have other names."""
    for (layer, argument), renamed in zip(old, chain.arguments, strict=True):
        if argument.kind == "vector":
            weights[renamed.name] = layer.weights[argument.name]
        elif argument.kind != "scalar":
            buffers[renamed.name] = layer.buffers[argument.name]


def _affine(layer: Layer) -> tuple[Source | None, Source | None] | None:
    """By what a layer's epilogue multiplies, and what it adds then, if it does nothing else."""
    scale: Source | None = None
    shift: Source | None = None
    for step in layer.problem.epilogue.steps:
        if step.name not in ("bias", "add_scalar", "scale", "mul_scalar"):
            return None
        (argument,) = step.arguments
        value = layer.scalars[argument.index] if argument.kind == "scalar" else layer.weights[argument.name]
        if step.name in ("bias", "add_scalar"):
            shift = Derived("sum", (shift, value)) if shift else value
        else:
            scale = Derived("product", (scale, value)) if scale else value
            shift = Derived("product", (shift, value)) if shift else None
    return scale, shift
