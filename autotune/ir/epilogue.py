"""Epilogues: the chain of steps applied to an accumulator before it is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from autotune.core import ProblemError
from autotune.ir.epilogue_steps import ANCHORS, BROADCAST, READ, STEPS, Inline, StepDefinition, full_name, register_step

MAX_SCALARS = 8
"""Most scalars of one epilogue (AT_MAX_SCALARS of templates/abi.h)."""

AnchorFunction = Callable[[torch.Tensor], torch.Tensor]
"""The computation of an operator at an anchor: the value before it -> the value after it."""

_OF_THE_OPERATOR = tuple(name for name in ANCHORS if name not in ("keep", "add_kept"))


@dataclass(frozen=True)
class Argument:
    """An argument of a step beside the value: a tensor of the problem, or a scalar.

    Attributes:
        name: The problem's operand, such as `add0`, or `slope.0` for a parameter of a custom step.
        kind: "vector", "tensor", "output", "scalar" or one of BROADCAST, as in StepKind.
        index: Index among the chain's scalars, or among its pointers, which tensors and vectors share.
    """

    name: str
    kind: str
    index: int


@dataclass(frozen=True)
class Step:
    """One step of a chain with its arguments numbered.

    Attributes:
        name: Its name in STEPS.
        arguments: Its arguments beside the value.
        inline: The expression of a step that is no function of templates/epilogue.h.
        custom: The definition of a user's step.
    """

    name: str
    arguments: tuple[Argument, ...]
    inline: Inline | None
    custom: StepDefinition | None

    def values(
        self, operands: Mapping[str, torch.Tensor], scalars: Sequence[float], dtype: torch.dtype
    ) -> list[torch.Tensor | float]:
        """Return the values of the arguments, in order; vectors are converted to `dtype`."""
        values: list[torch.Tensor | float] = []
        for argument in self.arguments:
            if argument.kind == "scalar":
                values.append(scalars[argument.index])
            else:
                operand = operands[argument.name]
                values.append(operand.to(dtype) if argument.kind == "vector" else operand)
        return values


@dataclass(frozen=True)
class Epilogue:
    """A chain of steps, by name and in the order of application; empty for a plain store.

    `store` writes the value so far to another output, in the output's dtype, and continues with it:
    `Epilogue.parse("relu,store,add_scalar")` yields relu(x) and relu(x) + s.
    """

    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(map(full_name, self.names)))
        if self.scalars > MAX_SCALARS:
            raise ProblemError(f"epilogue '{self}' takes {self.scalars} scalars; at most {MAX_SCALARS} are possible")

    @classmethod
    def parse(cls, text: str) -> Epilogue:
        """Read a chain such as "bias,relu"; "" and "none" are the empty chain.

        Raises:
            ProblemError: A step is unknown, or the steps take too many scalars.
        """
        return cls() if text in ("", "none") else cls(tuple(text.split(",")))

    def __str__(self) -> str:
        return ",".join(self.names) or "none"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the chain with the definitions of its custom steps, so that another process can read it."""
        return _restore, (self.names, tuple(step.custom for step in self.steps if step.custom))

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Return the steps with their arguments numbered: tensors and vectors together, scalars apart."""
        steps, pointers, scalars = [], 0, 0
        for name in self.names:
            kind, arguments = STEPS[name], []
            for i, operand in enumerate(kind.operands):
                index = scalars if operand == "scalar" else pointers
                own = f"{kind.custom.params[i][0]}.{index}" if kind.custom else f"{name}{index}"
                arguments.append(Argument(own, operand, index))
                scalars += operand == "scalar"
                pointers += operand != "scalar"
            steps.append(Step(name, tuple(arguments), kind.inline, kind.custom))
        return tuple(steps)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """Return the arguments of all steps, in order."""
        return tuple(argument for step in self.steps for argument in step.arguments)

    @property
    def accesses_tensors(self) -> bool:
        """Return whether a step reads or writes a tensor, and so depends on the pixel's position."""
        return any(argument.kind in (*READ, "output") for argument in self.arguments)

    @property
    def broadcasts(self) -> bool:
        """Return whether a step reads a tensor that is broadcast to the output."""
        return any(argument.kind in BROADCAST for argument in self.arguments)

    @property
    def scalars(self) -> int:
        """Return the number of scalars."""
        return sum(STEPS[name].operands.count("scalar") for name in self.names)

    def random_scalars(self, generator: torch.Generator) -> tuple[float, ...]:
        """Return scalars for verifying a kernel, uniformly distributed in the steps' ranges."""
        ranges = [bounds for name in self.names for bounds in STEPS[name].ranges]
        shares = torch.rand(len(ranges), generator=generator).tolist()
        return tuple(least + (most - least) * share for (least, most), share in zip(ranges, shares, strict=True))

    @property
    def anchors(self) -> tuple[str, ...]:
        """Return the names of the chain's anchors, in order."""
        return tuple(name for name in self.names if name in ANCHORS)

    @property
    def parts(self) -> tuple[tuple[Step, ...], ...]:
        """Return the chain split at its anchors: the steps before the first, between them, and after the last."""
        ends = [i for i, name in enumerate(self.names) if name in ANCHORS]
        return tuple(
            self.steps[begin + 1 : end] for begin, end in zip([-1, *ends], [*ends, len(self.names)], strict=True)
        )

    @property
    def accesses_tensors_early(self) -> bool:
        """Return whether a step before the last anchor reads or writes a tensor."""
        early = (step for part in self.parts[:-1] for step in part)
        return any(argument.kind in (*READ, "output") for step in early for argument in step.arguments)

    def apply(
        self,
        value: torch.Tensor,
        operands: Mapping[str, torch.Tensor],
        scalars: Sequence[float],
        anchor_functions: Sequence[AnchorFunction] = (),
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Apply the chain with torch.

        Args:
            value: The value before the first step, channels last.
            operands: The tensors and vectors that the steps take, by operand name.
            scalars: The scalars that they take, in order.
            anchor_functions: One function for each anchor `conv`, `gate` and `project` of the chain, in order.

        Returns:
            The value after the last step, and the values that `store` steps wrote, by operand name.
        """
        own = sum(name in _OF_THE_OPERATOR for name in self.names)
        if len(anchor_functions) != own:
            raise ValueError(f"epilogue '{self}' has {own} anchors of its operator, not {len(anchor_functions)}")
        stored: dict[str, torch.Tensor] = {}
        kept = value
        functions = iter(anchor_functions)
        for step in self.steps:
            if step.name == "store":
                stored[step.arguments[0].name] = value
            elif step.name == "keep":
                kept = value
            elif step.name == "add_kept":
                value = value + kept
            elif step.name in _OF_THE_OPERATOR:
                value = next(functions)(value)
            else:
                value = STEPS[step.name].torch(value, *step.values(operands, scalars, value.dtype))
        return value, stored


def _restore(names: tuple[str, ...], definitions: tuple[StepDefinition, ...]) -> Epilogue:
    for definition in definitions:
        register_step(definition)
    return Epilogue(names)
