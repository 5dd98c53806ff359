"""Lowering: a traced module -> layers. Operators become problems or epilogue steps; the rest is left to torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from autotune.core import CaptureError
from autotune.ir import DTYPES, Layer, Problem, input_name, output_name, tensor_dtype_name
from autotune.ir import Operand as ProblemOperand
from autotune.ir.epilogue_steps import STEPS, full_name
from autotune.ir.operators import (
    MAX_PIECES,
    Concat,
    Elementwise,
    OperatorCall,
    Piece,
    ToChannelsLast,
    TorchCall,
    ValueRef,
    stored_shape,
)
from fused_resnet.capture.channels import Channels, rearranged
from fused_resnet.capture.layer_builder import AppliedStep, LayerBuilder, Value, build_layers
from fused_resnet.capture.layout import RESHAPES, VIEWS, view_strides
from fused_resnet.capture.nodes import buffer, live_nodes, name_of, path
from fused_resnet.capture.pointwise import Constant, Operand, operands, steps
from fused_resnet.capture.torch_calls import call, dtype_of, strided
from fused_resnet.capture.trace import Traced

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
        self._traced, self.inputs = traced, tuple(traced.inputs)
        self._builders: list[LayerBuilder] = []
        self._names: set[str] = set()
        self._values: dict[fx.Node, Value] = {}
        self.channel_orders: dict[str, tuple[int, ...]] = {}  # which channel of a layer's result each one is, by buffer
        self._live = live_nodes(traced.graph, traced.results)
        self._rearranged = rearranged(
            traced.graph, traced.inputs, lambda node: self.constant(node) is not None, DTYPES[dtype]
        )
        self._concatenated: dict[tuple[tuple[str, int, int], ...], Value] = {}
        for i, node in enumerate(traced.inputs):
            if node in self._live:
                self._values[node] = self._input(node, input_name(i))

    def layers(self) -> tuple[Layer, ...]:
        """Return all layers, each after those whose results it reads.

        Raises:
            CaptureError: A tensor has a dtype that is not supported.
        """
        for node in self._traced.graph.nodes:
            if node.op != "call_function" or node not in self._live or self.constant(node):
                continue
            if node in self._rearranged:
                continue  # a layer that reads it makes it
            handler = self._handlers.get(name_of(node))
            if not (self._is_float(node) and ((handler and handler(self, node)) or self._pointwise(node))):
                self._torch(node)
        results: dict[str, Value] = {}
        for i, node in enumerate(self._traced.results):
            results[output_name(i)] = self._result(node, [value.buffer for value in results.values()])
        return build_layers(self._builders, results)

    def _result(self, node: fx.Node, taken: Sequence[str]) -> Value:
        """Return the value of a result in a buffer that a layer writes, in the usual layout, and that is not taken."""
        value = self._values[node] if self._is_made(node) else None
        if value is None or value.maker is None or not value.is_usual or value.buffer in taken:
            self._add_call(node, [node], [], f"{buffer(node)}:{len(taken)}")
        return self._values[node]

    # -- what nodes are -----------------------------------------------------------------------------------------

    def value(self, node: Any) -> Value | None:
        """Return the activation of the network's dtype that a node yields, if it has its usual layout; else None."""
        value = self.view(node)
        return value if value and value.is_usual else None

    def view(self, node: Any, channels: int | None = None) -> Value | None:
        """Return the activation that a node yields, in whatever layout.

        Args:
            node: The node.
            channels: The axis that must have the channels; None for any.
        """
        if not isinstance(node, fx.Node) or not self._is_float(node):
            return None
        if node in self._rearranged and node not in self._values:
            self._concatenate(node, self._rearranged[node])
        value = self._values.get(node)
        if value is None or channels is None:
            return value
        axis = channels % len(value.shape)
        return replace(value, channels=axis) if axis in value.channel_axes else None

    def constant(self, node: Any) -> Constant | None:
        """Return the constant that a node yields: a parameter, a buffer, or one of these reshaped; None otherwise."""
        if not isinstance(node, fx.Node):
            return None
        if source := self._traced.constants.get(node):
            return Constant(source, tuple(node.meta["val"].shape))
        if name_of(node) in RESHAPES and (before := self.constant(node.args[0])):
            return before.reshaped(tuple(node.meta["val"].shape))
        return None

    def find(self, argument: Any) -> Operand | None:
        """Return an argument of an operator as the operand of a step; None if it cannot be one."""
        if isinstance(argument, int | float):
            return float(argument)
        return self.constant(argument) or self.view(argument)

    def users(self, node: fx.Node) -> set[fx.Node]:
        """Return the nodes that read a node's result, also through views."""
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
        while self._same_bytes(node):
            node = node.args[0]  # type: ignore[assignment]
        return len(self.users(node)) == 1

    def origin(self, node: fx.Node) -> fx.Node:
        """Return the node that computed a node's result, past reshapes: permutations change which element is where."""
        while name_of(node) in RESHAPES and self._same_bytes(node):
            node = node.args[0]  # type: ignore[assignment]
        return node

    def _same_bytes(self, node: fx.Node) -> bool:
        """Return whether a node is a view of an activation: its elements stay where they are in memory."""
        return self._viewed(node) is not None

    def _viewed(self, node: fx.Node) -> Value | None:
        """Return the activation that a node yields if it is a view of another one."""
        source = node.args[0] if name_of(node) in VIEWS else None
        if not isinstance(source, fx.Node) or self.constant(node):
            return None
        value = self.view(source) or self._viewed(source)
        strides = view_strides(node, value.shape, value.layout) if value else None
        if value is None or strides is None:
            return None
        return Value(value.buffer, tuple(node.meta["val"].shape), value.maker, strides)

    def _is_float(self, node: fx.Node) -> bool:
        """Return whether a node yields one tensor in the network's dtype."""
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and value.dtype == DTYPES[self.dtype] and value.dim() > 0

    # -- layers -------------------------------------------------------------------------------------------------

    def add(self, node: fx.Node, builder: LayerBuilder, name: str = "", strides: tuple[int, ...] = ()) -> None:
        """Add a layer whose result `y` is that of a node.

        Args:
            node: The node.
            builder: The layer.
            name: Name of the buffer of the result; by default `buffer(node)`.
            strides: Strides of the result, as in Value.
        """
        self._builders.append(builder)
        builder.buffers["y"] = name or buffer(node)
        self._values[node] = Value(builder.buffers["y"], tuple(node.meta["val"].shape), builder, strides)

    def name(self, node: fx.Node, suffix: str = "") -> str:
        """Return a new layer's name: the submodule's path and a suffix, with a number where that is not unique."""
        stem = ".".join(part for part in (path(node), suffix) if part) or node.name
        name, count = stem, 1
        while name in self._names:
            count += 1
            name = f"{stem}:{count}"
        self._names.add(name)
        return name

    def _input(self, node: fx.Node, name: str) -> Value:
        """Return an input; one of four dimensions passes through a layer that makes it channels last."""
        shape = tuple(node.meta["val"].shape)
        if len(shape) != 4:
            return Value(name, shape)
        n, c, h, w = shape
        dtype = dtype_of(node, self.dtype)
        problem: Problem
        if dtype == self.dtype:
            problem = ToChannelsLast(n=n, h=h, w=w, c=c, to=c, dtype=dtype)
        else:  # an operand with four dimensions is taken for (n, h, w, c), so that the call has to restore the order
            order = OperatorCall("aten.permute.default", (ValueRef(0), (0, 2, 3, 1)))
            problem = TorchCall(
                n=n, calls=(order,), inputs=(ProblemOperand("x", "input", shape, dtype),), shape=shape, dtype=dtype
            )
        self._builders.append(LayerBuilder(name, problem, {"x": name, "y": buffer(node)}))
        self._names.add(name)
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
        """Return the activation that a node yields in the usual layout, if necessary as a copy."""
        value = self.view(node)
        assert value is not None, f"{node} is a floating-point tensor that depends on the input"
        if not value.is_usual:
            self._add_call(node, [node], [], f"{buffer(node)}:usual")
        return self._values[node]

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
        if viewed := self._viewed(node):
            self._values[node] = viewed
            return True
        shape, possible = tuple(node.meta["val"].shape), []
        for position, operand in enumerate(operands(node)):
            value = self.view(operand)
            if value is None or value.shape != shape:
                continue
            for axis in value.channel_axes:
                taken = replace(value, channels=axis)
                if (uses := steps(node, taken, position, self.find)) is not None:
                    possible.append((taken, operand, uses))
        possible.sort(key=lambda entry: entry[0].maker.depth if entry[0].maker else 0, reverse=True)
        if any(self._follow(node, *entry) for entry in possible):
            return True
        return any(self._alone(node, value, uses) for value, _, uses in possible)

    def _alone(self, node: fx.Node, value: Value, uses: Sequence[AppliedStep]) -> bool:
        """Add a layer for a node's steps; return whether that is possible."""
        if value.pixels is None or len(value.shape) < 2:
            return False
        n, h, w, c = value.pixels
        builder = LayerBuilder(
            self.name(node), Elementwise(n=n, h=h, w=w, c=c, dtype=self.dtype), {"x": value.buffer}, values=[value]
        )
        if not builder.follow(uses, buffer(node)):
            return False
        self.add(node, builder, strides=value.strides)
        return True

    def _follow(self, node: fx.Node, value: Value, operand: fx.Node, uses: Sequence[AppliedStep]) -> bool:
        """Append a node's steps to the layer that makes `value`; return whether that is possible."""
        builder = value.maker
        if builder is None or isinstance(builder.problem, TorchCall) or not value.is_end:
            return False
        by_channel = any("vector" in STEPS[full_name(use.name)].operands for use in uses)
        if by_channel and builder.problem.output_shape[-1] != value.shape[value.channel_axis]:
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
        self._values[node] = Value(buffer(node), value.shape, builder, value.strides)
        return True

    # -- what is left to torch -------------------------------------------------------------------------------------

    def _torch(self, node: fx.Node) -> None:
        """Add a layer of torch for a node, together with the nodes that only it reads and only torch computes."""
        inputs, inner = self._region(node)
        value: Any = node.meta.get("val")
        is_tensor = isinstance(value, torch.Tensor) and value.dim() and value.numel()
        separate = is_tensor and tensor_dtype_name(value.dtype) and inputs
        if separate or node in self._traced.results:
            self._add_call(node, inputs, inner)
        # Any other node becomes a part of the layer that reads it.

    def _add_call(self, node: fx.Node, inputs: Sequence[fx.Node], inner: Sequence[fx.Node], name: str = "") -> None:
        """Add a layer in which torch computes a node from the inputs; the last of the inner nodes is the node.

        Without inner nodes the layer copies its input, which is the node.
        """
        # A call that takes no tensor, such as arange, finds its device by an operand of the layer.
        inputs = inputs or [*self._values, *self._traced.constants][:1]
        views = [n for n in inputs if not self.constant(n) and not self._values[n].is_usual]
        place = {n: i for i, n in enumerate([*inputs, *views, *inner])}
        result = node.meta["val"]
        if not result.numel():
            shape = tuple(result.shape)
            raise CaptureError(f"the model returns a tensor of {shape}: a result must have at least one element")
        operands, buffers, weights, values = [], {}, {}, []
        calls = [strided(self._values[n], inputs.index(n)) for n in views]
        for i, source in enumerate(inputs):
            tensor, dtype = source.meta["val"], dtype_of(source, self.dtype)
            if constant := self.constant(source):
                operands.append(ProblemOperand(f"w{i}", "weight", tuple(tensor.shape), dtype))
                weights[f"w{i}"] = constant.source
            else:
                value = self._values[source]
                shape = (tensor.numel(),) if source in views else stored_shape(tuple(tensor.shape))
                operands.append(ProblemOperand(f"x{i}", "input", shape, dtype))
                buffers[f"x{i}"] = value.buffer
                values.append(value)
        problem = TorchCall(
            n=result.shape[0] if result.dim() else 1,
            calls=(*calls, *(call(n, place) for n in inner)),
            inputs=tuple(operands),
            shape=tuple(result.shape),
            dtype=dtype_of(node, self.dtype),
        )
        self.add(node, LayerBuilder(self.name(node, name_of(node)), problem, buffers, weights, values=values), name)

    def _region(self, node: fx.Node) -> tuple[list[fx.Node], list[fx.Node]]:
        """Return the inputs of a node's layer, and the nodes that torch computes in it, in order."""
        inputs: list[fx.Node] = []
        inner: list[fx.Node] = []

        def visit(n: fx.Node) -> None:
            if n in inputs or n in inner:
                return
            if n is not node and (self.constant(n) or (self._is_made(n) and not self._is_part(n))):
                inputs.append(n)
                return
            for argument in n.all_input_nodes:
                visit(argument)
            inner.append(n)

        visit(node)
        return inputs, inner

    def _is_made(self, node: fx.Node) -> bool:
        """Return whether a node is an input or a layer makes it, in any dtype; adds a layer for rearranged channels."""
        return self.view(node) is not None or node in self._values

    def _is_part(self, node: fx.Node) -> bool:
        """Return whether torch computes a node and exactly one other node reads it."""
        builder = self._values[node].maker
        in_torch = builder is not None and isinstance(builder.problem, TorchCall)
        return in_torch and node.op != "placeholder" and self.sole(node)
