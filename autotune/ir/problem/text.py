"""Reading problems from their text."""

from __future__ import annotations

import dataclasses

from autotune.core import ProblemError, require_one_of
from autotune.ir.epilogue import Epilogue
from autotune.ir.problem.base import Problem
from autotune.ir.problem.dtypes import dtype_name
from autotune.ir.problem.registry import OPERATORS


def parse(text: str) -> Problem:
    """Read a problem from its text; fields with a default may be left out. Raises ProblemError or UnknownNameError."""
    operator, *words = text.split() or [""]
    cls = OPERATORS[require_one_of("operator", operator, list(OPERATORS))]
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values: dict[str, object] = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or name not in fields:
            raise ProblemError(f"'{word}' in '{text}' is not one of {', '.join(fields)} written as name=value")
        if name in values:
            raise ProblemError(f"'{text}' gives {name} twice")
        values[name] = _from_text(name, value, text)
    missing = [name for name, field in fields.items() if field.default is dataclasses.MISSING and name not in values]
    if missing:
        raise ProblemError(f"'{text}' lacks {', '.join(missing)}")
    return cls(**values)  # type: ignore[arg-type]


def _from_text(name: str, value: str, text: str) -> object:
    if name in ("dtype", "result"):
        return dtype_name(value)
    if name == "epilogue":
        return Epilogue.parse(value)
    try:
        numbers = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise ProblemError(f"'{name}={value}' in '{text}' is not a whole number or a pair of them") from None
    pair = name in ("stride", "pad", "dilation")
    if len(numbers) > 1 + pair:
        raise ProblemError(f"'{name}={value}' in '{text}' has too many numbers")
    if pair:
        return numbers * 2 if len(numbers) == 1 else numbers
    return numbers[0]
