"""Types of problems' fields, the element types of tensors among them: how a value is written, read and checked."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, cast

import torch

from autotune.core import ProblemError, require_one_of
from autotune.ir.epilogue import Epilogue

DTYPES: dict[str, torch.dtype] = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "s8": torch.int8,
    "e4m3": torch.float8_e4m3fn,
}
"""Name -> dtype of the tensors.

tf32: float32 tensors whose products are rounded to TF32. s8: products are summed in int32, the epilogue runs in
float32, and the result is rounded to the nearest integer (ties to even) and saturated. e4m3: products are summed in
float32, and the result is rounded to the nearest number of the format (ties to even) and saturated to +-448."""
TENSOR_DTYPES: dict[str, torch.dtype] = {
    **DTYPES,
    **{"f64": torch.float64, "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8},
    **{"u8": torch.uint8, "bool": torch.bool},
}
"""DTYPES, and the dtypes of tensors that only torch's operators take. i8 are integers, s8 are quantized values."""
_NAMES = {dtype: name for name, dtype in TENSOR_DTYPES.items() if name not in ("tf32", "s8", "e4m3")}
_ALIASES = {
    **{"float32": "f32", "fp32": "f32", "float": "f32"},
    **{"float16": "f16", "fp16": "f16", "half": "f16"},
    **{"bfloat16": "bf16", "tensorfloat32": "tf32", "int8": "s8"},
    **{"float8_e4m3fn": "e4m3", "float8": "e4m3", "fp8": "e4m3"},
}


def dtype_name(dtype: str | torch.dtype) -> str:
    """Return the name in DTYPES of a dtype or alias, such as "f16" for torch.float16, "half" and "fp16".

    Raises:
        UnknownNameError: The dtype is none of them; the message lists the names.
    """
    text = str(dtype).removeprefix("torch.")
    return require_one_of("dtype", _ALIASES.get(text, text), list(DTYPES))


def tensor_dtype_name(dtype: torch.dtype) -> str | None:
    """Return the name in TENSOR_DTYPES of a tensor's dtype; None for complex numbers and other dtypes without one."""
    return _NAMES.get(dtype)


def value_text(value: object) -> str:
    """Return the text of a field's value; the numbers of a pair are separated by a comma."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _read_pair(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in text.split(","))
    if len(numbers) > 2:
        raise ValueError(text)
    return numbers * 2 if len(numbers) == 1 else numbers


def _check_word(name: str, value: Any) -> None:
    if value.split() != [value]:
        raise ProblemError(f"{name}={value!r} must be one word, without spaces")


def _check_dtype(name: str, value: Any) -> None:
    require_one_of("dtype", value, list(DTYPES))


def _check_tensor_dtype(name: str, value: Any) -> None:
    require_one_of("dtype", value, list(TENSOR_DTYPES))


def _check_sizes(least: int) -> Callable[[str, Any], None]:
    def check(name: str, value: Any) -> None:
        if any(size < least for size in (value if isinstance(value, tuple) else (value,))):
            raise ProblemError(f"{name}={value_text(value)} must be at least {least}")

    return check


@dataclass(frozen=True)
class FieldType:
    """How the values of one type are written in problems' texts.

    An operator gives a type of its own to a field by `Annotated[type, FieldType(...)]`.

    Attributes:
        placeholder: Stands for a value in usage texts, such as "N".
        expected: Names the values that can be read, for error messages.
        read: Returns the value of a text, which has no whitespace; raises ValueError for any other text.
        check: Called with the field's name and value when a problem is made; raises an AutotuneError.
        write: Returns the text of a value, which `read` understands.
    """

    placeholder: str
    expected: str
    read: Callable[[str], object]
    check: Callable[[str, Any], None] = lambda name, value: None
    write: Callable[[Any], str] = value_text


_INT = FieldType("N", "a whole number", int, _check_sizes(1))
_PAIR = FieldType("N,N", "a whole number, or a pair of them such as 2,1", _read_pair, _check_sizes(1))

Pair = tuple[int, int]
"""Two numbers of at least 1, of the height and of the width; in texts, one number stands for both."""

NonNegative = Annotated[int, dataclasses.replace(_INT, check=_check_sizes(0))]
"""A number of at least 0. A plain int is at least 1."""

NonNegativePair = Annotated[tuple[int, int], dataclasses.replace(_PAIR, check=_check_sizes(0))]
"""Two numbers of at least 0."""

DtypeName = Annotated[str, FieldType("DTYPE", "a dtype", dtype_name, _check_dtype)]
"""A name of DTYPES; texts may also use its aliases, such as `half`."""

TensorDtypeName = Annotated[str, FieldType("DTYPE", "a dtype", str, _check_tensor_dtype)]
"""A name of TENSOR_DTYPES."""

_TYPES: Mapping[object, FieldType] = {
    int: _INT,
    Pair: _PAIR,
    str: FieldType("WORD", "a word", str, _check_word),
    Epilogue: FieldType("STEPS", "names of steps", Epilogue.parse),
}


def field_types(operator: type[Any]) -> Mapping[str, FieldType]:
    """Return the field types of an operator, by field; fields of other types than these are left out.

    Fields without a FieldType can only be given in Python: the operator cannot be read from text.
    """
    return _field_types(cast(Hashable, operator))


@cache
def reader_of_fields(operator: type[Any]) -> Callable[[Any], Any]:
    """Return a function that returns the values of all fields of an operator's problem."""
    return attrgetter(*(field.name for field in dataclasses.fields(operator)))


@cache
def _field_types(operator: type[Any]) -> Mapping[str, FieldType]:
    known: dict[str, FieldType | None] = {}
    for base in reversed(operator.__mro__[1:]):
        if dataclasses.is_dataclass(base):
            known.update(_field_types(base))
    # The annotations of the class alone: evaluating those of its bases again would take most of the time.
    own = {"__annotations__": inspect.get_annotations(operator), "__module__": operator.__module__}
    for name, hint in typing.get_type_hints(type(operator.__name__, (), own), include_extras=True).items():
        given = (extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, FieldType))
        known[name] = next(given, _TYPES.get(hint))
    return {field.name: kind for field in dataclasses.fields(operator) if (kind := known.get(field.name))}
