"""A 3x3 convolution behind nearest upsampling by two, as a transposed convolution of the small image."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from autotune.ir.alternatives.wiring import Wiring
from autotune.ir.byte_formats import BYTE_FORMATS
from autotune.ir.constant_expr import ConstantExpr
from autotune.ir.network import Alternative, Layer
from autotune.ir.operators import Conv2d, Conv2dDgrad, Upsample


def upsampled_convolutions(wiring: Wiring, upsample: Layer) -> Iterator[Alternative]:
    """Yield the transposed convolution: its 4x4 filter has sums of the taps that read the same pixel.

    Each output pixel reads 2x2 pixels of the small image, so it takes 4/9 of the arithmetic.
    """
    small, conv = upsample.problem, wiring.successor(upsample)
    if not isinstance(small, Upsample) or conv is None or type(conv.problem) is not Conv2d:
        return
    problem = conv.problem
    doubled = small.mode == "nearest" and (small.p, small.q) == (2 * small.h, 2 * small.w)
    if not doubled or small.rows != (1, 2) or small.columns != (1, 2) or small.epilogue.steps:
        return
    if (problem.r, problem.s, problem.pad, problem.stride, problem.dilation) != (3, 3, (1, 1), (1, 1), (1, 1)):
        return
    if problem.groups != 1 or problem.dtype in BYTE_FORMATS or problem.output_dtype != problem.dtype:
        return
    buffers = {key: value for key, value in conv.buffers.items() if key != "x"}
    transposed = dataclasses.replace(
        conv,
        name=f"{conv.name}.upsampled",
        problem=Conv2dDgrad(
            n=small.n,
            h=small.p,
            w=small.q,
            c=problem.k,
            k=problem.c,
            r=4,
            s=4,
            stride=(2, 2),
            pad=(1, 1),
            dtype=problem.dtype,
            epilogue=problem.epilogue,
        ),
        buffers={"dy": upsample.buffers["x"], **buffers},
        weights={**conv.weights, "weight": ConstantExpr("doubled_filter", (conv.weights["weight"],))},
    )
    yield Alternative(transposed.name, (upsample.name, conv.name), (transposed,))
