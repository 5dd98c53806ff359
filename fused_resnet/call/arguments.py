"""The arguments of a call, taken apart: their tensors, and a text of everything else.

The text is a Python literal, a pair of the positional and the keyword arguments, in which `...` stands for a tensor:
"(...,[...,...],0.5,),{'mask':...}". It is a key of captures and plans, and an argument of the operator that
tracers record.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autotune.ir import TENSOR_DTYPES, CallerTensor, tensor_dtype_name
from fused_resnet.torch_op import InputError

ONE_TENSOR = "(...,),{}"
"""The text of a call with one tensor and nothing else."""


@dataclass(frozen=True)
class Signature:
    """The arguments of a call without the values of its tensors: a capture depends on nothing else.

    Attributes:
        tensors: Shape and dtype of each tensor, in the order in which the text holds them.
        arguments: The text of the arguments.
    """

    tensors: tuple[CallerTensor, ...]
    arguments: str = ONE_TENSOR

    @classmethod
    def of(cls, tensors: Iterable[torch.Tensor], arguments: str = ONE_TENSOR) -> Signature:
        """Return the signature of a call.

        Raises:
            InputError: A tensor's dtype is not supported.
        """
        return cls(tuple(map(_described, tensors)), arguments)

    @property
    def leading(self) -> CallerTensor:
        """Return the tensor whose first dimension is the batch: the first one in floating point, or else the first."""
        floats = (tensor for tensor in self.tensors if _is_float(tensor))
        return next(floats, self.tensors[0])

    @property
    def dtype(self) -> torch.dtype | None:
        """Return the dtype of the first tensor in floating point; None without one."""
        return TENSOR_DTYPES[self.leading.dtype] if _is_float(self.leading) else None

    def __str__(self) -> str:
        shapes = [str(tensor.shape) for tensor in self.tensors]
        return f"an input of {shapes[0]}" if self.arguments == ONE_TENSOR else f"inputs of {', '.join(shapes)}"


def _described(x: torch.Tensor) -> CallerTensor:
    dtype = tensor_dtype_name(x.dtype)
    if dtype is None:
        raise InputError(f"an input is {x.dtype}: give real numbers, integers or booleans")
    return CallerTensor(tuple(map(int, x.shape)), dtype)  # int() fixes a size that is symbolic for a tracer


def _is_float(tensor: CallerTensor) -> bool:
    return TENSOR_DTYPES[tensor.dtype].is_floating_point


def take_apart(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, list[torch.Tensor]]:
    """Return the text of a call's arguments, and their tensors.

    Args:
        names: Names of forward's parameters that can be given by position; arguments given by name become positional.
        args: The positional arguments.
        kwargs: The keyword arguments.

    Raises:
        InputError: There is no tensor, or a value is not a tensor, a number, a text, None, or a tuple, list or
            dictionary of these.
    """
    positional, named = list(args), dict(kwargs)
    for name in names[len(args) :]:
        if name not in named:
            break
        positional.append(named.pop(name))
    tensors: list[torch.Tensor] = []
    text = f"{_text(tuple(positional), tensors)},{_text(named, tensors)}"
    if not tensors:
        raise InputError(_no_tensor(positional[0]) if positional else "no input was given: give a tensor")
    return text, tensors


def put_together(text: str, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments of a text, with these tensors."""
    args, kwargs = _filled(ast.literal_eval(text), iter(tensors))
    return args, kwargs


def positions(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters of a module's forward that can be given by position.

    A name is empty if the parameter cannot be given by name.
    """
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # a forward that is no Python function
        return ()
    both, alone = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY
    return tuple(one.name if one.kind is both else "" for one in parameters if one.kind in (both, alone))


def check_arguments(module: nn.Module, text: str) -> None:
    """Check that the forward of a module takes these arguments.

    Raises:
        InputError: It does not.
    """
    args, kwargs = put_together(text, [None] * text.count("..."))
    try:
        inspect.signature(module.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(f"{type(module).__name__}.forward does not take these arguments: {error}") from error
    except ValueError:
        return  # a forward that is no Python function


def _text(value: Any, tensors: list[torch.Tensor]) -> str:
    """Return the text of a value, and append its tensors to `tensors`."""
    # torch.compile traces this function, so it is plain Python.
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return "..."
    if type(value) is tuple:
        return "(" + "".join([_text(part, tensors) + "," for part in value]) + ")"
    if type(value) is list:
        return "[" + ",".join([_text(part, tensors) for part in value]) + "]"
    if type(value) is dict:
        return "{" + ",".join([f"{_key(name)}:{_text(part, tensors)}" for name, part in value.items()]) + "}"
    if type(value) is float and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    if value is None or type(value) in (bool, int, str) or (type(value) is float and not math.isnan(value)):
        return repr(value)
    raise InputError(_no_tensor(value))


def _key(name: object) -> str:
    if type(name) not in (str, int):
        raise InputError(f"a dictionary among the inputs has the key {name!r}: texts and numbers are supported")
    return repr(name)


def _filled(value: Any, tensors: Iterator[Any]) -> Any:
    if value is ...:
        return next(tensors)
    if isinstance(value, tuple | list):
        return type(value)(_filled(part, tensors) for part in value)
    if isinstance(value, dict):
        return {name: _filled(part, tensors) for name, part in value.items()}
    return value


def _no_tensor(value: object) -> str:
    """Return the message for an input that is no tensor."""
    kind = type(value).__name__
    advice = "torch.from_numpy(x)" if kind == "ndarray" else "a tensor of the shape that the model takes"
    return f"the input is a {kind}, not a tensor: give {advice}"
