"""A concatenation and the 1x1 convolution after it, as one layer that reads the pieces."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.ir.alternatives.joining import fields_of, joined, joint_problem
from autotune.ir.alternatives.wiring import Wiring
from autotune.ir.network import Alternative, Layer
from autotune.ir.operators import Concat, ConcatConv2d, Conv2d


def concat_products(wiring: Wiring, concat: Layer) -> Iterator[Alternative]:
    """Yield both as one layer: the steps of the concatenation become steps before the convolution."""
    made = concat.problem
    if not isinstance(made, Concat) or made.interleave != 1 or "store" in made.epilogue.names:
        return
    conv = wiring.successor(concat)
    if conv is None or not isinstance(conv.problem, Conv2d):
        return
    product = conv.problem
    if not product.is_product or product.dtype not in ("f16", "bf16"):
        return
    names = (*made.epilogue.names, "conv", *product.epilogue.names)
    problem = joint_problem(ConcatConv2d, names, **fields_of(product, "n h w k dtype"), pieces=made.pieces)
    buffers = {f"x{i}": concat.buffers[f"x{i}"] for i in range(len(made.pieces))} | {"y": conv.buffers["y"]}
    both = joined(problem, (concat, conv), f"{conv.name}.concat", buffers, {"weight": conv.weights["weight"]})
    if both:
        yield Alternative(both.name, (concat.name, conv.name), (both,))
