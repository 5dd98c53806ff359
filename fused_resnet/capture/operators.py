"""Operators with problems of their own -> layers. A handler returns False for a node that is not such a problem."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from torch import fx

from autotune.core import ProblemError
from autotune.ir import ConstantExpr, ConstantSource, Problem
from autotune.ir.operators import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    ClippedAvgPool2d,
    Conv2d,
    Conv2dDgrad,
    Gemm,
    GlobalAvgPool2d,
    MaxPool2d,
    stored_shape,
)
from fused_resnet.capture.layer_builder import AppliedStep, LayerBuilder, Value
from fused_resnet.capture.lower import Lowering
from fused_resnet.capture.nodes import arguments, buffer, name_of
from fused_resnet.capture.patches import PATCH_HANDLERS, reordered
from fused_resnet.capture.pixel_operators import PIXEL_HANDLERS
from fused_resnet.capture.squeeze_excite import squeeze_excite
from fused_resnet.torch_arguments import pair


def _conv2d(lowering: Lowering, node: fx.Node) -> bool:
    given = arguments(node)
    if given.get("transposed"):
        return _conv_transpose2d(lowering, node)
    x, weight = lowering.value(given["input"]), lowering.constant(given["weight"])
    if x is None or weight is None or len(x.shape) != 4:
        return False
    k, _, r, s = weight.shape
    dilation = pair(given["dilation"])
    pad = given["padding"]
    if isinstance(pad, str):
        whole = [d * (extent - 1) if pad == "same" else 0 for d, extent in zip(dilation, (r, s), strict=True)]
        if any(extent % 2 for extent in whole):
            return False
        pad = [extent // 2 for extent in whole]
    n, h, w, c = stored_shape(x.shape)

    def problem() -> Problem:
        return Conv2d(
            n=n, h=h, w=w, c=c, k=k, r=r, s=s, stride=pair(given["stride"]), pad=pair(pad), dilation=dilation,
            groups=given["groups"], dtype=lowering.dtype,
        )  # fmt: skip

    return _product(lowering, node, problem, x, reordered(lowering, x, weight.source), given["bias"])


def _conv_transpose2d(lowering: Lowering, node: fx.Node) -> bool:
    """Add a transposed convolution: the input gradient of a convolution with the same weight (k, c, r, s)."""
    given = arguments(node)
    x, weight = lowering.value(given["input"]), lowering.constant(given["weight"])
    if x is None or weight is None or len(x.shape) != 4:
        return False
    n, p, q, k = stored_shape(x.shape)
    _, group_c, r, s = weight.shape
    h, w = node.meta["val"].shape[2:]

    def problem() -> Problem:
        made = Conv2dDgrad(
            n=n, h=h, w=w, c=group_c * given["groups"], k=k, r=r, s=s, stride=pair(given["stride"]),
            pad=pair(given["padding"]), dilation=pair(given["dilation"]), groups=given["groups"],
            dtype=lowering.dtype,
        )  # fmt: skip
        if (made.p, made.q) != (p, q):
            raise ProblemError(f"'{made}': the output padding is as large as the stride")
        return made

    return _product(lowering, node, problem, x, weight.source, given["bias"], operand="dy")


def _linear(lowering: Lowering, node: fx.Node) -> bool:
    given = arguments(node)
    weight, flat = lowering.constant(given["weight"]), given["input"]
    x, source = lowering.view(flat, channels=-1), weight.source if weight else ""
    if image := _flattened(lowering, flat):
        x, (_, c, h, w) = image, image.shape
        source = ConstantExpr("columns_last", (source,), (c, h, w))
    if x is None or weight is None or x.pixels is None:
        return False
    n, k = weight.shape
    # The rows of the result lie in the order of the input's, each with n elements instead of k.
    strides = () if image else (*(stride // k * n for stride in x.layout[:-1]), 1)

    def problem() -> Problem:
        return Gemm(m=prod(x.shape) // k, n=n, k=k, dtype=lowering.dtype)

    return _product(lowering, node, problem, x, source, given["bias"], strides=strides)


def _flattened(lowering: Lowering, node: fx.Node) -> Value | None:
    """Return the image (n, c, h, w) if a node is the image flattened to (n, c*h*w)."""
    made, shape = lowering.origin(node), tuple(node.meta["val"].shape)
    image = lowering.value(made.args[0]) if name_of(made) in ("view", "reshape", "flatten") else None
    fits = image and len(image.shape) == 4 and len(shape) == 2 and image.shape[0] == shape[0]
    return image if fits else None


def _product(
    lowering: Lowering,
    node: fx.Node,
    problem: Callable[[], Problem],
    x: Value,
    weight: ConstantSource,
    bias: Any,
    *,
    operand: str = "x",
    strides: tuple[int, ...] = (),
) -> bool:
    """Add a layer with a weight and, as its first step, a bias.

    Args:
        lowering: The layers so far.
        node: The node.
        problem: Makes the problem.
        x: The input.
        weight: The weight.
        bias: The node's argument for the bias.
        operand: Name of the input among the problem's operands.
        strides: Strides of the result, as in Value.
    """
    added = lowering.constant(bias)
    if bias is not None and added is None:
        return False
    made = _tried(problem)
    if made is None:
        return False
    builder = LayerBuilder(lowering.name(node), made, {operand: x.buffer}, {"weight": weight}, values=[x])
    lowering.add(node, builder, strides=strides)
    return added is None or builder.follow([AppliedStep("bias", (added.source,))], buffer(node))


def _max_pool2d(lowering: Lowering, node: fx.Node) -> bool:
    given = arguments(node)
    if pair(given["dilation"]) != (1, 1):
        return False
    return _pool(lowering, node, lambda sizes: MaxPool2d(**sizes, ceil=int(given["ceil_mode"])))


def _avg_pool2d(lowering: Lowering, node: fx.Node) -> bool:
    given = arguments(node)
    x = lowering.value(given["self"])
    uneven = given["ceil_mode"] and x and tuple(node.meta["val"].shape[2:]) != _floored(given, x.shape)
    padded, counted = pair(given["padding"]) != (0, 0), given["count_include_pad"]
    if given["divisor_override"] or (uneven and padded and counted):
        return False
    if uneven or (padded and not counted):
        return _pool(lowering, node, lambda sizes: ClippedAvgPool2d(**sizes, ceil=int(given["ceil_mode"])))
    return _pool(lowering, node, lambda sizes: AvgPool2d(**sizes))


def _floored(given: dict[str, Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return height and width of a pool's output without ceil_mode."""
    kernel, pad = pair(given["kernel_size"]), pair(given["padding"])
    stride = pair(given["stride"] or kernel)
    sizes = zip(shape[2:], kernel, stride, pad, strict=True)
    return tuple((size + 2 * p - k) // step + 1 for size, k, step, p in sizes)


def _pool(lowering: Lowering, node: fx.Node, make: Callable[[dict[str, Any]], Problem]) -> bool:
    given = arguments(node)
    kernel = pair(given["kernel_size"])
    window = {
        "r": kernel[0],
        "s": kernel[1],
        "stride": pair(given["stride"] or kernel),
        "pad": pair(given["padding"]),
    }
    return _of_image(lowering, node, lambda sizes: make({**sizes, **window}))


def _adaptive_avg_pool2d(lowering: Lowering, node: fx.Node) -> bool:
    given = arguments(node)
    x, (p, q) = lowering.value(given["self"]), pair(given["output_size"])
    if x is None or len(x.shape) != 4:
        return False
    h, w = x.shape[2:]
    if (p, q) == (1, 1):
        return _of_image(lowering, node, lambda sizes: GlobalAvgPool2d(**sizes))
    if h % p or w % q:
        return _of_image(lowering, node, lambda sizes: AdaptiveAvgPool2d(**sizes, p=p, q=q))
    window = (h // p, w // q)
    return _of_image(lowering, node, lambda sizes: AvgPool2d(**sizes, r=window[0], s=window[1], stride=window))


def _mean(lowering: Lowering, node: fx.Node) -> bool:
    axes = node.args[1] if len(node.args) > 1 else None
    if not isinstance(axes, list | tuple) or sorted(int(axis) % 4 for axis in axes) != [2, 3]:
        return False
    return _of_image(lowering, node, lambda sizes: GlobalAvgPool2d(**sizes))


def _of_image(lowering: Lowering, node: fx.Node, make: Callable[[dict[str, Any]], Problem]) -> bool:
    """Add a layer that reads one image and has no weights."""
    x = lowering.value(node.args[0])
    if x is None or len(x.shape) != 4:
        return False
    n, h, w, c = stored_shape(x.shape)
    problem = _tried(lambda: make({"n": n, "h": h, "w": w, "c": c, "dtype": lowering.dtype}))
    if problem is None:
        return False
    lowering.add(node, LayerBuilder(lowering.name(node), problem, {"x": x.buffer}, values=[x]))
    return True


def _tried(make: Callable[[], Problem]) -> Problem | None:
    """Return a problem; None for sizes that the problem does not allow, although torch does."""
    try:
        return make()
    except ProblemError:
        return None


HANDLERS: dict[str, Callable[[Lowering, fx.Node], bool]] = {
    "conv2d": _conv2d,
    "convolution": _conv2d,
    "conv_transpose2d": _conv_transpose2d,
    "linear": _linear,
    "max_pool2d": _max_pool2d,
    "avg_pool2d": _avg_pool2d,
    "adaptive_avg_pool2d": _adaptive_avg_pool2d,
    "mean": _mean,
    "mul": squeeze_excite,
    **PIXEL_HANDLERS,
    **PATCH_HANDLERS,
}
"""Handler of each operator, by its name in aten."""
