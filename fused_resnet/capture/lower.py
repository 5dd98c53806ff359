"""A traced module -> layers: operators with a problem of their own, steps of epilogues, and the rest, left to torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from autotune.core import CaptureError
from autotune.ir import (
    DTYPES,
    INPUT,
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
from fused_resnet.capture.layer_builder import AppliedStep, LayerBuilder, Value, layers
from fused_resnet.capture.pointwise import Constant, Operand, operands, steps
from fused_resnet.capture.trace import Traced, name_of, path

_RESHAPES = {"view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze"}


Handler = Callable[["Lowering", fx.Node], bool]
"""Adds a layer for a node. Returns False if the node is not quite the operator's problem."""


class Lowering:
    """The layers of one traced module so far.

    handlers: by the name of torch's operator; nodes without one become epilogue steps or calls of torch.
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
        """All layers, in an order in which they can run; raises CaptureError."""
        for node in self._traced.graph.nodes:
            if node.op != "call_function" or node not in self._live or self.constant(node):
                continue
            handler = self._handlers.get(name_of(node))
            if not (self._is_float(node) and ((handler and handler(self, node)) or self._pointwise(node))):
                self._torch(node)
        output = self.value(self._traced.output)
        if output is None or output.maker is None or not output.is_end:
            raise CaptureError("the model's result is no floating-point tensor that it computes from its input")
        return layers(self._builders, output.maker)

    # -- what nodes are -----------------------------------------------------------------------------------------

    def value(self, node: Any) -> Value | None:
        """The activation that a node yields; None if it yields none in the network's dtype."""
        return self._values.get(node) if isinstance(node, fx.Node) else None

    def constant(self, node: Any) -> Constant | None:
        """The constant that a node is: a parameter, a buffer, or one of these reshaped."""
        if not isinstance(node, fx.Node):
            return None
        if source := self._traced.constants.get(node):
            return Constant(source, tuple(node.meta["val"].shape))
        if name_of(node) in _RESHAPES and (before := self.constant(node.args[0])):
            return Constant(before.source, tuple(node.meta["val"].shape))
        return None

    def find(self, argument: Any) -> Operand | None:
        """What an argument is as an operand of a step."""
        if isinstance(argument, int | float):
            return float(argument)
        return self.constant(argument) or self.value(argument)

    def users(self, node: fx.Node) -> set[fx.Node]:
        """Who reads what a node yields, be it by another shape."""
        found: set[fx.Node] = set()
        for user in node.users:
            if user in self._live:
                found |= self.users(user) if self._same_bytes(user) else {user}
        return found

    def sole(self, node: fx.Node) -> bool:
        """Whether one operation alone reads what a node yields."""
        return len(self.users(self.origin(node))) == 1

    def origin(self, node: fx.Node) -> fx.Node:
        """The node whose result this one reads by another shape; itself if it does more than that."""
        while self._same_bytes(node):
            node = node.args[0]  # type: ignore[assignment]
        return node

    def _same_bytes(self, node: fx.Node) -> bool:
        """Whether a node reads an activation by another shape, its elements in the same order in memory."""
        if name_of(node) not in _RESHAPES or self.constant(node):
            return False
        shapes = [tuple(n.meta["val"].shape) for n in (node.args[0], node)]  # type: ignore[union-attr]
        return all(len(shape) != 4 or shape[1] == 1 or shape[2] == shape[3] == 1 for shape in shapes)

    def _is_float(self, node: fx.Node) -> bool:
        """Whether a node yields one tensor in the network's dtype."""
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and value.dtype == DTYPES[self.dtype] and value.dim() > 0

    # -- layers -------------------------------------------------------------------------------------------------

    def add(self, node: fx.Node, builder: LayerBuilder) -> None:
        """Take a layer whose result `y` is what a node yields."""
        self._builders.append(builder)
        builder.buffers["y"] = buffer(node)
        self._values[node] = Value(buffer(node), tuple(node.meta["val"].shape), builder)

    def name(self, node: fx.Node, suffix: str = "") -> str:
        """A layer's name: the submodule's path, with the operator's name or a number where that is not unique."""
        stem = ".".join(part for part in (path(node), suffix) if part) or node.name
        name, count = stem, 1
        while name in self._names:
            count += 1
            name = f"{stem}:{count}"
        self._names.add(name)
        return name

    def _input(self, node: fx.Node) -> Value:
        """The input; 4-d ones pass through a layer that puts their channels last."""
        shape = tuple(node.meta["val"].shape)
        if len(shape) != 4:
            return Value(INPUT, shape)
        n, c, h, w = shape
        problem = ToChannelsLast(n=n, h=h, w=w, c=c, to=c, dtype=self.dtype)
        self._builders.append(LayerBuilder(INPUT, problem, {"x": INPUT, "y": buffer(node)}))
        self._names.add(INPUT)
        return Value(buffer(node), shape, self._builders[-1])

    def _pointwise(self, node: fx.Node) -> bool:
        """Take a node into the epilogue of the deepest layer that makes one of its operands, or of a layer of its own.

        The deepest: whatever else is added can then be computed beside it.
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
        """Append a node's steps to the layer that makes `value`."""
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
        """Make a layer of a node and, before it, of what only it reads and only torch computes."""
        inputs, inner = self._region(node)
        result = node.meta.get("val")
        if not isinstance(result, torch.Tensor) or self._dtype(result) is None or not result.dim() or not inputs:
            return  # it becomes a part of whatever reads it
        place = {n: i for i, n in enumerate([*inputs, *inner])}
        operands, buffers, weights, values = [], {}, {}, []
        for i, source in enumerate(inputs):
            tensor = source.meta["val"]
            name = self._dtype(tensor)
            if name is None:
                raise CaptureError(f"{path(node) or 'the model'}: {name_of(node)} takes a tensor of {tensor.dtype}")
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
        """What a node is computed from, and the nodes on the way that torch computes in one layer with it, in order."""
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
        """Whether torch alone computes a node, for one other alone."""
        builder = self._values[node].maker
        return builder is not None and isinstance(builder.problem, TorchCall) and self.sole(node)

    def _dtype(self, tensor: torch.Tensor) -> str | None:
        """The project's name of a tensor's dtype, that of the network if it is the same."""
        if tensor.dtype == DTYPES[self.dtype]:
            return self.dtype
        return {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}.get(tensor.dtype)


def buffer(node: fx.Node) -> str:
    """The name of what a node yields; none is that of the caller's tensors."""
    return f"%{node.name}"


def _live(output: fx.Node) -> set[fx.Node]:
    """All nodes on which the output depends."""
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
    # What was contiguous in the module may lie channels last here.
    name = "aten.reshape.default" if name in ("aten.view.default", "aten._unsafe_view.default") else name
    return OperatorCall(name, frozen(node.args), tuple((key, frozen(value)) for key, value in node.kwargs.items()))
