"""Epilogues: the chain of steps applied to an accumulator before it is stored.

One description serves every place that needs it: the kernels call `at::<name>` of templates/epilogue.h
for each step, and the torch operators and the reference call the function given here. So a new step is
one row in `STEPS` and one function in epilogue.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from autotune.errors import ProblemError

MAX_SCALARS = 8
"""Scalars one epilogue may take (AT_MAX_SCALARS of templates/abi.h)."""


@dataclass(frozen=True)
class StepKind:
    """What one kind of step needs.

    operand: None; "vector" (float32, one value a channel); "tensor" (shape and dtype of the output, read);
        "output" (the same, written); "scalar" (a float known when the kernel is prepared).
    torch: (value, operand or scalar) -> value, in the dtype of `value`, channels last.
    """

    operand: str | None
    torch: Callable[..., torch.Tensor]


STEPS: dict[str, StepKind] = {
    "bias": StepKind("vector", lambda v, b: v + b.to(v.dtype)),
    "scale": StepKind("vector", lambda v, s: v * s.to(v.dtype)),
    "add": StepKind("tensor", lambda v, t: v + t),
    "store": StepKind("output", lambda v, _: v),
    "add_scalar": StepKind("scalar", lambda v, s: v + s),
    "mul_scalar": StepKind("scalar", lambda v, s: v * s),
    "relu": StepKind(None, torch.relu),
    "sigmoid": StepKind(None, torch.sigmoid),
    "silu": StepKind(None, lambda v: v * torch.sigmoid(v)),
}


@dataclass(frozen=True)
class Step:
    """One step of a bound chain; `index` counts its pointer operands or its scalars from 0."""

    name: str
    operand: str | None
    index: int

    @property
    def operand_name(self) -> str:
        """Name of the step's tensor among the problem's operands, such as `add0`."""
        return f"{self.name}{self.index}"


@dataclass(frozen=True)
class Epilogue:
    """A chain of step names, in the order of application; empty for a plain store.

    `store` writes the value reached so far to a second output, in the output's dtype, and goes on.
    Example: `Epilogue.parse("relu,store,add_scalar")` yields relu(x) and relu(x) + s.
    """

    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in STEPS:
                raise ProblemError(f"unknown epilogue step '{name}': choose from {', '.join(STEPS)}")
        if self.scalars > MAX_SCALARS:
            raise ProblemError(f"epilogue '{self}' takes {self.scalars} scalars; at most {MAX_SCALARS} are possible")

    @classmethod
    def parse(cls, text: str) -> Epilogue:
        """Read "bias,relu" (or "" or "none" for the empty chain); raises ProblemError."""
        return cls() if text in ("", "none") else cls(tuple(text.split(",")))

    def __str__(self) -> str:
        return ",".join(self.names) or "none"

    @property
    def steps(self) -> tuple[Step, ...]:
        """The chain with each step's operand numbered: tensors and vectors together, scalars apart."""
        steps, pointers, scalars = [], 0, 0
        for name in self.names:
            operand = STEPS[name].operand
            steps.append(Step(name, operand, scalars if operand == "scalar" else pointers))
            scalars += operand == "scalar"
            pointers += operand in ("vector", "tensor", "output")
        return tuple(steps)

    @property
    def scalars(self) -> int:
        """How many scalars the chain takes."""
        return sum(STEPS[name].operand == "scalar" for name in self.names)

    def apply(
        self, value: torch.Tensor, operands: dict[str, torch.Tensor], scalars: tuple[float, ...]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Apply the chain with torch: returns the last value and what each `store` step kept, by operand name."""
        stored: dict[str, torch.Tensor] = {}
        for step in self.steps:
            function = STEPS[step.name].torch
            if step.operand is None:
                value = function(value)
            elif step.operand == "scalar":
                value = function(value, scalars[step.index])
            elif step.operand == "output":
                stored[step.operand_name] = value
            else:
                value = function(value, operands[step.operand_name])
        return value, stored
