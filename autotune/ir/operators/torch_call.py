"""Calls of torch's own operators, for parts of a network that no other operator describes."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar

import torch

from autotune.ir.problem.base import Operand, Problem, Tensors, as_nchw, as_nhwc, problem_class
from autotune.ir.problem.fields import TensorDtypeName

LONGEST_TEXT = 2000
"""Longest text of tensors and calls; a longer one is replaced by its digest, because databases index the text."""
SHORT_NAMES = 8
"""Most calls that a short name lists."""


@dataclass(frozen=True)
class ValueRef:
    """A value as an argument of a call, by number: first the problem's inputs, then the results of its calls."""

    index: int

    def __repr__(self) -> str:
        return f"%{self.index}"


@dataclass(frozen=True)
class CallDevice:
    """The device on which a call runs, as an argument of the call."""

    def __repr__(self) -> str:
        return "device"


@dataclass(frozen=True)
class OperatorCall:
    """A call of one of torch's operators.

    Attributes:
        operator: Name in torch.ops, such as "aten.cat.default", or "getitem".
        args: Positional arguments: constants, ValueRef, CallDevice; a tuple stands for a list of them.
        kwargs: Keyword arguments, as pairs of name and value.
    """

    operator: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        arguments = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs)]
        return f"{self.operator}({','.join(arguments).replace(' ', '')})"

    @property
    def name(self) -> str:
        """Return the operator's name without namespace and overload."""
        return self.operator.split(".")[1 if "." in self.operator else 0]

    def resolve(
        self, values: Sequence[Any], device: torch.device
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Return the function of the call and its arguments, with `values` for ValueRefs."""

        def resolved(argument: Any) -> Any:
            if isinstance(argument, tuple):
                return [resolved(part) for part in argument]
            if isinstance(argument, ValueRef):
                return values[argument.index]
            return device if isinstance(argument, CallDevice) else argument

        kwargs = {name: resolved(value) for name, value in self.kwargs}
        return _function(self.operator), tuple(map(resolved, self.args)), kwargs


@problem_class
class TorchCall(Problem):
    """The result of the last of `calls`, or the input if there are none; only torch solves this problem.

    It is not registered: it can be neither read from text nor tuned.

    Attributes:
        n: The batch size, which cannot be changed.
        calls: The calls, in order, on tensors in torch's order of axes.
        inputs: The tensors; 4-d activations are channels last, as everywhere, apart from those of `in_torch_order`.
        shape: Shape of the result in torch's order.
        dtype: Dtype of the result.
        in_torch_order: Names of the inputs whose axes are in torch's order, such as the caller's image.
    """

    operator: ClassVar[str] = "torch"
    max_operands: ClassVar[int] = 2**31  # no kernel receives them
    n: int
    calls: tuple[OperatorCall, ...]
    inputs: tuple[Operand, ...]
    shape: tuple[int, ...]
    dtype: TensorDtypeName
    in_torch_order: tuple[str, ...] = ()

    def __str__(self) -> str:
        tensors = [
            f"%{i}={_shape_text(operand.shape)}:{operand.dtype}" + ":nchw" * (operand.name in self.in_torch_order)
            for i, operand in enumerate(self.inputs)
        ]
        parts = " ".join([*tensors, *map(str, self.calls)])
        if len(parts) > LONGEST_TEXT:
            parts = f"calls={len(self.calls)} sha256={hashlib.sha256(parts.encode()).hexdigest()}"
        return f"torch n={self.n} {parts} y={_shape_text(self.shape)} dtype={self.dtype} epilogue={self.epilogue}"

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Return a hash that is the same in each process. That of the fields takes a millisecond for a deep network."""
        return int(hashlib.sha256(str(self).encode()).hexdigest()[:15], 16)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return the result's shape, channels last if it is 4-d."""
        return stored_shape(self.shape)

    @property
    def roundings(self) -> int:
        """Return the number of calls."""
        return max(1, len(self.calls))

    @property
    def flops(self) -> int:
        """Return 0: they are not counted."""
        return 0

    @property
    def short_name(self) -> str:
        """Return the names of the first calls."""
        names = [call.name for call in self.calls]
        rest = [f"and {len(names) - SHORT_NAMES} more"] if len(names) > SHORT_NAMES else []
        return f"torch {', '.join([*names[:SHORT_NAMES], *rest])}"

    def _inputs(self) -> tuple[Operand, ...]:
        return self.inputs

    def is_channels_last(self, operand: Operand) -> bool:
        """Return whether the axes of one of `inputs` are (n, h, w, c), which the calls do not expect."""
        return operand.role == "input" and len(operand.shape) == 4 and operand.name not in self.in_torch_order

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Run the calls."""
        values: list[Any] = [
            as_nchw(tensors[operand.name]) if self.is_channels_last(operand) else tensors[operand.name]
            for operand in self.inputs
        ]
        device = next(value.device for value in values)
        for i, call in enumerate(self.calls):
            function, args, kwargs = call.resolve(values, device)
            values.append(function(*args, **kwargs))
            del args, kwargs
            for index in self._last_reads[i]:  # so that their memory is free for the next calls
                values[index] = None
        result: torch.Tensor = values[-1]
        return as_nhwc(result) if len(self.shape) == 4 else result

    @cached_property
    def _last_reads(self) -> list[list[int]]:
        """Return for each call the indices of the values that no later call reads, without the result."""
        last: dict[int, int] = {}
        for i, call in enumerate(self.calls):
            last[len(self.inputs) + i] = i
            last |= dict.fromkeys(_references((call.args, call.kwargs)), i)
        found: list[list[int]] = [[] for _ in self.calls]
        for index, i in last.items():
            if index != len(self.inputs) + len(self.calls) - 1:
                found[i].append(index)
        return found


def stored_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape in which an activation of this shape in torch's order is stored: channels last if it is 4-d."""
    return (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape


def _references(argument: Any) -> Iterator[int]:
    """Yield the indices of the values in an argument."""
    if isinstance(argument, ValueRef):
        yield argument.index
    elif isinstance(argument, tuple):
        for part in argument:
            yield from _references(part)


def _shape_text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


@cache
def _function(name: str) -> Callable[..., Any]:
    if name == "getitem":
        return operator.getitem
    namespace, packet, overload = name.split(".")
    function: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    return function
