"""Layers under construction: a problem, and the epilogue steps that are appended to it."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autotune.core import ProblemError
from autotune.ir import OUTPUT, ConstantExpr, ConstantSource, Conv2d, Epilogue, Gemm, Layer, Problem


@dataclass(frozen=True, eq=False)
class Value:
    """An activation.

    Attributes:
        buffer: Name of the buffer that holds it; tensors of four dimensions are channels last in memory.
        shape: Its shape in torch's order.
        maker: The layer that writes it; None for the network's input.
    """

    buffer: str
    shape: tuple[int, ...]
    maker: LayerBuilder | None = None

    @property
    def is_end(self) -> bool:
        """True if it is the result of its maker's last step, so that more steps can be appended."""
        return self.maker is not None and self.maker.buffers["y"] == self.buffer


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
        scalars: Constants of the epilogue's scalars, in order.
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

        Returns:
            Whether all steps can be folded; if not, nothing changes.
        """
        names = self.problem.epilogue.names
        if not isinstance(self.problem, Conv2d | Gemm) or names not in ((), ("bias",)):
            return False
        weight, bias = self.weights["weight"], self.weights.get("bias0")
        for step in steps:
            (by,) = step.operands if len(step.operands) == 1 else (None,)
            if not isinstance(by, str | ConstantExpr):
                return False
            if step.name in ("scale", "mul_scalar"):
                weight = ConstantExpr("scale_rows", (weight, by))
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


def build_layers(builders: Sequence[LayerBuilder], output: LayerBuilder) -> tuple[Layer, ...]:
    """Return the layers on which the output depends, each after those it reads from, else in the given order."""
    number = {id(builder): i for i, builder in enumerate(builders)}
    needed: dict[int, set[int]] = {}
    left = [output]
    while left:
        builder = left.pop()
        if number[id(builder)] not in needed:
            makers = [value.maker for value in builder.values if value.maker]
            needed[number[id(builder)]] = {number[id(maker)] for maker in makers}
            left += makers
    output.buffers["y"] = OUTPUT
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
    return tuple(_layer(builders[i]) for i in order)


def _layer(builder: LayerBuilder) -> Layer:
    return Layer(builder.name, builder.problem, builder.buffers, builder.weights, tuple(builder.scalars))
