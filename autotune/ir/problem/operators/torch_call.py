"""What has no problem of its own: some operators of torch in a row, as a problem that only torch solves."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch

from autotune.ir.problem import Operand, Problem, Tensors


@dataclass(frozen=True)
class Ref:
    """A tensor of a call: the inputs are counted first, then the results of the calls."""

    index: int

    def __repr__(self) -> str:
        return f"%{self.index}"


@dataclass(frozen=True)
class Here:
    """The device on which a call runs."""

    def __repr__(self) -> str:
        return "device"


@dataclass(frozen=True)
class Call:
    """An operator by its name in torch.ops, such as "aten.cat.default", and its arguments; tuples stand for lists."""

    operator: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        given = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs)]
        return f"{self.operator}({','.join(given).replace(' ', '')})"

    @property
    def name(self) -> str:
        """The operator's name alone."""
        return self.operator.split(".")[1 if "." in self.operator else 0]

    def run(self, values: Sequence[Any]) -> Any:
        """The result of the call on `values`, at least one of which is a tensor."""
        device = next(value.device for value in values if isinstance(value, torch.Tensor))

        def given(value: Any) -> Any:
            if isinstance(value, tuple):
                return [given(part) for part in value]
            if isinstance(value, Ref):
                return values[value.index]
            return device if isinstance(value, Here) else value

        return _function(self.operator)(*map(given, self.args), **{name: given(value) for name, value in self.kwargs})


@dataclass(frozen=True, kw_only=True)
class TorchCall(Problem):
    """y = the result of the last of `calls`, on tensors in torch's order: 4-d activations are channels second there.

    inputs: the tensors, 4-d activations channels last as everywhere. shape: of the result, in torch's order. No calls
    at all: y is the input. n: the batch, which cannot be changed.
    """

    operator: ClassVar[str] = "torch"
    most_operands: ClassVar[int] = 2**31  # no kernel is given them
    n: int
    calls: tuple[Call, ...]
    inputs: tuple[Operand, ...]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        tensors = [f"%{i}={_text(operand.shape)}:{operand.dtype}" for i, operand in enumerate(self.inputs)]
        parts = [*tensors, *map(str, self.calls), f"y={_text(self.shape)}"]
        return f"torch n={self.n} {' '.join(parts)} dtype={self.dtype} epilogue={self.epilogue}"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The result's shape, channels last if it is 4-d."""
        return stored(self.shape)

    @property
    def flops(self) -> int:
        """Not counted."""
        return 0

    def _inputs(self) -> tuple[Operand, ...]:
        return self.inputs

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Run the calls."""
        values: list[Any] = [
            _in_order(tensors[operand.name]) if operand.role == "input" else tensors[operand.name]
            for operand in self.inputs
        ]
        for call in self.calls:
            values.append(call.run(values))
        return values[-1].permute(0, 2, 3, 1) if len(self.shape) == 4 else values[-1]


def stored(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which an activation lies in memory: 4-d ones channels last."""
    return (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape


def _in_order(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 3, 1, 2) if x.dim() == 4 else x


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


@cache
def _function(name: str) -> Callable[..., Any]:
    if name == "getitem":
        return operator.getitem
    namespace, packet, overload = name.split(".")
    function: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    return function
