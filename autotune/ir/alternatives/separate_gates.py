"""A squeeze-and-excitation as a mean, two products and a pass that scales, each of which uses the whole GPU.

Kernels of the whole operator give an image to one block or cluster, which a large image keeps busy for long. Where a
linear 1x1 convolution computes the tensor, the mean is that of the convolution's input: it has fewer channels, and the
gates are computed beside the convolution.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from autotune.core import round_up
from autotune.ir.alternatives.gated_convolutions import squeeze_of_input
from autotune.ir.alternatives.joining import VECTOR, add_arguments, fields_of, fields_without_epilogue, joint_problem
from autotune.ir.alternatives.wiring import Wiring
from autotune.ir.constant_expr import ConstantExpr, ConstantSource
from autotune.ir.epilogue import Epilogue
from autotune.ir.network import Alternative, Layer
from autotune.ir.operators import Conv2d, Conv2dBroadcast, Elementwise, GlobalAvgPool2d, SeTail, SqueezeExcite
from autotune.ir.problem.base import Images

_FEWEST_BYTES = 2**16
"""Size of an image below which the kernels of the whole operator are left alone."""


def separate_gates(wiring: Wiring, excite: Layer) -> Iterator[Alternative]:
    """Yield the layers with the mean of the tensor itself, and those with the mean of a convolution's input.

    The latter twice: the convolution itself may multiply by the gates.
    """
    problem = excite.problem
    if not isinstance(problem, SeTail | SqueezeExcite) or not is_large(problem):
        return
    made = f"{excite.buffers['x']}.{excite.name}.gates"
    if scaled := _scaled(excite, made):
        name = f"{excite.name}.apart"
        yield Alternative(name, (excite.name,), (*gate_layers(excite, name, made), scaled))
        conv = wiring.maker(excite.buffers["x"])
        if conv is None or not isinstance(conv.problem, Conv2d):
            return
        if conv.problem.is_product and conv.problem.dtype == problem.dtype and squeeze_of_input(conv, excite):
            name = f"{excite.name}.early"
            gates = gate_layers(excite, name, made, conv)
            yield Alternative(
                name, (conv.name, excite.name), (*gates, dataclasses.replace(conv, name=f"{name}.conv"), scaled)
            )
            name = f"{excite.name}.joined"
            if wiring.only_reader(conv) is excite and (gated := _gated(conv, excite, name, made)):
                yield Alternative(name, (conv.name, excite.name), (*gate_layers(excite, name, made, conv), gated))


def is_large(problem: Images) -> bool:
    """Return whether an image is too large for kernels that give it to one block or cluster."""
    x = problem.operands()[0]
    return x.bytes >= problem.n * _FEWEST_BYTES


def gate_layers(excite: Layer, name: str, made: str, conv: Layer | None = None) -> tuple[Layer, Layer, Layer]:
    """Return the layers that compute the gates of a squeeze-and-excitation into the buffer `made`.

    Args:
        excite: The squeeze-and-excitation.
        name: The beginning of their names.
        made: Name of a buffer for the gates (n, 1, 1, c).
        conv: The linear 1x1 convolution of whose input the mean is taken; None for the mean of the tensor itself.
    """
    problem = excite.problem
    assert isinstance(problem, SeTail | SqueezeExcite)
    source = conv.problem if conv else problem
    assert isinstance(source, Conv2d | SeTail | SqueezeExcite)
    own = excite.weights
    squeeze = squeeze_of_input(conv, excite) if conv else None
    first, bias = (squeeze or own)["w1"], (squeeze or own)["b1"]
    if not squeeze:
        first = ConstantExpr("reshape", (first,), (problem.hidden, problem.c, 1, 1))
    second: ConstantSource = ConstantExpr("reshape", (own["w2"],), (problem.c, problem.hidden, 1, 1))
    hidden = round_up(problem.hidden, VECTOR)  # padded with zeros
    if hidden != problem.hidden:
        first, bias = (ConstantExpr("pad_outputs", (one,), (hidden,)) for one in (first, bias))
        second = ConstantExpr("pad_inputs", (second,), (hidden,))
    n, dtype, mean, squeezed = problem.n, problem.dtype, f"{made}.mean", f"{made}.hidden"
    return (
        Layer(
            f"{name}.mean",
            GlobalAvgPool2d(**fields_of(source, "n h w c dtype")),
            {"x": (conv or excite).buffers["x"], "y": mean},
        ),
        Layer(
            f"{name}.hidden",
            Conv2d(n=n, h=1, w=1, c=source.c, k=hidden, dtype=dtype, epilogue=Epilogue(("bias", problem.act))),
            {"x": mean, "y": squeezed},
            {"weight": first, "bias0": bias},
        ),
        Layer(
            f"{name}.gates",
            Conv2d(n=n, h=1, w=1, c=hidden, k=problem.c, dtype=dtype, epilogue=Epilogue(("bias", problem.gate))),
            {"x": squeezed, "y": made},
            {"weight": second, "bias0": own["b2"]},
        ),
    )


def _gated(conv: Layer, excite: Layer, name: str, gates: str) -> Layer | None:
    """Return the convolution that multiplies by the gates, with the steps that follow; None if one cannot have all."""
    own, after = conv.problem.epilogue, excite.problem.epilogue
    names = (*own.names, "mul_image", *after.names)
    problem = joint_problem(Conv2dBroadcast, names, **fields_without_epilogue(conv.problem))
    if problem is None or own.accesses_tensors:
        return None
    arguments, first = problem.epilogue.arguments, len(own.arguments)
    buffers = {"x": conv.buffers["x"], arguments[first].name: gates, "y": excite.buffers["y"]}
    weights = {"weight": conv.weights["weight"]}
    others = [*arguments[:first], *arguments[first + 1 :]]
    add_arguments(
        [(layer, one) for layer in (conv, excite) for one in layer.problem.epilogue.arguments], others, buffers, weights
    )
    return Layer(name, problem, buffers, weights, (*conv.scalars, *excite.scalars))


def _scaled(excite: Layer, gates: str) -> Layer | None:
    """Return the layer that multiplies x by the gates, with the steps that follow; None if it cannot have them."""
    problem = excite.problem
    names = ("mul_image", *problem.epilogue.names)
    scaled = joint_problem(Elementwise, names, **fields_of(problem, "n h w c dtype"))
    if scaled is None:
        return None
    first, *others = scaled.epilogue.arguments
    buffers = {"x": excite.buffers["x"], first.name: gates, "y": excite.buffers["y"]}
    weights: dict[str, ConstantSource] = {}
    add_arguments([(excite, argument) for argument in problem.epilogue.arguments], others, buffers, weights)
    return Layer(f"{excite.name}.scaled", scaled, buffers, weights, excite.scalars)
