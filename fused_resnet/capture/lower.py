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
    MAX_PIECES,
    CallDevice,
    Concat,
    Elementwise,
    Layer,
    OperatorCall,
    Piece,
    ToChannelsLast,
    TorchCall,
    ValueRef,
    stored_shape,
)
from autotune.ir import Operand as ProblemOperand
from fused_resnet.capture.channels import Channels, rearranged
from fused_resnet.capture.layer_builder import AppliedStep, LayerBuilder, Value, build_layers
from fused_resnet.capture.pointwise import Constant, Operand, operands, steps
from fused_resnet.capture.trace import Traced, name_of, path

_RESHAPES = {"view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze"}


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
        self._rearranged = rearranged(
            traced.graph, traced.input, lambda node: self.constant(node) is not None, DTYPES[dtype]
        )
        self._concatenated: dict[tuple[tuple[str, int, int], ...], Value] = {}
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
            if node in self._rearranged:
                continue  # a layer that reads it makes it
            handler = self._handlers.get(name_of(node))
            if not (self._is_float(node) and ((handler and handler(self, node)) or self._pointwise(node))):
                self._torch(node)
        output = self.value(self._traced.output)
        if output is None or output.maker is None or not output.is_end:
            raise CaptureError("the model's result is not a floating-point tensor computed from its input")
        return build_layers(self._builders, output.maker)

    # -- what nodes are -----------------------------------------------------------------------------------------

    def value(self, node: Any) -> Value | None:
        """Return the activation that a node yields; None if it yields none in the network's dtype."""
        if not isinstance(node, fx.Node):
            return None
        if node in self._rearranged and node not in self._values:
            self._concatenate(node, self._rearranged[node])
        return self._values.get(node)

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
            if user in self._live and not self._reads_past(user, node):
                found |= self.users(user) if self._same_bytes(user) else {user}
        return found

    def _reads_past(self, user: fx.Node, node: fx.Node) -> bool:
        """Return whether a user rearranges the channels from which a node is made, and does not read the node."""
        if node not in self._rearranged:
            return False
        if isinstance(user.meta.get("val"), list | tuple):  # a split
            return all(self._reads_past(part, node) for part in user.users)
        return user in self._rearranged and all(part.node is not node for part in self._rearranged[user].ranges)

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

    def _concatenate(self, node: fx.Node, channels: Channels) -> None:
        """Add a layer that makes the channels of a node.

        Where there are more pieces than a problem can have, the first ones are concatenated by layers of their own.
        Networks that concatenate a growing list share these layers.
        """
        parts = [(self._made(part.node), part.first, part.end) for part in channels.ranges]
        while len(parts) > MAX_PIECES:
            begin = parts[:MAX_PIECES]
            key = tuple((value.buffer, first, end) for value, first, end in begin)
            if key not in self._concatenated:
                self._concatenated[key] = self._prefix(node, begin)
            whole = self._concatenated[key]
            parts = [(whole, 0, whole.shape[1]), *parts[MAX_PIECES:]]
        self.add(node, self._concatenation(self.name(node), parts, channels.interleave))

    def _made(self, node: fx.Node) -> Value:
        value = self.value(node)
        assert value is not None, f"{node} is a floating-point tensor that depends on the input"
        return value

    def _prefix(self, node: fx.Node, parts: Sequence[tuple[Value, int, int]]) -> Value:
        """Return the concatenation of some channels, made by a new layer, which no step is appended to."""
        builder = self._concatenation(self.name(node, "prefix"), parts, 1)
        shape = parts[0][0].shape
        assert isinstance(builder.problem, Concat)
        builder.buffers["y"] = f"%{builder.name}"
        self._builders.append(builder)
        return Value(builder.buffers["y"], (shape[0], builder.problem.c, *shape[2:]), builder)

    def _concatenation(self, name: str, parts: Sequence[tuple[Value, int, int]], interleave: int) -> LayerBuilder:
        n, _, *image = parts[0][0].shape
        h, w = image or (1, 1)
        pieces = tuple(Piece(value.shape[1], first, end) for value, first, end in parts)
        problem = Concat(n=n, h=h, w=w, pieces=pieces, interleave=interleave, dtype=self.dtype)
        values = [value for value, _, _ in parts]
        return LayerBuilder(name, problem, {f"x{i}": value.buffer for i, value in enumerate(values)}, values=values)

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
            if n is not node and (self.constant(n) or (self.value(n) and not self._is_part(n))):
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
