"""Two convolutions in a row, one of which has a window, as one layer that does not write the tensor between them."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.ir.alternatives.joining import fields_of, joined_row
from autotune.ir.alternatives.wiring import Wiring
from autotune.ir.network import Alternative, Layer
from autotune.ir.operators import Conv2d, Conv2dPair

_WINDOWS = ((1, 1), (3, 3))
"""Filters of two convolutions that are taken together."""
_MOST_FILTER_BYTES = 64 * 1024
"""Weights of both. Each thread block reads all of them, and multiplies by mma.sync. On an H200 pairs with 9 to 37 kB
are up to 1.6x faster than their two layers, and pairs with 82 kB are slower (docs/experiments/residual-blocks.md)."""


def conv_pairs(wiring: Wiring, first: Layer) -> Iterator[Alternative]:
    """Yield both as one layer; two 1x1 convolutions are pairs of products (pointwise_pairs.py)."""
    product = first.problem
    if not isinstance(product, Conv2d):
        return
    second = wiring.successor(first)
    if second is None or not isinstance(second.problem, Conv2d):
        return
    conv = second.problem
    dense = all((one.r, one.s) in _WINDOWS and one.groups == 1 and one.dilation == (1, 1) for one in (product, conv))
    halves = product.dtype == product.output_dtype in ("f16", "bf16")
    wide = product.c % 8 == 0 and conv.c % 16 == 0  # the kernels' accesses and products of tensor cores
    if not (dense and halves and wide) or (product.r, conv.r) == (1, 1) or product.epilogue.accesses_tensors:
        return
    filters = sum(operand.bytes for one in (product, conv) for operand in one.operands() if operand.role == "weight")
    if filters > _MOST_FILTER_BYTES:
        return
    sizes = {**fields_of(product, "n h w c dtype"), **fields_of(conv, "k r s stride pad"), "hidden": product.k}
    sizes |= {f"first_{field}": value for field, value in fields_of(product, "r s stride pad").items()}
    both = joined_row(Conv2dPair, (first, second), f"{second.name}.chained", sizes)
    if both:
        yield Alternative(both.name, (first.name, second.name), (both,))
