"""Patches of the image moved to channels -> a layer, however the model spells that. Handlers as in operators.py."""

from __future__ import annotations

import math

import torch
from torch import fx

from autotune.core import ProblemError
from autotune.ir import DTYPES, ConstantExpr, ConstantSource, input_name
from autotune.ir.operators import SpaceToDepth
from fused_resnet.capture.layer_builder import LayerBuilder, Value
from fused_resnet.capture.layout import RESHAPES, VIEWS
from fused_resnet.capture.lower import Handler, Lowering
from fused_resnet.capture.nodes import arguments, buffer, name_of

_MOVES = VIEWS | {"pixel_unshuffle", "im2col"}
"""Operators that only move elements, of which a model makes patches."""

_MOST_ELEMENTS = 2**24
"""Largest image whose elements float32 can number; im2col takes no integers."""


def _patches(lowering: Lowering, node: fx.Node) -> bool:
    """Add a layer for a node that moves each block x block patch of the network's input to channels."""
    moves = [node]
    while isinstance(before := moves[-1].args[0], fx.Node) and name_of(before) in _MOVES:
        moves.append(before)
    if not isinstance(before, fx.Node) or before not in lowering.inputs:
        return False
    problem = _problem(lowering, before, node)
    if problem is None:
        return False
    order = _channel_order(problem, moves[::-1])
    if order is None or (order != sorted(order) and not _feeds_products(lowering, node, problem.output_shape[-1])):
        return False
    pixels, channels = math.prod(problem.output_shape[1:3]), problem.output_shape[3]
    strides = () if node.meta["val"].dim() == 4 else (pixels * channels, 1, channels)
    image = input_name(lowering.inputs.index(before))
    lowering.add(node, LayerBuilder(lowering.name(node), problem, {"x": image}), strides=strides)
    if order != sorted(order):
        lowering.channel_orders[buffer(node)] = tuple(order)
    return True


def reordered(lowering: Lowering, x: Value, weight: ConstantSource) -> ConstantSource:
    """Return the weight (k, c, r, s) of a convolution for the order that the channels of its input have."""
    order = lowering.channel_orders.get(x.buffer)
    return ConstantExpr("put_inputs", (weight,), order) if order else weight


def _problem(lowering: Lowering, image: fx.Node, node: fx.Node) -> SpaceToDepth | None:
    """Return the conversion whose result has the shape of a node's; None if there is none."""
    sizes, made = tuple(image.meta["val"].shape), tuple(node.meta["val"].shape)
    if len(sizes) != 4 or len(made) not in (3, 4) or image.meta["val"].dtype != DTYPES[lowering.dtype]:
        return None
    n, c, h, w = sizes
    block = math.isqrt(made[1] // c)
    if block < 2 or made != (n, block**2 * c, *((h // block, w // block) if len(made) == 4 else (h * w // block**2,))):
        return None
    try:
        return SpaceToDepth(n=n, h=h, w=w, c=c, block=block, dtype=lowering.dtype)
    except ProblemError:
        return None


def _channel_order(problem: SpaceToDepth, moves: list[fx.Node]) -> list[int] | None:
    """Return which channel of the problem's result each channel of the last node is; None if they differ otherwise."""
    n, p, q, channels = problem.output_shape
    c, h, w = problem.c, problem.h, problem.w
    if c * h * w > _MOST_ELEMENTS:
        return None
    image = torch.arange(c * h * w, dtype=torch.float32, device="cpu").view(1, c, h, w).repeat(n, 1, 1, 1)
    expected = problem.reference({"x": image}, ())
    for node in moves:
        # A trace leaves out copies, so that what it views may not be contiguous.
        move = torch.reshape if name_of(node) in ("view", "_unsafe_view") else node.target
        image = move(image, *node.args[1:], **node.kwargs)  # type: ignore[operator,arg-type]
    found = image.reshape(n, channels, p, q).movedim(1, -1)
    places = {value: i for i, value in enumerate(expected[0, 0, 0].tolist())}
    order = [places.get(value, 0) for value in found[0, 0, 0].tolist()]
    return order if torch.equal(found, expected[..., order]) else None


def _feeds_products(lowering: Lowering, node: fx.Node, channels: int) -> bool:
    """Return whether only 1x1 convolutions read a node, whose filters can take channels in any order."""
    for user in lowering.users(node):
        given = arguments(user) if name_of(user) in ("conv2d", "convolution") else {}
        weight = lowering.constant(given.get("weight"))
        if weight is None or weight.shape[1:] != (channels, 1, 1):
            return False
    return True


PATCH_HANDLERS: dict[str, Handler] = dict.fromkeys((*RESHAPES, "pixel_unshuffle", "im2col"), _patches)
"""Handler of each operator whose result may be patches, by its name in aten."""
