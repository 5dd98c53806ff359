"""Layers under construction: a problem, and the epilogue steps that are appended to it."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from autotune.core import ProblemError
from autotune.ir import ConstantExpr, ConstantSource, Epilogue, Layer, Problem
from autotune.ir.operators import Conv2d, Conv2dDgrad, Gemm
from fused_resnet.capture.layout import contiguous_strides, same_layout, usual_strides


@dataclass(frozen=True, eq=False)
class Value:
    """An activation.

    Attributes:
        buffer: Name of the buffer that holds it.
        shape: Its shape in torch's order.
        maker: The layer that writes it; None for an input of the network.
        strides: Its strides in the buffer; empty for `usual_strides`: tensors of four dimensions are channels last.
        channels: The axis that epilogues take as channels: one of `channel_axes`; None for the first of them.
    """

    buffer: str
    shape: tuple[int, ...]
    maker: LayerBuilder | None = None
    strides: tuple[int, ...] = ()
    channels: int | None = None

    @property
    def is_end(self) -> bool:
        """True if it is the result of its maker's last step, so that more steps can be appended."""
        return self.maker is not None and self.maker.buffers["y"] == self.buffer

    @cached_property
    def layout(self) -> tuple[int, ...]:
        """Its strides in the buffer."""
        return self.strides or usual_strides(self.shape)

    @cached_property
    def is_usual(self) -> bool:
        """True if its strides are `usual_strides`."""
        return same_layout(self.shape, self.layout, usual_strides(self.shape))

    @cached_property
    def channel_axes(self) -> tuple[int, ...]:
        """The axes whose elements are neighbours in the buffer; several only where all but one have one element."""
        usual = [1 if len(self.shape) == 4 else len(self.shape) - 1] if self.is_usual else []
        neighbours = [axis for axis, stride in enumerate(self.layout) if stride == 1 and self.shape[axis] > 1]
        return tuple(dict.fromkeys([*usual, *neighbours]))

    @property
    def channel_axis(self) -> int:
        """The axis that epilogues take as channels."""
        return self.channels if self.channels is not None else self.channel_axes[0]

    @cached_property
    def pixels(self) -> tuple[int, int, int, int] | None:
        """Sizes (n, h, w, c) of images with the same elements in the same order; None if the batch is not outermost."""
        inner = [axis for axis in range(1, len(self.shape)) if axis != self.channel_axis]
        order = [0, *sorted(inner, key=lambda axis: -self.layout[axis]), self.channel_axis]
        stored, strides = (tuple(numbers[axis] for axis in order) for numbers in (self.shape, self.layout))
        if self.channel_axis == 0 or not same_layout(stored, strides, contiguous_strides(stored)):
            return None
        n, *rest, c = stored
        h, w = rest if len(rest) == 2 else (1, prod(rest))
        return (n, h, w, c)


@dataclass(frozen=True)
class AppliedStep:
    """An epilogue step with its operands: a Value for a tensor, a constant for a vector or scalar."""

    name: str
    operands: tuple[Value | ConstantSource, ...] = ()


@dataclass(eq=False)
class LayerBuilder:
    """A layer under construction.

    Attributes:
        name: Name of the layer.
        problem: Its problem, with the epilogue so far.
        buffers: Buffer of each activation operand, by the operand's name.
        weights: Constant of each weight and vector operand, by the operand's name.
        scalars: Constants of the scalars: the problem's own, then the epilogue's, in order.
        values: The activations that it reads.
    """

    name: str
    problem: Problem
    buffers: dict[str, str]
    weights: dict[str, ConstantSource] = field(default_factory=dict)
    scalars: list[ConstantSource] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    @cached_property
    def depth(self) -> int:
        """Number of layers on the longest path from the input to this one.

        Cached: an appended step reads only activations that are not deeper.
        """
        return 1 + max((value.maker.depth for value in self.values if value.maker), default=0)

    def follow(self, steps: Sequence[AppliedStep], name: str) -> bool:
        """Append steps to the epilogue.

        Args:
            steps: The steps. The operand of "store" is the Value reached so far.
            name: Buffer of the result.

        Returns:
            Whether the epilogue takes the steps; if not, nothing changes.
        """
        before = self.problem.epilogue
        try:
            chain = Epilogue((*before.names, *(step.name for step in steps)))
            self.problem = dataclasses.replace(self.problem, epilogue=chain)
        except ProblemError:
            return False
        for step, use in zip(chain.steps[len(before.names) :], steps, strict=True):
            for argument, operand in zip(step.arguments, use.operands, strict=True):
                if isinstance(operand, Value):
                    self.buffers[argument.name] = operand.buffer
                    self.values += [operand] if argument.kind != "output" else []
                elif argument.kind == "vector":
                    self.weights[argument.name] = operand
                else:
                    self.scalars.append(operand)
        self.buffers["y"] = name
        return True

    def fold(self, steps: Sequence[AppliedStep]) -> bool:
        """Fold steps that scale and shift channels into the weight and bias of a product, which adds no operand.

        A parameter of one element stays a scalar, which costs a kernel nothing and changes without new weights.

        Returns:
            Whether all steps can be folded; if not, nothing changes.
        """
        names = self.problem.epilogue.names
        if not isinstance(self.problem, Conv2d | Conv2dDgrad | Gemm) or names not in ((), ("bias",)):
            return False
        if isinstance(self.problem, Conv2dDgrad) and self.problem.groups > 1:
            return False  # its output channels are not an axis of the weight
        function = "scale_columns" if isinstance(self.problem, Conv2dDgrad) else "scale_rows"
        weight, bias = self.weights["weight"], self.weights.get("bias0")
        for step in steps:
            (by,) = step.operands if len(step.operands) == 1 else (None,)
            if not isinstance(by, str | ConstantExpr):
                return False
            if step.name == "scale" or (step.name == "mul_scalar" and not isinstance(by, str)):
                weight = ConstantExpr(function, (weight, by))
                bias = ConstantExpr("product", (bias, by)) if bias else None
            elif step.name == "bias" or (step.name == "add_scalar" and bias):
                bias = ConstantExpr("sum", (bias, by)) if bias else by
            else:
                return False
        self.weights["weight"] = weight
        if bias and names:
            self.weights["bias0"] = bias
        return not bias or bool(names) or self.follow([AppliedStep("bias", (bias,))], self.buffers["y"])

    def needs(self, other: LayerBuilder) -> bool:
        """Return whether this layer depends on another one, or is that layer."""
        seen: set[int] = set()
        left = [self]
        while left:
            builder = left.pop()
            if builder is other:
                return True
            if id(builder) not in seen:
                seen.add(id(builder))
                left += [value.maker for value in builder.values if value.maker]
        return False


def build_layers(builders: Sequence[LayerBuilder], results: Mapping[str, Value]) -> tuple[Layer, ...]:
    """Return the layers on which the results depend, each after those it reads from, else in the given order.

    Args:
        builders: The layers.
        results: The results of the network, which layers write, by the names that their buffers get.
    """
    number = {id(builder): i for i, builder in enumerate(builders)}
    needed: dict[int, set[int]] = {}
    left = [value.maker for value in results.values() if value.maker]
    while left:
        builder = left.pop()
        if number[id(builder)] not in needed:
            makers = [value.maker for value in builder.values if value.maker]
            needed[number[id(builder)]] = {number[id(maker)] for maker in makers}
            left += makers
    ready = [i for i, missing in needed.items() if not missing]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        done = heapq.heappop(ready)
        order.append(done)
        for i, missing in needed.items():
            if done in missing:
                missing.remove(done)
                if not missing:
                    heapq.heappush(ready, i)
    assert len(order) == len(needed), "the layers depend on each other in a cycle"
    names = {value.buffer: name for name, value in results.items()}
    return tuple(_layer(builders[i], names) for i in order)


def _layer(builder: LayerBuilder, names: Mapping[str, str]) -> Layer:
    buffers = {operand: names.get(buffer, buffer) for operand, buffer in builder.buffers.items()}
    return Layer(builder.name, builder.problem, buffers, builder.weights, tuple(builder.scalars))
