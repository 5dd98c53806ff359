"""A convolution of the caller's image with padded channels, or reading NCHW itself, also with what alone reads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from autotune.ir.alternatives.joining import fields_of, fields_without_epilogue, joined, joint_problem
from autotune.ir.alternatives.wiring import Wiring
from autotune.ir.constant_expr import ConstantExpr
from autotune.ir.epilogue import Epilogue
from autotune.ir.network import Alternative, Layer
from autotune.ir.operators import Cast, Conv2d, MaxPool2d, Stem, StemCast, ToChannelsLast

_RISING = {"bias", "add_scalar", "relu", "relu6", "clamp", "sigmoid", "tanh", "hardsigmoid"}
"""Steps that never decrease: max(step(x)) = step(max(x)), so they commute with a max pool."""
_PADDED = (4, 8)
"""Numbers of channels to which the image is padded, so that kernels can read it in wider accesses."""


def first_layers(wiring: Wiring, image: Layer) -> Iterator[Alternative]:
    """Yield the conversion of an image and the convolution after it with padded channels, and as a stem.

    The stem also together with the cast after it, with the max pool, and with both.
    """
    conv = wiring.successor(image) if isinstance(image.problem, ToChannelsLast) else None
    if conv is None or not isinstance(conv.problem, Conv2d) or image.problem.epilogue.names:
        return
    problem, both = conv.problem, (image.name, conv.name)
    if problem.groups != 1:
        return
    for c in (c for c in _PADDED if c > problem.c):
        yield Alternative(f"{conv.name}.c{c}", both, _padded(image, conv, c))
    if problem.dilation != (1, 1):
        return
    stem = Stem(**fields_of(problem, "n h w c k r s stride pad dtype epilogue"))
    buffers = {**conv.buffers, "x": image.buffers["x"]}
    whole = dataclasses.replace(conv, name=f"{conv.name}.stem", problem=stem, buffers=buffers)
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


def _padded(image: Layer, conv: Layer, c: int) -> tuple[Layer, Layer]:
    """Return both layers with the image padded to c channels."""
    assert isinstance(image.problem, ToChannelsLast) and isinstance(conv.problem, Conv2d)
    filled = dataclasses.replace(
        image,
        name=f"{image.name}.c{c}",
        problem=dataclasses.replace(image.problem, to=c),
        buffers={**image.buffers, "y": f"{image.buffers['y']}.c{c}"},
    )
    wide = dataclasses.replace(
        conv,
        name=f"{conv.name}.c{c}",
        problem=dataclasses.replace(conv.problem, c=c),
        buffers={**conv.buffers, "x": filled.buffers["y"]},
        weights={**conv.weights, "weight": ConstantExpr("pad_inputs", (conv.weights["weight"],), (c,))},
    )
    return filled, wide


def _with_cast(wiring: Wiring, stem: Layer, last: Layer, replaced: tuple[str, ...]) -> Iterator[Alternative]:
    """Yield a stem together with the cast that alone reads its result.

    Not if a step of the stem accesses a tensor, which would be in another dtype, or if there are too many scalars.

    Args:
        wiring: All layers.
        stem: The stem.
        last: The layer whose result the stem computes.
        replaced: The layers in whose place the stem stands.
    """
    cast, first = wiring.successor(last), stem.problem
    if cast is None or not isinstance(cast.problem, Cast) or first.epilogue.accesses_tensors:
        return
    result, names = cast.problem.result, (*first.epilogue.names, *cast.problem.epilogue.names)
    problem = joint_problem(StemCast, names, **fields_without_epilogue(first), result=result)
    buffers, weights = {"x": stem.buffers["x"], "y": cast.buffers["y"]}, {"weight": stem.weights["weight"]}
    both = joined(problem, (stem, cast), f"{stem.name}.{result}", buffers, weights)
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
