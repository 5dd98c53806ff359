"""A convolution with a number of output channels that fits no vector, as one with more, of which the first are kept.

Kernels store eight channels at a time. Those for any number of channels are several times slower where images are
large, as in the last convolution of a decoder, whose result has three channels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from autotune.core import round_up
from autotune.ir.alternatives.joining import VECTOR
from autotune.ir.alternatives.wiring import Wiring
from autotune.ir.byte_formats import BYTE_FORMATS
from autotune.ir.constant_expr import ConstantExpr
from autotune.ir.network import Alternative, Layer
from autotune.ir.operators import Concat, Conv2d, Piece


def padded_outputs(wiring: Wiring, conv: Layer) -> Iterator[Alternative]:
    """Yield the convolution with filters of zeros behind its own, and the pass that copies its own channels."""
    problem = conv.problem
    if not isinstance(problem, Conv2d) or problem.groups > 1 or problem.k % VECTOR == 0 or problem.c % VECTOR:
        return
    if problem.dtype in BYTE_FORMATS or problem.output_dtype != problem.dtype or problem.epilogue.accesses_tensors:
        return
    name, k = f"{conv.name}.padded", round_up(problem.k, VECTOR)
    wide = dataclasses.replace(
        conv,
        name=name,
        problem=dataclasses.replace(problem, k=k),
        buffers={"x": conv.buffers["x"], "y": f"{conv.buffers['y']}.padded"},
        weights={key: ConstantExpr("pad_outputs", (value,), (k,)) for key, value in conv.weights.items()},
    )
    pieces = (Piece(k, 0, problem.k),)
    kept = Concat(n=problem.n, h=problem.p, w=problem.q, pieces=pieces, dtype=problem.dtype)
    yield Alternative(
        name,
        (conv.name,),
        (wide, Layer(f"{name}.kept", kept, {"x0": wide.buffers["y"], "y": conv.buffers["y"]})),
    )
