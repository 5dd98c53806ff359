"""Lowering: a traced module -> layers. Operators become problems or epilogue steps; the rest is left to torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
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
from autotune.ir.epilogue_steps import STEPS, full_name
from fused_resnet.capture.layer_builder import AppliedStep, LayerBuilder, Value, build_layers
from fused_resnet.capture.layout import RESHAPES, VIEWS, view_strides
from fused_resnet.capture.pointwise import Constant, Operand, operands, steps
from fused_resnet.capture.trace import Traced, name_of, path

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
        output = self.view(self._traced.output)
        if output and output.maker and not output.is_usual:
            output = self._usual(self._traced.output, output)
        if output is None or output.maker is None or not output.is_end:
            raise CaptureError("the model's result is not a floating-point tensor computed from its input")
        return build_layers(self._builders, output.maker)

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
        value = self._values.get(node) if isinstance(node, fx.Node) else None
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
            return Constant(before.source, tuple(node.meta["val"].shape))
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
            if user in self._live:
                found |= self.users(user) if self._same_bytes(user) else {user}
        return found

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

    def add(self, node: fx.Node, builder: LayerBuilder, strides: tuple[int, ...] = ()) -> None:
        """Add a layer whose result `y` is that of a node; `strides` as in Value."""
        self._builders.append(builder)
        builder.buffers["y"] = buffer(node)
        self._values[node] = Value(buffer(node), tuple(node.meta["val"].shape), builder, strides)

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
        self.add(node, builder, value.strides)
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
        result = node.meta.get("val")
        if not isinstance(result, torch.Tensor) or self._dtype(result) is None or not result.dim() or not inputs:
            return  # it becomes a part of the layer that reads it
        views = [n for n in inputs if not self.constant(n) and not self._values[n].is_usual]
        place = {n: i for i, n in enumerate([*inputs, *views, *inner])}
        operands, buffers, weights, values = [], {}, {}, []
        calls = [_strided(self._values[n], inputs.index(n)) for n in views]
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
                shape = (tensor.numel(),) if source in views else stored_shape(tuple(tensor.shape))
                operands.append(ProblemOperand(f"x{i}", "input", shape, name))
                buffers[f"x{i}"] = value.buffer
                values.append(value)
        problem = TorchCall(
            n=result.shape[0],
            calls=(*calls, *(_call(n, place) for n in inner)),
            inputs=tuple(operands),
            shape=tuple(result.shape),
            dtype=self._dtype(result) or self.dtype,
        )
        self.add(node, LayerBuilder(self.name(node, name_of(node)), problem, buffers, weights, values=values))

    def _usual(self, node: fx.Node, value: Value) -> Value:
        """Add a layer that copies an activation into the usual layout, and return the copy."""
        operand = ProblemOperand("x0", "input", (prod(value.shape),), self.dtype)
        problem = TorchCall(
            n=value.shape[0], calls=(_strided(value, 0),), inputs=(operand,), shape=value.shape, dtype=self.dtype
        )
        self.add(node, LayerBuilder(self.name(node, "copy"), problem, {"x0": value.buffer}, values=[value]))
        return self._values[node]

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


def _strided(value: Value, index: int) -> OperatorCall:
    """Return the call that views a buffer, the problem's input `index`, as an activation of another layout."""
    return OperatorCall("aten.as_strided.default", (ValueRef(index), value.shape, value.layout))


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
