"""Residual blocks of two 3x3 convolutions with squeeze-and-excitation (Hu et al., arXiv 1709.01507), in fewer layers.

The block as one layer; the second convolution with the gate and with the projection of the skip connection; and, for
images of up to 2x2 pixels, the second convolution as a product with whole images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.ir.alternatives.gated_convolutions import fold_gate, fuse_projection
from autotune.ir.alternatives.joining import add_arguments, fields_of, joint_problem
from autotune.ir.alternatives.whole_images import as_one_pixel, with_whole_images
from autotune.ir.alternatives.wiring import Wiring, common_name
from autotune.ir.network import Alternative, Layer
from autotune.ir.operators import AvgPool2d, Conv2d, SeBlock, SeDownBlock, SeTail

_LEAST_SIDE = 4
"""Least side of the result of a block with a projection as one layer: smaller images have too many channels."""
_DENSE_SIDE = 2
"""Largest side of images that a product takes whole: at 2x2 pixels five of nine taps read padding alone."""


@dataclass(frozen=True)
class SeResidual:
    """A residual block.

    Attributes:
        conv1: The first convolution, 3x3.
        conv2: The second one, 3x3 with stride 1.
        tail: The gate, the addition of the skip connection, and what follows.
        pool: The average pool of the skip connection; None if the skip connection is a tensor as it is.
        project: The 1x1 convolution behind the pool; None likewise.
    """

    conv1: Layer
    conv2: Layer
    tail: Layer
    pool: Layer | None = None
    project: Layer | None = None

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of the block in the order in which they begin."""
        skip = (self.pool, self.project) if self.pool and self.project else ()
        return (self.conv1, *skip, self.conv2, self.tail)


def se_blocks(wiring: Wiring) -> Iterator[Alternative]:
    """Yield the alternatives to the layers of each residual block with squeeze-and-excitation."""
    for layer in wiring.layers:
        block = residual(wiring, layer)
        if block:
            yield from _alternatives(block)


def residual(wiring: Wiring, tail: Layer) -> SeResidual | None:
    """Return the block that ends with a layer; None if there is none."""
    if not isinstance(tail.problem, SeTail) or tail.problem.epilogue.names[:1] != ("add",):
        return None
    conv2 = _before(wiring, tail, "x")
    conv1 = _before(wiring, conv2, "x") if conv2 and _is_3x3(conv2, (1, 1)) else None
    if conv1 is None or conv2 is None or not (_is_3x3(conv1, (1, 1)) or _is_3x3(conv1, (2, 2))):
        return None
    project = _before(wiring, tail, tail.problem.epilogue.arguments[0].name)
    pool = _before(wiring, project, "x") if project and _is_plain_product(project) else None
    if pool and _pools_as(pool, conv1):
        return SeResidual(conv1, conv2, tail, pool, project)
    return SeResidual(conv1, conv2, tail)


def _before(wiring: Wiring, layer: Layer, operand: str) -> Layer | None:
    """Return the layer whose result another one alone reads as an operand; None if there is none."""
    maker = wiring.maker(layer.buffers[operand])
    return maker if maker and wiring.only_reader(maker) is layer else None


def whole(block: SeResidual, name: str) -> Layer | None:
    """Return a block as one layer, which keeps all tensors between input and output on the multiprocessor.

    None if no such layer has its sizes and steps.
    """
    first, tail = block.conv1.problem, block.tail.problem
    assert isinstance(first, Conv2d) and isinstance(tail, SeTail)
    projects = block.project is not None
    sizes = {**fields_of(first, "n h w c dtype"), "hidden": tail.hidden}
    if projects:
        fits = first.stride == (2, 2) and min(tail.h, tail.w) >= _LEAST_SIDE
        sizes["k"] = first.k
    else:
        fits = first.stride == (1, 1) and first.c == first.k
    parts = (block.conv1, block.conv2, block.tail)
    chains = [part.problem.epilogue.names for part in parts]
    last = ("project", *chains[2][1:]) if projects else chains[2]
    kind: type[SeBlock | SeDownBlock] = SeDownBlock if projects else SeBlock
    problem = joint_problem(kind, (*chains[0], "conv", *chains[1], "gate", *last), **sizes) if fits else None
    if problem is None:
        return None
    arguments = [(part, argument) for part in parts for argument in part.problem.epilogue.arguments]
    added = tail.epilogue.steps[0].arguments if projects else ()
    buffers = {"x": block.conv1.buffers["x"], "y": block.tail.buffers["y"]}
    weights = {"weight1": block.conv1.weights["weight"], "weight2": block.conv2.weights["weight"]}
    weights |= {operand: block.tail.weights[operand] for operand in ("w1", "b1", "w2", "b2")}
    if block.project:
        weights["projection"] = block.project.weights["weight"]
    kept = [(part, one) for part, one in arguments if part is not block.tail or one not in added]
    add_arguments(kept, problem.epilogue.arguments, buffers, weights)
    return Layer(name, problem, buffers, weights, tuple(scalar for part in parts for scalar in part.scalars))


def _alternatives(block: SeResidual) -> Iterator[Alternative]:
    conv2, tail, project = block.conv2, block.tail, block.project
    pairs = {"": (conv2, tail)}
    assert isinstance(tail.problem, SeTail)
    if max(tail.problem.h, tail.problem.w) <= _DENSE_SIDE and not conv2.problem.epilogue.accesses_tensors:
        dense = with_whole_images(conv2)
        yield Alternative(dense.name, (conv2.name,), (dense,))
        pairs[".dense"] = as_one_pixel(dense, tail)
    for kind, (product, gate) in pairs.items():
        with_gate = fold_gate(product, gate, f"{conv2.name}{kind}.folded_se")
        if with_gate is None:
            continue
        if kind:  # without it the pair of any convolution and gate
            yield Alternative(with_gate.name, (conv2.name, tail.name), (with_gate,))
        skip = fuse_projection(with_gate, project, f"{conv2.name}{kind}.se_skip") if project else None
        if project and skip:
            yield Alternative(skip.name, (project.name, conv2.name, tail.name), (skip,))
    together = whole(block, common_name([block.conv1, conv2], "block"))
    if together:
        yield Alternative(together.name, tuple(layer.name for layer in block.layers), (together,))


def _is_3x3(layer: Layer, stride: tuple[int, int]) -> bool:
    """Return whether a layer is a 3x3 convolution with padding 1, without groups, that writes one tensor."""
    problem = layer.problem
    if not isinstance(problem, Conv2d) or len(layer.writes) > 1 or problem.output_dtype != problem.dtype:
        return False
    window = (problem.r, problem.s, problem.pad, problem.dilation, problem.groups)
    return problem.stride == stride and window == (3, 3, (1, 1), (1, 1), 1)


def _is_plain_product(layer: Layer) -> bool:
    problem = layer.problem
    plain = isinstance(problem, Conv2d) and problem.is_product
    return plain and not problem.epilogue.names


def _pools_as(pool: Layer, conv: Layer) -> bool:
    """Return whether an average pool reads what a convolution reads, in the same windows."""
    window, product = pool.problem, conv.problem
    if not isinstance(window, AvgPool2d) or window.epilogue.names or pool.buffers["x"] != conv.buffers["x"]:
        return False
    assert isinstance(product, Conv2d)
    return (window.r, window.s, window.stride, window.pad) == (3, 3, product.stride, product.pad)
