"""A 1x1 convolution and the depthwise one after it, also with the 1x1 one after both, as one layer."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.ir.alternatives.joining import fields_of, joined_row
from autotune.ir.alternatives.wiring import Wiring
from autotune.ir.network import Alternative, Layer
from autotune.ir.operators import Conv2d, ExpandDepthwise, InvertedResidual


def inverted_residuals(wiring: Wiring, expand: Layer) -> Iterator[Alternative]:
    """Yield the two and the three convolutions as one layer, without the tensors between them."""
    product = expand.problem
    if not isinstance(product, Conv2d) or not product.is_product or product.dtype not in ("f16", "bf16"):
        return
    depthwise = wiring.successor(expand)
    if depthwise is None or not isinstance(depthwise.problem, Conv2d) or product.epilogue.accesses_tensors:
        return
    conv = depthwise.problem
    if not conv.groups == conv.c == conv.k > 1 or conv.dilation != (1, 1):
        return
    sizes = {**fields_of(product, "n h w c dtype"), **fields_of(conv, "r s stride pad")}
    two = (expand, depthwise)
    both = joined_row(ExpandDepthwise, two, f"{depthwise.name}.expanded", {**sizes, "k": product.k})
    if both:
        yield Alternative(both.name, (expand.name, depthwise.name), (both,))
    project = wiring.successor(depthwise)
    if project is None or not isinstance(project.problem, Conv2d) or conv.epilogue.accesses_tensors:
        return
    if project.problem.is_product:
        sizes |= {"hidden": product.k, "k": project.problem.k}
        block = joined_row(InvertedResidual, (*two, project), f"{project.name}.inverted", sizes)
        if block:
            yield Alternative(block.name, (expand.name, depthwise.name, project.name), (block,))
