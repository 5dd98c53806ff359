"""Layers as they grow: a problem at first, then the steps that its epilogue takes over."""

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
    """An activation. shape: in torch's order; in memory 4-d ones lie channels last. maker: None for the input."""

    buffer: str
    shape: tuple[int, ...]
    maker: LayerBuilder | None = None

    @property
    def is_end(self) -> bool:
        """Whether it is what its maker's epilogue ends with, so that more steps can follow."""
        return self.maker is not None and self.maker.buffers["y"] == self.buffer


@dataclass(frozen=True)
class AppliedStep:
    """A step of an epilogue and what it takes: tensors are Values, vectors and scalars constants."""

    name: str
    operands: tuple[Value | ConstantSource, ...] = ()


@dataclass(eq=False)
class LayerBuilder:
    """A layer to be. values: the activations that it reads."""

    name: str
    problem: Problem
    buffers: dict[str, str]
    weights: dict[str, ConstantSource] = field(default_factory=dict)
    scalars: list[ConstantSource] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    @cached_property
    def depth(self) -> int:
        """Layers on the longest way from the input to this one; steps only ever add what is no deeper."""
        return 1 + max((value.maker.depth for value in self.values if value.maker), default=0)

    def follow(self, steps: Sequence[AppliedStep], name: str) -> bool:
        """Append steps to the epilogue, and call the result `name`; False, and no change, if it cannot take them.

        The step "store" has as its operand the Value reached so far.
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
                    self.values += [operand] if argument.kind == "tensor" else []
                elif argument.kind == "vector":
                    self.weights[argument.name] = operand
                else:
                    self.scalars.append(operand)
        self.buffers["y"] = name
        return True

    def fold(self, steps: Sequence[AppliedStep]) -> bool:
        """Fold scales and shifts into the weights and bias, if that is all there is; no new operands come of it."""
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
        """Whether this layer can run only after `other`, or is it."""
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


def layers(builders: Sequence[LayerBuilder], output: LayerBuilder) -> tuple[Layer, ...]:
    """The layers that the output needs, each after those whose results it reads, else in the order given."""
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
    assert len(order) == len(needed), "layers wait for one another"
    return tuple(_layer(builders[i]) for i in order)


def _layer(builder: LayerBuilder) -> Layer:
    return Layer(builder.name, builder.problem, builder.buffers, builder.weights, tuple(builder.scalars))
