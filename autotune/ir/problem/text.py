"""Reading problems from their text."""

from __future__ import annotations

import dataclasses

from autotune.core import AutotuneError, ProblemError, require_one_of
from autotune.ir.problem.base import Problem
from autotune.ir.problem.fields import FieldType, field_types
from autotune.ir.problem.registry import OPERATORS


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
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    missing = [name for name in types if defaults[name] is dataclasses.MISSING and name not in values]
    if missing:
        raise ProblemError(f"'{text}' lacks {', '.join(missing)}")
    return cls(**values)  # type: ignore[arg-type]


def _read(kind: FieldType, word: str, text: str) -> object:
    try:
        return kind.read(word.partition("=")[2])
    except AutotuneError:
        raise
    except ValueError:
        raise ProblemError(f"'{word}' in '{text}' is not {kind.expected}") from None
