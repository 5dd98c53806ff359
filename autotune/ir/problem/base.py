"""What every problem has: a text, tensors, and the least work that it takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from autotune.core import ProblemError, require_one_of
from autotune.ir.epilogue import MAX_SCALARS, Epilogue
from autotune.ir.epilogue_steps import PLACES
from autotune.ir.problem.dtypes import DTYPES

Tensors = Mapping[str, torch.Tensor]
"""Operand name -> tensor."""

MAX_OPERANDS = 15
"""Tensors one problem may have (AT_WORKSPACE of templates/abi.h, which comes behind them)."""

_NO_STEPS = Epilogue()
_MAY_BE_ZERO = ("pad", "pool_pad", "ceil")


@dataclass(frozen=True)
class Operand:
    """One tensor of a problem. role: "input", "weight" (constant), "vector" (constant, float32) or "output"."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Size of the tensor in bytes."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count * DTYPES[self.dtype].itemsize


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What every problem has: a dtype, an epilogue, a text, operands, and the least work it takes.

    A problem from outside this package (see `register`) declares two things more and defines `reference`.
    sizes: its attributes that kernels are given as int32, in the order of its C struct, separated by spaces.
    scalars: how many floats it takes at run time; kernels find them before the epilogue's.

    places: the steps of PLACES that its epilogue has, in order: where in the chain something of its own happens.
    """

    operator: ClassVar[str]
    sizes: ClassVar[str]
    scalars: ClassVar[int] = 0
    places: ClassVar[tuple[str, ...]] = ()
    batch_field: ClassVar[str] = "n"
    most_operands: ClassVar[int] = MAX_OPERANDS
    dtype: str
    epilogue: Epilogue = _NO_STEPS

    def __post_init__(self) -> None:
        require_one_of("dtype", self.dtype, list(DTYPES))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            sizes = value if isinstance(value, tuple) else (value,)
            least = 0 if field.name in _MAY_BE_ZERO else 1
            if any(isinstance(size, int) and size < least for size in sizes):
                raise ProblemError(f"{self.operator}: {field.name}={value} must be at least {least}")
        if self.epilogue.places != self.places:
            wanted = f"must have {' and then '.join(self.places)}, once" if self.places else "can have none"
            raise ProblemError(f"'{self}': of the steps {', '.join(PLACES)} the epilogue of {self.operator} {wanted}")
        if self.scalars + self.epilogue.scalars > MAX_SCALARS:
            raise ProblemError(f"'{self}' takes more than {MAX_SCALARS} scalars, with its epilogue's")
        if min(self.output_shape) < 1:
            raise ProblemError(f"'{self}' has no output: its window is larger than its padded input")
        if (tensors := len(self.operands())) > self.most_operands:
            raise ProblemError(f"'{self}' has {tensors} tensors; at most {self.most_operands} are possible")

    def __str__(self) -> str:
        order = [f for f in dataclasses.fields(self) if f.name not in ("dtype", "epilogue")]
        words = [f"{f.name}={value_text(getattr(self, f.name))}" for f in order]
        return " ".join([self.operator, *words, f"dtype={self.dtype}", f"epilogue={self.epilogue}"])

    @property
    def batch(self) -> int:
        """How many samples are solved at once: what `with_batch` changes."""
        return int(getattr(self, self.batch_field))

    @property
    def output_dtype(self) -> str:
        """Dtype of `y` and of the epilogue's tensors."""
        return self.dtype

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output `y`, channels last."""
        raise NotImplementedError

    @property
    def flops(self) -> int:
        """Floating-point operations of the definition, a multiply and an add counted as two."""
        raise NotImplementedError

    def _inputs(self) -> tuple[Operand, ...]:
        raise NotImplementedError

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """`y` before the epilogue, in plain torch and in the dtype of the tensors, by operand name."""
        raise NotImplementedError

    def operands(self) -> tuple[Operand, ...]:
        """All tensors in the order in which kernels take them: inputs and weights, `y`, then the epilogue's."""
        shape, dtype = self.output_shape, self.output_dtype
        of_kind = {
            "vector": ("vector", shape[-1:], "f32"),
            "tensor": ("input", shape, dtype),
            "output": ("output", shape, dtype),
        }
        extra = [Operand(a.name, *of_kind[a.kind]) for a in self.epilogue.arguments if a.kind in of_kind]
        return (*self._inputs(), Operand("y", "output", shape, dtype), *extra)

    @property
    def bytes(self) -> int:
        """The fewest bytes to move: every operand once."""
        return sum(operand.bytes for operand in self.operands())


@dataclass(frozen=True, kw_only=True)
class Images(Problem):
    """Problems on n images of h x w pixels with c channels, channels last unless they say otherwise."""

    n: int
    h: int
    w: int
    c: int

    @property
    def _x(self) -> Operand:
        return Operand("x", "input", (self.n, self.h, self.w, self.c), self.dtype)

    @property
    def _x_nchw(self) -> Operand:
        return Operand("x", "input", (self.n, self.c, self.h, self.w), self.dtype)


def value_text(value: object) -> str:
    """A field's value as problems are written: pairs with a comma."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def with_batch(problem: Problem, n: int) -> Problem:
    """The same problem for another batch size."""
    return dataclasses.replace(problem, **{problem.batch_field: n})  # type: ignore[arg-type]


def limit_us(problem: Problem, flops_per_us: float, bytes_per_us: float) -> float:
    """The time below which no device of these two rates can solve the problem, in microseconds."""
    return max(problem.flops / flops_per_us, problem.bytes / bytes_per_us)
