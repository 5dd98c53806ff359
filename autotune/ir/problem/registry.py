"""All operators by name, the built-in ones and those that users define, and the reading of problems from their text."""

from __future__ import annotations

import dataclasses
import re
from typing import TypeVar, dataclass_transform

from autotune.core import AutotuneError, ProblemError, require_one_of
from autotune.ir.problem.base import Problem, problem_class
from autotune.ir.problem.fields import FieldType, field_types

OPERATORS: dict[str, type[Problem]] = {}
"""Operator name -> class, in the order of registration."""

P = TypeVar("P", bound=Problem)
_BUILT_IN_PACKAGE = "autotune.ir.operators."


@dataclass_transform(frozen_default=True, kw_only_default=True)
def register(cls: type[P]) -> type[P]:
    """Make a class a dataclass, unless it is one, and its operator known; a decorator.

    Kernels of a user's operator receive its C struct, which is declared for them from `sizes`. Operators may share a
    struct if its fields are the same.

    Raises:
        ProblemError: A name cannot be used in C, is taken, or is no attribute of the problem.
    """
    if "_names" not in vars(cls):
        cls = problem_class(cls)
    for name in (cls.operator, cls.struct, *cls.sizes.split()):
        if not re.fullmatch(r"[a-z]\w*", name):
            raise ProblemError(f"{cls.__name__}: '{name}' cannot be a name in C: use small letters, digits and _")
    if unknown := _unknown_sizes(cls):
        raise ProblemError(f"{cls.__name__}: sizes names {', '.join(unknown)}, which the problem does not have")
    if cls.operator in OPERATORS:
        raise ProblemError(f"{cls.__name__}: there is already an operator '{cls.operator}'")
    for other in OPERATORS.values():
        if other.struct == cls.struct and other.sizes.split() != cls.sizes.split():
            raise ProblemError(
                f"{cls.__name__}: the struct {cls.struct} has the fields {other.sizes}, not {cls.sizes}: "
                "give the operator a `struct` of another name"
            )
    OPERATORS[cls.operator] = cls
    return cls


def is_built_in(operator: type[Problem]) -> bool:
    """Return whether an operator is part of this package, not a user's."""
    return operator.__module__.startswith(_BUILT_IN_PACKAGE)


def _unknown_sizes(cls: type[Problem]) -> list[str]:
    """Return the names of `sizes` for which the class has no attribute, unless it computes the values itself."""
    if cls.struct_values is not Problem.struct_values:
        return []
    attributes = {field.name for field in dataclasses.fields(cls)} | set(dir(cls))
    return [name for name in cls.sizes.split() if not {name, re.sub("_[hw]$", "", name)} & attributes]


def parse(text: str) -> Problem:
    """Read a problem from its text; fields with a default may be left out.

    Args:
        text: The operator's name and its fields, such as "gemm m=8 n=64 k=32 dtype=f16 epilogue=bias,relu".

    Raises:
        ProblemError: A field is unknown, missing, given twice, or has a value that the operator does not support.
        UnknownNameError: There is no such operator or dtype.
    """
    operator, *words = text.split() or [""]
    cls = OPERATORS[require_one_of("operator", operator, list(OPERATORS))]
    types = field_types(cls)
    values: dict[str, object] = {}
    for word in words:
        name, separator, _ = word.partition("=")
        if not separator or name not in types:
            raise ProblemError(f"'{word}' in '{text}' is not one of {', '.join(types)} written as name=value")
        if name in values:
            raise ProblemError(f"'{text}' gives {name} twice")
        values[name] = _read(types[name], word, text)
    missing = [name for name in types if name not in cls._defaults and name not in values]
    if missing:
        raise ProblemError(f"'{text}' lacks {', '.join(missing)}")
    return cls(**values)


def kind_of(text: str) -> tuple[str, str]:
    """Return what problems must share to be solved by the same kernels: operator, and dtype with epilogue.

    Args:
        text: The text of a problem, which may be of an operator that this version does not have.
    """
    return text.partition(" ")[0], text.partition(" dtype=")[2]


def size_class(text: str) -> str:
    """Return a problem's text without its batch size and the sizes of its images: kernels of one serve the others.

    Args:
        text: The text of a problem, which may be of an operator that this version does not have.
    """
    operator = OPERATORS.get(text.partition(" ")[0])
    sizes = (operator.batch_field, *operator.size_fields) if operator else ()
    return " ".join(word for word in text.split(" ") if word.partition("=")[0] not in sizes)


def _read(kind: FieldType, word: str, text: str) -> object:
    try:
        return kind.read(word.partition("=")[2])
    except AutotuneError:
        raise
    except ValueError:
        raise ProblemError(f"'{word}' in '{text}' is not {kind.expected}") from None
