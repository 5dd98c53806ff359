"""Alternatives: other ways to compute some layers of a captured network, which the tuner may find faster."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from autotune.ir import (
    Alternative,
    ConstantExpr,
    Epilogue,
    Layer,
    fuse_cast,
)
from autotune.ir.alternatives import patch_stems, se_blocks
from autotune.ir.alternatives.concat_products import concat_products
from autotune.ir.alternatives.conv_pairs import conv_pairs
from autotune.ir.alternatives.gated_convolutions import gated_convolutions
from autotune.ir.alternatives.gated_products import gated_products
from autotune.ir.alternatives.inverted_residuals import inverted_residuals
from autotune.ir.alternatives.pointwise_pairs import pointwise_pairs
from autotune.ir.alternatives.pooled_projection import pooled_projection
from autotune.ir.alternatives.projected_skips import projected_skips
from autotune.ir.alternatives.wiring import Wiring
from autotune.ir.operators import (
    Cast,
    Conv2d,
    Conv2dDgrad,
    DepthToSpace,
    MaxPool2d,
    Stem,
    ToChannelsLast,
)

T = TypeVar("T")


_RISING = {"bias", "add_scalar", "relu", "relu6", "clamp", "sigmoid", "tanh", "hardsigmoid"}
"""Steps that never decrease: max(step(x)) = step(max(x)), so they commute with a max pool."""
_PADDED = (4, 8)
"""Numbers of channels to which the image is padded, so that kernels can read it in wider accesses."""
_MERGED = (32, 64)
"""Channels of a merged group: they fill a tensor-core instruction, so the products with zeros cost little."""


def alternatives(layers: Sequence[Layer]) -> tuple[Alternative, ...]:
    """Return all alternatives to some of the layers."""
    found: list[Alternative] = []
    wiring = Wiring(layers)
    for layer in layers:
        found += _merged_groups(layer)
        found += _shuffled_product(layer)
        found += pointwise_pairs(wiring, layer)
        found += projected_skips(wiring, layer)
        found += inverted_residuals(wiring, layer)
        found += conv_pairs(wiring, layer)
        found += concat_products(wiring, layer)
        found += pooled_projection(wiring, layer)
        found += gated_products(wiring, layer)
        found += gated_convolutions(wiring, layer)
        reader = wiring.successor(layer)
        if reader is None:
            continue
        match (layer.problem, reader.problem):
            case (ToChannelsLast(), Conv2d()) if not layer.problem.epilogue.names:
                found += list(_first_layers(wiring, layer, reader))
    blocks = list(se_blocks(wiring))
    return (*found, *blocks, *patch_stems(wiring, blocks))


def _merged_groups(conv: Layer) -> Iterator[Alternative]:
    """Yield a grouped convolution with several of its groups of few channels merged into one."""
    problem = conv.problem
    if not isinstance(problem, Conv2d) or problem.groups == 1 or problem.dtype not in ("f16", "bf16"):
        return
    least = min(problem.c, problem.k) // problem.groups
    for width in (width for width in _MERGED if least > 1):
        merged, rest = divmod(width, least)
        if merged > 1 and rest == 0 and problem.groups % merged == 0:
            weight = ConstantExpr("merge_groups", (conv.weights["weight"],), (problem.groups, merged))
            fewer = dataclasses.replace(
                conv,
                name=f"{conv.name}.g{problem.groups // merged}",
                problem=dataclasses.replace(problem, groups=problem.groups // merged),
                weights={**conv.weights, "weight": weight},
            )
            yield Alternative(fewer.name, (conv.name,), (fewer,))


def _shuffled_product(conv: Layer) -> Iterator[Alternative]:
    """Yield a transposed convolution whose windows do not overlap as a product and the move of its channels to pixels.

    The product has the steps of neither; depth_to_space has the whole chain.
    """
    problem = conv.problem
    if not isinstance(problem, Conv2dDgrad) or problem.groups != 1:
        return
    if problem.pad != (0, 0) or problem.dilation != (1, 1):
        return
    n, p, q, c, block = problem.n, problem.p, problem.q, problem.c, (problem.r, problem.s)
    if block == (1, 1) or problem.stride != block or (problem.h, problem.w) != (p * block[0], q * block[1]):
        return
    product = Layer(
        name=f"{conv.name}.product",
        problem=Conv2d(n=n, h=p, w=q, c=problem.k, k=block[0] * block[1] * c, dtype=problem.dtype),
        buffers={"x": conv.buffers["dy"], "y": f"{conv.buffers['dy']}.{conv.name}.product"},
        weights={"weight": ConstantExpr("depth_rows", (conv.weights["weight"],))},
    )
    shuffle = dataclasses.replace(
        conv,
        name=f"{conv.name}.shuffle",
        problem=DepthToSpace(n=n, h=p, w=q, c=c, block=block, dtype=problem.dtype, epilogue=problem.epilogue),
        buffers={**_without(conv.buffers, "dy"), "x": product.buffers["y"]},
        weights=_without(conv.weights, "weight"),
    )
    yield Alternative(shuffle.name, (conv.name,), (product, shuffle))


def _without(mapping: Mapping[str, T], name: str) -> dict[str, T]:
    return {key: value for key, value in mapping.items() if key != name}


def _first_layers(wiring: Wiring, image: Layer, conv: Layer) -> Iterator[Alternative]:
    """Yield ways to compute a convolution of the caller's image.

    With padded channels; reading NCHW itself; and together with the max pool after it.
    """
    problem, entry = conv.problem, image.problem
    assert isinstance(problem, Conv2d) and isinstance(entry, ToChannelsLast)
    if problem.groups != 1:
        return
    both = (image.name, conv.name)
    for c in (c for c in _PADDED if c > problem.c):
        filled = dataclasses.replace(image, name=f"{image.name}.c{c}", problem=dataclasses.replace(entry, to=c))
        filled = dataclasses.replace(filled, buffers={**image.buffers, "y": f"{image.buffers['y']}.c{c}"})
        wide = dataclasses.replace(
            conv,
            name=f"{conv.name}.c{c}",
            problem=dataclasses.replace(problem, c=c),
            buffers={**conv.buffers, "x": filled.buffers["y"]},
            weights={**conv.weights, "weight": ConstantExpr("pad_inputs", (conv.weights["weight"],), (c,))},
        )
        yield Alternative(wide.name, both, (filled, wide))
    if problem.dilation != (1, 1):
        return
    sizes = {name: getattr(problem, name) for name in ("n", "h", "w", "c", "k", "r", "s", "stride", "pad", "dtype")}
    stem = Stem(**sizes, epilogue=problem.epilogue)
    whole = dataclasses.replace(
        conv,
        name=f"{conv.name}.stem",
        problem=stem,
        buffers={**conv.buffers, "x": image.buffers["x"]},
    )
    yield Alternative(whole.name, both, (whole,))
    yield from _with_cast(wiring, whole, conv, both)
    pool = _max_pool_after(wiring, conv)
    if pool:
        assert isinstance(pool.problem, MaxPool2d)
        r, stride, pad = pool.problem.r, pool.problem.stride[0], pool.problem.pad[0]
        pooled = dataclasses.replace(
            whole,
            name=f"{conv.name}.stem_pool",
            problem=dataclasses.replace(stem, pool=r, pool_stride=stride, pool_pad=pad),
            buffers={**whole.buffers, "y": pool.buffers["y"]},
        )
        if pooled.problem.output_shape == pool.problem.output_shape:
            yield Alternative(pooled.name, (*both, pool.name), (pooled,))
            yield from _with_cast(wiring, pooled, pool, (*both, pool.name))


def _with_cast(wiring: Wiring, stem: Layer, last: Layer, replaced: tuple[str, ...]) -> Iterator[Alternative]:
    """Yield a stem together with the cast that alone reads its result.

    Args:
        wiring: All layers.
        stem: The stem.
        last: The layer whose result the stem computes.
        replaced: The layers in whose place the stem stands.
    """
    cast = wiring.successor(last)
    if cast is None or not isinstance(cast.problem, Cast):
        return
    both = fuse_cast(stem, cast, f"{stem.name}.{cast.problem.result}")
    if both:
        yield Alternative(both.name, (*replaced, cast.name), (both,))


def _max_pool_after(wiring: Wiring, conv: Layer) -> Layer | None:
    """Return the square max pool that alone reads a convolution's result, if it commutes with the epilogue."""
    reader = wiring.successor(conv)
    if reader is None or not set(conv.problem.epilogue.names) <= _RISING:
        return None
    pool = reader.problem
    square = isinstance(pool, MaxPool2d) and (pool.r, *pool.stride, *pool.pad) == (
        *(pool.s, pool.stride[0], pool.stride[0]),
        *(pool.pad[0], pool.pad[0]),
    )
    return reader if square and pool.epilogue == Epilogue() else None
