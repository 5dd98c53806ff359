"""Computes means over the pixels of images by kernels, in a graph of aten operators.

The mean of a tensor times a scale, plus a scalar, is that of the tensor, times the scale, plus the scalar. So a kernel
takes the mean of a tensor in memory, and the rest is computed for each image and channel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from autotune.ir.operators import GlobalAvgPool2d
from fused_resnet.training.convolution_passes.passes import dtype_name
from fused_resnet.training.graph_rewrite.kernel_calls import run
from fused_resnet.training.graph_rewrite.nodes import call, erase, is_images, value
from fused_resnet.training.graph_rewrite.pixel_polynomials import CONVERT, Polynomial, combined, polynomial
from fused_resnet.training.kernels.bound_problem import can_solve

MEAN = torch.ops.aten.mean.dim


@dataclass(frozen=True)
class ImageMean:
    """A mean over the pixels of each image in a graph.

    Attributes:
        node: The call that computes it.
        problem: The problem of the mean of `image`.
        image: The tensor in memory.
        averaged: What is averaged, a polynomial of `image`.
    """

    node: fx.Node
    problem: GlobalAvgPool2d
    image: fx.Node
    averaged: Polynomial


def image_means(graph: fx.Graph) -> Iterator[ImageMean]:
    """Yield the means in a graph that kernels can compute."""
    for node in graph.nodes:
        if found := image_mean(node):
            yield found


def image_mean(node: fx.Node) -> ImageMean | None:
    """Return the mean that a node computes; None for another operator, and for what no kernel averages."""
    arguments: Any = node.args
    if node.target != MEAN or node.kwargs or not arguments[1]:
        return None
    x = value(arguments[0])
    if not is_images(x) or {dim % 4 for dim in arguments[1]} != {2, 3} or dtype_name(x) is None:
        return None
    averaged = polynomial(arguments[0], {}, x)
    images = [one for one in averaged or () if one]
    if averaged is None or len(images) != 1 or len(images[0]) != 1:
        return None
    n, c, h, w = x.shape
    problem = GlobalAvgPool2d(n=n, h=h, w=w, c=c, dtype=str(dtype_name(x)))
    return ImageMean(node, problem, images[0][0], averaged)


def replace_mean(found: ImageMean, database: str) -> None:
    """Replace a mean, if the database has a kernel for it."""
    node, graph = found.node, found.node.graph
    if not can_solve(found.problem, database, value(node).device):
        return
    with graph.inserting_before(node):
        mean = run(graph, found.problem, [found.image], database)
        rows = call(graph, torch.ops.aten.reshape.default, (mean, list(value(mean).shape[:2])))
        in_float = call(graph, CONVERT, (rows, torch.float32))
        total = combined(graph, found.averaged, {(found.image,): in_float, (): 1})
        total = call(graph, torch.ops.aten.reshape.default, (total, list(value(node).shape)))
        node.replace_all_uses_with(call(graph, CONVERT, (total, value(node).dtype)))
    erase(node)
