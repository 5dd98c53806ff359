"""Networks as text, without values of weights. A database keeps it beside the plans, so they run without a model.

The text is JSON. A constant is the key of a parameter, or [function, [constant, ...], [number, ...]]. The alternative
that calls torch's operators for the whole network is left out, because such calls have no text that can be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, replace
from typing import Any

from autotune.core import AutotuneError, ProblemError
from autotune.ir.constant_expr import ConstantExpr, ConstantSource
from autotune.ir.network import Alternative, CallerTensor, Layer, Network, NetworkKey
from autotune.ir.operators import TorchCall
from autotune.ir.problem import parse


def problems(text: str) -> dict[str, str]:
    """Return the text of each layer's problem by the layer's name, those of all alternatives, too.

    Unlike `read` it takes layers that call torch's operators.
    """
    value = json.loads(text)
    layers = [*value["layers"], *(layer for _, _, others in value["alternatives"] for layer in others)]
    return {name: problem for name, problem, *_ in layers}


def write(network: Network) -> str:
    """Return the text of a network."""
    plain = network.without_whole
    value = {
        "key": plain.key,
        "inputs": [astuple(tensor) for tensor in plain.inputs],
        "results": [astuple(tensor) for tensor in plain.results],
        "layers": [_layer_value(layer) for layer in plain.layers],
        "alternatives": [
            [one.name, one.replaces, [_layer_value(layer) for layer in one.layers]] for one in plain.alternatives
        ],
        "kept": dict(plain.kept),
    }
    return json.dumps(value, separators=(",", ":"))


def read(text: str) -> Network:
    """Return the network of a text, without the alternative that calls torch's operators for all layers.

    Raises:
        ProblemError: A layer calls torch's operators, or the text is not that of a network.
        UnknownNameError: An operator is not known here; that of a user is known once its file is imported.
    """
    try:
        value = json.loads(text)
        inputs, results = (
            tuple(CallerTensor(tuple(shape), dtype) for shape, dtype in value[name]) for name in ("inputs", "results")
        )
        alternatives = tuple(
            Alternative(name, tuple(replaces), _layers(layers)) for name, replaces, layers in value["alternatives"]
        )
        identity = NetworkKey.parse(value["key"])
        return Network(identity, _layers(value["layers"]), inputs, results, alternatives, dict(value["kept"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ProblemError):
            raise
        raise ProblemError(f"'{text[:40]}' is not the text of a network: {error}") from error


def find(texts: Iterable[tuple[str, str]], key: str) -> Network | None:
    """Return the network of a plan's key: one of these networks, or one of them at the key's batch size.

    Args:
        texts: Key and text of networks; the first that fits is returned.
        key: The key.

    Raises:
        ProblemError, UnknownNameError: As of `read`, for a text that would fit.
    """
    wanted = NetworkKey.parse(key).base
    for stored, text in texts:
        own = NetworkKey.parse(stored)
        if replace(own, batch=None, digest="") != replace(wanted, batch=None, digest=""):
            continue
        if own == wanted:
            return read(text)
        if own.batch and wanted.batch and own.batch != wanted.batch:
            network = read(text).with_batch(wanted.batch)
            if network.identity == wanted:
                return network
    return None


def is_known(texts: Iterable[tuple[str, str]], network: Network) -> bool:
    """Return whether one of some networks (key and text) gives this one, at its own or at another batch size."""
    try:
        return find(texts, network.key) == network.without_whole
    except AutotuneError:  # a layer on torch's operators: only a model can tell what it computes
        return False


def _layer_value(layer: Layer) -> list[Any]:
    weights = {name: _constant_value(source) for name, source in layer.weights.items()}
    return [layer.name, str(layer.problem), dict(layer.buffers), weights, list(map(_constant_value, layer.scalars))]


def _constant_value(source: ConstantSource) -> Any:
    if isinstance(source, ConstantExpr):
        return [source.function, list(map(_constant_value, source.sources)), list(source.arguments)]
    return source


def _layers(values: Sequence[Any]) -> tuple[Layer, ...]:
    return tuple(_layer(*value) for value in values)


def _layer(name: str, problem: str, buffers: dict[str, str], weights: dict[str, Any], scalars: list[Any]) -> Layer:
    if problem.split(maxsplit=1)[0] == TorchCall.operator:
        raise ProblemError(f"layer {name} calls torch's operators, which have no text that can be read")
    sources = {operand: _constant(value) for operand, value in weights.items()}
    return Layer(name, parse(problem), buffers, sources, tuple(map(_constant, scalars)))


def _constant(value: Any) -> ConstantSource:
    if isinstance(value, str):
        return value
    function, sources, arguments = value
    return ConstantExpr(function, tuple(map(_constant, sources)), tuple(arguments))
