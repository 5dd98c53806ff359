"""Epilogues: the chain of steps applied to an accumulator before it is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from autotune.core import ProblemError
from autotune.ir.epilogue_steps import PLACES, STEPS, Definition, full_name, register

MAX_SCALARS = 8
"""Scalars one epilogue may take (AT_MAX_SCALARS of templates/abi.h)."""

_NOTHING: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {}


@dataclass(frozen=True)
class Argument:
    """What a step takes beside the value: a tensor of the problem, or a scalar.

    name: the problem's operand, such as `add0`, or `slope.0` for a parameter of a custom step.
    kind: as in StepKind. index: among the chain's scalars or, tensors and vectors together, among its pointers.
    """

    name: str
    kind: str
    index: int


@dataclass(frozen=True)
class Step:
    """One step of a chain with its arguments numbered; `custom` if the step is a user's."""

    name: str
    arguments: tuple[Argument, ...]
    custom: Definition | None

    def values(
        self, operands: Mapping[str, torch.Tensor], scalars: Sequence[float], dtype: torch.dtype
    ) -> list[torch.Tensor | float]:
        """The arguments' values, in order; vectors in `dtype`, as the step's torch function wants them."""
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
    """A chain of step names, in the order of application; empty for a plain store.

    `store` writes the value reached so far to a second output, in the output's dtype, and goes on.
    Example: `Epilogue.parse("relu,store,add_scalar")` yields relu(x) and relu(x) + s.
    """

    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(map(full_name, self.names)))
        if self.scalars > MAX_SCALARS:
            raise ProblemError(f"epilogue '{self}' takes {self.scalars} scalars; at most {MAX_SCALARS} are possible")

    @classmethod
    def parse(cls, text: str) -> Epilogue:
        """Read "bias,relu" (or "" or "none" for the empty chain); raises ProblemError."""
        return cls() if text in ("", "none") else cls(tuple(text.split(",")))

    def __str__(self) -> str:
        return ",".join(self.names) or "none"

    def __reduce__(self) -> tuple[object, ...]:
        """A pickled chain takes its custom steps' definitions along, so another process can read it."""
        return _restore, (self.names, tuple(step.custom for step in self.steps if step.custom))

    @property
    def steps(self) -> tuple[Step, ...]:
        """The chain with each step's arguments numbered: tensors and vectors together, scalars apart."""
        steps, pointers, scalars = [], 0, 0
        for name in self.names:
            kind, arguments = STEPS[name], []
            for i, operand in enumerate(kind.operands):
                index = scalars if operand == "scalar" else pointers
                own = f"{kind.custom.params[i][0]}.{index}" if kind.custom else f"{name}{index}"
                arguments.append(Argument(own, operand, index))
                scalars += operand == "scalar"
                pointers += operand != "scalar"
            steps.append(Step(name, tuple(arguments), kind.custom))
        return tuple(steps)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments of all steps, in order."""
        return tuple(argument for step in self.steps for argument in step.arguments)

    @property
    def at_pixels(self) -> bool:
        """Whether a step reads or writes a tensor: needs to know which pixel it is at."""
        return any(argument.kind in ("tensor", "output") for argument in self.arguments)

    @property
    def scalars(self) -> int:
        """How many scalars the chain takes."""
        return sum(STEPS[name].operands.count("scalar") for name in self.names)

    def random_scalars(self, generator: torch.Generator) -> tuple[float, ...]:
        """Scalars on which a kernel can be verified: in each step's ranges."""
        ranges = [bounds for name in self.names for bounds in STEPS[name].ranges]
        shares = torch.rand(len(ranges), generator=generator).tolist()
        return tuple(least + (most - least) * share for (least, most), share in zip(ranges, shares, strict=True))

    @property
    def places(self) -> tuple[str, ...]:
        """The steps that only mark a place, in order."""
        return tuple(name for name in self.names if name in PLACES)

    @property
    def parts(self) -> tuple[tuple[Step, ...], ...]:
        """The steps before the first place, those between places, and those after the last."""
        ends = [i for i, name in enumerate(self.names) if name in PLACES]
        return tuple(
            self.steps[begin + 1 : end] for begin, end in zip([-1, *ends], [*ends, len(self.names)], strict=True)
        )

    @property
    def at_pixels_early(self) -> bool:
        """Whether a step before the last place reads or writes a tensor."""
        early = (step for part in self.parts[:-1] for step in part)
        return any(argument.kind in ("tensor", "output") for step in early for argument in step.arguments)

    def apply(
        self,
        value: torch.Tensor,
        operands: Mapping[str, torch.Tensor],
        scalars: Sequence[float],
        places: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = _NOTHING,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Apply the chain with torch: returns the last value and what each `store` step kept, by operand name.

        places: what happens at the steps that mark a place, by their names.
        """
        stored: dict[str, torch.Tensor] = {}
        for step in self.steps:
            if step.name == "store":
                stored[step.arguments[0].name] = value
            elif step.name in places:
                value = places[step.name](value)
            else:
                value = STEPS[step.name].torch(value, *step.values(operands, scalars, value.dtype))
        return value, stored


def _restore(names: tuple[str, ...], definitions: tuple[Definition, ...]) -> Epilogue:
    for definition in definitions:
        register(definition)
    return Epilogue(names)
