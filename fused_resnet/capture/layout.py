"""Layouts of activations: in which order the elements of a tensor of torch lie in its buffer.

A buffer is contiguous. Tensors of four dimensions are usually channels last in it, and others in torch's own order:
their strides are `usual_strides`. A view, such as `x.permute(0, 2, 3, 1)`, has the same buffer and other strides.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from fused_resnet.capture.nodes import name_of

RESHAPES = {"view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze"}
"""Operators that may need a copy where their input's layout is not torch's own."""
PERMUTATIONS = {"permute", "transpose", "movedim", "moveaxis", "swapaxes", "swapdims", "t", "numpy_T"}
VIEWS = RESHAPES | PERMUTATIONS


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a tensor in torch's own order."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def usual_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of an activation as most layers read and write it: channels last if it is 4-d."""
    if len(shape) != 4:
        return contiguous_strides(shape)
    n, h, w, c = contiguous_strides((shape[0], *shape[2:], shape[1]))
    return (n, c, h, w)


def same_layout(shape: tuple[int, ...], strides: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Return whether two strides place the elements of a shape alike; those of axes of one element do not matter."""
    return all(a == b for extent, a, b in zip(shape, strides, others, strict=True) if extent > 1)


def view_strides(node: fx.Node, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the strides of the result of one of VIEWS in its argument's buffer; None if torch has to copy.

    Args:
        node: The node.
        shape: Shape of its first argument.
        strides: Strides of its first argument in its buffer.
    """
    source = torch.empty_strided(shape, strides, device="meta")
    if name_of(node) in PERMUTATIONS:
        return tuple(node.target(source, *node.args[1:], **node.kwargs).stride())  # type: ignore[operator]
    try:
        return tuple(source.view(node.meta["val"].shape).stride())
    except RuntimeError:  # torch finds no strides: the elements would have to move
        return None
