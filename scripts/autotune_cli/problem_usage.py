"""The syntax of problems, generated from the operators, for docs/reference/problems.md."""

from __future__ import annotations

import dataclasses

from autotune.ir import Problem
from autotune.ir.problem import FieldType, field_types


def usage(operator: type[Problem]) -> str:
    """Return the syntax of an operator, such as "conv2d n=N h=N ... [stride=1,1] ... dtype=DTYPE [epilogue=none]"."""
    fields = sorted(dataclasses.fields(operator), key=lambda field: field.name in ("dtype", "epilogue"))
    types = field_types(operator)
    return " ".join([operator.operator, *(_word(field, types[field.name]) for field in fields)])


def _word(field: dataclasses.Field[object], kind: FieldType) -> str:
    if field.default is not dataclasses.MISSING:
        return f"[{field.name}={kind.write(field.default)}]"
    return f"{field.name}={kind.placeholder}"
