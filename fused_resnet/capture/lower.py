"""Lowering: a traced module -> layers. Operators become problems or epilogue steps; the rest is left to torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from autotune.core import CaptureError
from autotune.ir import (
    DTYPES,
    INPUT,
    OUTPUT,
    WHOLE,
    Alternative,
    CallDevice,
    Elementwise,
    Layer,
    OperatorCall,
    ToChannelsLast,
    TorchCall,
    ValueRef,
    stored_shape,
)
from autotune.ir import Operand as ProblemOperand
from fused_resnet.capture.layer_builder import AppliedStep, LayerBuilder, Value, build_layers
from fused_resnet.capture.pointwise import Constant, Operand, operands, steps
from fused_resnet.capture.trace import Traced, name_of, path

_RESHAPES = {"view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze"}


WHOLE_LAYER = "the network"
"""Name of the layer that calls torch's operators for the whole network; no path of a submodule has a space."""

Handler = Callable[["Lowering", fx.Node], bool]
"""Adds a layer for a node and returns True; returns False if the node is not exactly the operator's problem."""


class Lowering:
    """The layers of one traced module, under construction.

    Args:
        traced: The module.
        dtype: The project's name of the network's dtype.
        handlers: Handler of each operator of torch, by its name; other nodes become epilogue steps or calls of torch.
    """

    def __init__(self, traced: Traced, dtype: str, handlers: Mapping[str, Handler]) -> None:
        self.dtype = dtype
        self._handlers = handlers
        self._traced = traced
        self._builders: list[LayerBuilder] = []
        self._names: set[str] = set()
        self._values: dict[fx.Node, Value] = {}
        self._live = _live(traced.output)
        if traced.input in self._live:
            self._values[traced.input] = self._input(traced.input)

    def layers(self) -> tuple[Layer, ...]:
        """Return all layers, each after those whose results it reads.

        Raises:
            CaptureError: The result is not a floating-point tensor computed from the input.
        """
        for node in self._traced.graph.nodes:
            if node.op != "call_function" or node not in self._live or self.constant(node):
                continue
            handler = self._handlers.get(name_of(node))
            if not (self._is_float(node) and ((handler and handler(self, node)) or self._pointwise(node))):
                self._torch(node)
        output = self.value(self._traced.output)
        if output is None or output.maker is None or not output.is_end:
            raise CaptureError("the model's result is not a floating-point tensor computed from its input")
        return build_layers(self._builders, output.maker)

    def whole(self, layers: Sequence[Layer]) -> Alternative | None:
        """Return an alternative to all layers of the network: one that calls torch's operators as the module does.

        None if a constant or the result has a dtype that a layer cannot have.
        """
        output = self._traced.output
        live = [node for node in self._traced.graph.nodes if node in self._live]
        constants = [node for node in live if node in self._traced.constants]
        calls = [node for node in live if node.op == "call_function"]
        dtypes = {node: self._dtype(node.meta["val"]) for node in (self._traced.input, *constants, output)}
        if None in dtypes.values() or self._traced.input not in self._live:
            return None
        variances = {node.args[4] for node in calls if name_of(node) == "batch_norm"}
        place = {node: i for i, node in enumerate([self._traced.input, *constants, *calls])}
        shapes = {node: tuple(node.meta["val"].shape) for node in dtypes}
        operands = [ProblemOperand("x", "input", shapes[self._traced.input], str(dtypes[self._traced.input]))]
        for i, node in enumerate(constants):
            role = "vector" if len(shapes[node]) == 1 else "weight"
            operands.append(ProblemOperand(f"w{i}", role, shapes[node], str(dtypes[node]), node in variances))
        problem = TorchCall(
            n=shapes[output][0],
            calls=tuple(_call(node, place) for node in calls),
            inputs=tuple(operands),
            shape=shapes[output],
            in_torch_order=("x",),
            dtype=str(dtypes[output]),
        )
        weights = {f"w{i}": self._traced.constants[node] for i, node in enumerate(constants)}
        layer = Layer(WHOLE_LAYER, problem, {"x": INPUT, "y": OUTPUT}, weights)
        return Alternative(WHOLE, tuple(one.name for one in layers), (layer,))

    # -- what nodes are -----------------------------------------------------------------------------------------

    def value(self, node: Any) -> Value | None:
        """Return the activation that a node yields; None if it yields none in the network's dtype."""
        return self._values.get(node) if isinstance(node, fx.Node) else None

    def constant(self, node: Any) -> Constant | None:
        """Return the constant that a node yields: a parameter, a buffer, or one of these reshaped; None otherwise."""
        if not isinstance(node, fx.Node):
            return None
        if source := self._traced.constants.get(node):
            return Constant(source, tuple(node.meta["val"].shape))
        if name_of(node) in _RESHAPES and (before := self.constant(node.args[0])):
            return Constant(before.source, tuple(node.meta["val"].shape))
        return None

    def find(self, argument: Any) -> Operand | None:
        """Return an argument of an operator as the operand of a step; None if it cannot be one."""
        if isinstance(argument, int | float):
            return float(argument)
        return self.constant(argument) or self.value(argument)

    def users(self, node: fx.Node) -> set[fx.Node]:
        """Return the nodes that read a node's result, also through a reshape."""
        found: set[fx.Node] = set()
        for user in node.users:
            if user in self._live:
                found |= self.users(user) if self._same_bytes(user) else {user}
        return found

    def sole(self, node: fx.Node) -> bool:
        """Return whether exactly one operation reads a node's result."""
        return len(self.users(self.origin(node))) == 1

    def origin(self, node: fx.Node) -> fx.Node:
        """Return the node that computed a node's result, past any reshapes."""
        while self._same_bytes(node):
            node = node.args[0]  # type: ignore[assignment]
        return node

    def _same_bytes(self, node: fx.Node) -> bool:
        """Return whether a node only reshapes an activation, and its elements keep their order in memory."""
        if name_of(node) not in _RESHAPES or self.constant(node):
            return False
        shapes = [tuple(n.meta["val"].shape) for n in (node.args[0], node)]  # type: ignore[union-attr]
        return all(len(shape) != 4 or shape[1] == 1 or shape[2] == shape[3] == 1 for shape in shapes)

    def _is_float(self, node: fx.Node) -> bool:
        """Return whether a node yields one tensor in the network's dtype."""
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and value.dtype == DTYPES[self.dtype] and value.dim() > 0

    # -- layers -------------------------------------------------------------------------------------------------

    def add(self, node: fx.Node, builder: LayerBuilder) -> None:
        """Add a layer whose result `y` is that of a node."""
        self._builders.append(builder)
        builder.buffers["y"] = buffer(node)
        self._values[node] = Value(buffer(node), tuple(node.meta["val"].shape), builder)

    def name(self, node: fx.Node, suffix: str = "") -> str:
        """Return a new layer's name: the submodule's path and a suffix, with a number where that is not unique."""
        stem = ".".join(part for part in (path(node), suffix) if part) or node.name
        name, count = stem, 1
        while name in self._names:
            count += 1
            name = f"{stem}:{count}"
        self._names.add(name)
        return name

    def _input(self, node: fx.Node) -> Value:
        """Return the input; one of four dimensions passes through a layer that makes it channels last."""
        shape = tuple(node.meta["val"].shape)
        if len(shape) != 4:
            return Value(INPUT, shape)
        n, c, h, w = shape
        problem = ToChannelsLast(n=n, h=h, w=w, c=c, to=c, dtype=self.dtype)
        self._builders.append(LayerBuilder(INPUT, problem, {"x": INPUT, "y": buffer(node)}))
        self._names.add(INPUT)
        return Value(buffer(node), shape, self._builders[-1])

    def _pointwise(self, node: fx.Node) -> bool:
        """Append an elementwise node to the epilogue of a layer that makes one of its operands, or add a layer for it.

        The deepest such layer is preferred, because the other operands can then be computed at the same time.
        """
        if self._same_bytes(node) and (before := self.value(node.args[0])):
            self._values[node] = Value(before.buffer, tuple(node.meta["val"].shape), before.maker)
            return True
        shape, possible = tuple(node.meta["val"].shape), []
        for position, operand in enumerate(operands(node)):
            value = self.value(operand)
            if value and value.shape == shape and (uses := steps(node, value, position, self.find)) is not None:
                possible.append((value, operand, uses))
        possible.sort(key=lambda entry: entry[0].maker.depth if entry[0].maker else 0, reverse=True)
        if any(self._follow(node, *entry) for entry in possible):
            return True
        if not possible or len(shape) not in (2, 4):
            return False
        value, _, uses = possible[0]
        n, h, w, c = stored_shape(shape) if len(shape) == 4 else (shape[0], 1, 1, shape[1])
        builder = LayerBuilder(
            self.name(node), Elementwise(n=n, h=h, w=w, c=c, dtype=self.dtype), {"x": value.buffer}, values=[value]
        )
        if not builder.follow(uses, buffer(node)):
            return False
        self.add(node, builder)
        return True

    def _follow(self, node: fx.Node, value: Value, operand: fx.Node, uses: Sequence[AppliedStep]) -> bool:
        """Append a node's steps to the layer that makes `value`; return whether that is possible."""
        builder = value.maker
        if builder is None or isinstance(builder.problem, TorchCall) or not value.is_end:
            return False
        others = [other for use in uses for other in use.operands if isinstance(other, Value)]
        if any(other.maker and other.maker.needs(builder) for other in others):
            return False
        sole = self.sole(operand)
        if not (sole and builder.fold(uses)):
            kept = [] if sole else [AppliedStep("store", (value,))]
            if not builder.follow([*kept, *uses], buffer(node)):
                return False
        builder.buffers["y"] = buffer(node)
        self._values[node] = Value(buffer(node), value.shape, builder)
        return True

    # -- what is left to torch -------------------------------------------------------------------------------------

    def _torch(self, node: fx.Node) -> None:
        """Add a layer of torch for a node, together with the nodes that only it reads and only torch computes."""
        inputs, inner = self._region(node)
        result = node.meta.get("val")
        if not isinstance(result, torch.Tensor) or self._dtype(result) is None or not result.dim() or not inputs:
            return  # it becomes a part of the layer that reads it
        place = {n: i for i, n in enumerate([*inputs, *inner])}
        operands, buffers, weights, values = [], {}, {}, []
        for i, source in enumerate(inputs):
            tensor = source.meta["val"]
            name = self._dtype(tensor)
            if name is None:
                where = path(node) or "the model"
                raise CaptureError(
                    f"{where}: {name_of(node)} takes a tensor of {tensor.dtype}; floating-point tensors are supported"
                )
            if constant := self.constant(source):
                operands.append(ProblemOperand(f"w{i}", "weight", tuple(tensor.shape), name))
                weights[f"w{i}"] = constant.source
            else:
                value = self._values[source]
                operands.append(ProblemOperand(f"x{i}", "input", stored_shape(tuple(tensor.shape)), name))
                buffers[f"x{i}"] = value.buffer
                values.append(value)
        problem = TorchCall(
            n=result.shape[0],
            calls=tuple(_call(n, place) for n in inner),
            inputs=tuple(operands),
            shape=tuple(result.shape),
            dtype=self._dtype(result) or self.dtype,
        )
        self.add(node, LayerBuilder(self.name(node, name_of(node)), problem, buffers, weights, values=values))

    def _region(self, node: fx.Node) -> tuple[list[fx.Node], list[fx.Node]]:
        """Return the inputs of a node's layer, and the nodes that torch computes in it, in order."""
        inputs: list[fx.Node] = []
        inner: list[fx.Node] = []

        def visit(n: fx.Node) -> None:
            if n in inputs or n in inner:
                return
            if n is not node and (self.constant(n) or (n in self._values and not self._is_part(n))):
                inputs.append(n)
                return
            for argument in n.all_input_nodes:
                visit(argument)
            inner.append(n)

        visit(node)
        return inputs, inner

    def _is_part(self, node: fx.Node) -> bool:
        """Return whether torch computes a node and exactly one other node reads it."""
        builder = self._values[node].maker
        return builder is not None and isinstance(builder.problem, TorchCall) and self.sole(node)

    def _dtype(self, tensor: torch.Tensor) -> str | None:
        """Return the project's name of a tensor's dtype, preferring that of the network; None for other dtypes."""
        if tensor.dtype == DTYPES[self.dtype]:
            return self.dtype
        return {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}.get(tensor.dtype)


def buffer(node: fx.Node) -> str:
    """Return the name of the buffer of a node's result, which differs from those of the caller's tensors."""
    return f"%{node.name}"


def _live(output: fx.Node) -> set[fx.Node]:
    """Return all nodes on which the output depends."""
    found, left = set(), [output]
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += node.all_input_nodes
    return found


def _call(node: fx.Node, place: dict[fx.Node, int]) -> OperatorCall:
    def frozen(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return ValueRef(place[value])
        if isinstance(value, list | tuple):
            return tuple(map(frozen, value))
        return CallDevice() if isinstance(value, torch.device) else value

    name = str(node.target) if isinstance(node.target, torch._ops.OpOverload) else "getitem"
    # A tensor that is contiguous in the module may be channels last here, where a view is not possible.
    name = "aten.reshape.default" if name in ("aten.view.default", "aten._unsafe_view.default") else name
    return OperatorCall(name, frozen(node.args), tuple((key, frozen(value)) for key, value in node.kwargs.items()))
