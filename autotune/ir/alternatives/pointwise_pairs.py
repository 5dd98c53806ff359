"""A 1x1 convolution or linear layer and the first one that reads its result, as one layer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from autotune.ir.alternatives.joining import (
    as_convolution,
    fields_of,
    fields_without_epilogue,
    joined_row,
    joint_problem,
)
from autotune.ir.alternatives.wiring import Wiring
from autotune.ir.network import Alternative, Layer, is_output
from autotune.ir.operators import Conv2d, Gemm, PointwisePair

_LEAST_SAVED = 1 / 8
"""Least share of two products' bytes that joining them must save: each alternative takes time from a tune."""


def pointwise_pairs(wiring: Wiring, first: Layer) -> Iterator[Alternative]:
    """Yield both as one layer.

    If others read the result too, such as the sum at the end of a residual block, it is written as well.
    """
    made = first.buffers["y"]
    if is_output(made) or not _is_product(first):
        return
    readers = wiring.readers(made)
    second = next((layer for layer in readers if layer.buffers.get("x") == made and _is_product(layer)), None)
    if second is None or _rows(first) != _rows(second):
        return
    later = wiring.computed_from(made) | set(first.writes) - {made}  # the first product cannot wait for these
    if not later.isdisjoint(second.reads) or list(second.buffers.values()).count(made) > 1:
        return
    keep = len(readers) > 1
    y = first.problem.operands()[2].bytes
    saved = y if keep else 2 * y
    if saved < _LEAST_SAVED * (first.problem.bytes + second.problem.bytes):
        return
    both = _joined(first, second, f"{second.name}.paired", keep)
    if both:
        yield Alternative(both.name, (first.name, second.name), (both,))


def _joined(first: Layer, second: Layer, name: str, keep: bool) -> Layer | None:
    """Return both as one layer, which also writes the tensor between them if `keep`.

    None if one layer cannot have all the tensors, scalars and steps of the two.
    """
    conv, other = as_convolution(first), as_convolution(second)
    product = conv.problem
    if keep:
        stored = joint_problem(Conv2d, (*product.epilogue.names, "store"), **fields_without_epilogue(product))
        if stored is None:
            return None
        buffers = {**conv.buffers, stored.epilogue.arguments[-1].name: conv.buffers["y"]}
        conv = dataclasses.replace(conv, problem=stored, buffers=buffers)
    assert isinstance(product, Conv2d) and isinstance(other.problem, Conv2d)
    sizes = {**fields_of(product, "n h w c dtype"), "hidden": product.k, "k": other.problem.k}
    return joined_row(PointwisePair, (conv, other), name, sizes)


def _is_product(layer: Layer) -> bool:
    """Return whether a layer is a linear layer or a 1x1 convolution without groups, stride or padding.

    Not one in e4m3: how exact the sums of two joined products would be is not known.
    """
    problem = layer.problem
    if problem.dtype not in ("f16", "bf16", "s8") or problem.output_dtype != problem.dtype:
        return False
    return isinstance(problem, Gemm) or (isinstance(problem, Conv2d) and problem.is_product)


def _rows(layer: Layer) -> int:
    """Return the rows of a product: its pixels."""
    return math.prod(layer.problem.output_shape[:-1])
