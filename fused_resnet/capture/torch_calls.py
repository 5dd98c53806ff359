"""Calls of torch's operators as problems: that of one node, and those of a whole network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from autotune.core import CaptureError
from autotune.ir import DTYPES, INPUT, OUTPUT, WHOLE, Alternative, Layer, Operand, tensor_dtype_name
from autotune.ir.operators import CallDevice, OperatorCall, TorchCall, ValueRef
from fused_resnet.capture.layer_builder import Value
from fused_resnet.capture.nodes import live_nodes, name_of, path
from fused_resnet.capture.trace import Traced

WHOLE_LAYER = "the network"
"""Name of the layer that calls torch's operators for the whole network; no path of a submodule has a space."""

_RESHAPED = {
    "aten.view.default": "aten.reshape.default",
    "aten._unsafe_view.default": "aten.reshape.default",
    "aten.view_as.default": "aten.reshape_as.default",
}
"""Views -> operators that also copy: a tensor that is contiguous in the module may be channels last here."""

_CUDNN_SWITCHES = ("cudnn_enabled", "cudnn_enable")
"""Names of the argument of torch's normalisations that tells whether cuDNN is switched on."""


def whole_network(traced: Traced, dtype: str, layers: Sequence[Layer]) -> Alternative | None:
    """Return an alternative to all layers of the network: one that calls torch's operators as the module does.

    None for networks with several inputs or results, and if the input has no part in the result.
    """
    if len(traced.inputs) != 1 or len(traced.results) != 1:
        return None
    used = live_nodes(traced.graph, traced.results)
    (image,), (output,) = traced.inputs, traced.results
    live = [node for node in traced.graph.nodes if node in used]
    constants = [node for node in live if node in traced.constants]
    calls = [node for node in live if node.op == "call_function"]
    if image not in used or output not in calls:
        return None
    variances = {node.args[4] for node in calls if name_of(node) == "batch_norm"}
    place = {node: i for i, node in enumerate([image, *constants, *calls])}
    shapes = {node: tuple(node.meta["val"].shape) for node in (image, *constants, output)}
    operands = [Operand("x", "input", shapes[image], dtype_of(image, dtype))]
    for i, node in enumerate(constants):
        role = "vector" if len(shapes[node]) == 1 else "weight"
        operands.append(Operand(f"w{i}", role, shapes[node], dtype_of(node, dtype), node in variances))
    problem = TorchCall(
        n=shapes[output][0] if shapes[output] else 1,
        calls=tuple(call(node, place) for node in calls),
        inputs=tuple(operands),
        shape=shapes[output],
        in_torch_order=("x",),
        dtype=dtype_of(output, dtype),
    )
    weights = {f"w{i}": traced.constants[node] for i, node in enumerate(constants)}
    layer = Layer(WHOLE_LAYER, problem, {"x": INPUT, "y": OUTPUT}, weights)
    return Alternative(WHOLE, tuple(one.name for one in layers), (layer,))


def dtype_of(node: fx.Node, preferred: str) -> str:
    """Return the project's name of the dtype of a node's tensor, preferring that of the network.

    Raises:
        CaptureError: There is none.
    """
    dtype = node.meta["val"].dtype
    name = preferred if dtype == DTYPES[preferred] else tensor_dtype_name(dtype)
    if name is None:
        where = path(node) or "the model"
        raise CaptureError(
            f"{where}: {name_of(node) or node.name} is {dtype}: real numbers, integers and booleans are supported"
        )
    return name


def strided(value: Value, index: int) -> OperatorCall:
    """Return the call that views a buffer, the problem's input `index`, as an activation of another layout."""
    return OperatorCall("aten.as_strided.default", (ValueRef(index), value.shape, value.layout))


def call(node: fx.Node, place: dict[fx.Node, int]) -> OperatorCall:
    """Return the call of a node's operator; `place` is the number of each value that it may take."""

    def frozen(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return ValueRef(place[value])
        if isinstance(value, list | tuple):
            return tuple(map(frozen, value))
        return CallDevice() if isinstance(value, torch.device) else value

    if not isinstance(node.target, torch._ops.OpOverload):
        return OperatorCall("getitem", frozen(node.args))
    name = str(node.target)
    formal = node.target._schema.arguments
    # For the same module, torch.export notes that cuDNN is off, and others that it is on or nothing, as is the default.
    switch = next((i for i, argument in enumerate(formal) if argument.name in _CUDNN_SWITCHES), None)
    args = node.args
    if switch is not None and not node.kwargs:
        defaults = [argument.default_value for argument in formal[len(args) : switch]]
        args = (*args[:switch], *defaults, True)
    kwargs = tuple((key, frozen(value)) for key, value in node.kwargs.items() if key not in _CUDNN_SWITCHES)
    return OperatorCall(_RESHAPED.get(name, name), frozen(args), kwargs)
