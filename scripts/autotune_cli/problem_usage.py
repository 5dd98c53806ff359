"""The syntax of problems, generated from the operators: for --help, and for docs/reference/problems.md.

`python -m autotune_cli.problem_usage docs/reference/problems.md` regenerates that page's tables; a test compares them.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from pathlib import Path

from autotune.core import ARCHITECTURES
from autotune.families import families
from autotune.ir import DTYPES, OPERATORS, Problem
from autotune.ir.epilogue_steps import STEPS
from autotune.ir.problem import FieldType, field_types

_MARK = re.compile(r"(<!-- (\w+), generated -->\n).*?(<!-- end -->)", re.DOTALL)


def usage(operator: type[Problem]) -> str:
    """Return the syntax of an operator, such as "conv2d n=N h=N ... [stride=1,1] ... dtype=DTYPE [epilogue=none]"."""
    fields = sorted(dataclasses.fields(operator), key=lambda field: field.name in ("dtype", "epilogue"))
    types = field_types(operator)
    return " ".join([operator.operator, *(_word(field, types[field.name]) for field in fields)])


def _word(field: dataclasses.Field[object], kind: FieldType) -> str:
    if field.default is not dataclasses.MISSING:
        return f"[{field.name}={kind.write(field.default)}]"
    return f"{field.name}={kind.placeholder}"


# -- docs/reference/problems.md ----------------------------------------------------------------------------------------


def _operators() -> str:
    return "\n".join(
        f"### {name}\n\n```\n{usage(operator)}\n```\n\n{inspect.cleandoc(operator.__doc__ or '')}\n"
        for name, operator in OPERATORS.items()
    )


def _steps() -> str:
    rows = [f"| `{name}` | {', '.join(kind.operands)} |\n" for name, kind in STEPS.items() if not kind.custom]
    return "| step | operand |\n| --- | --- |\n" + "".join(rows)


def _served() -> str:
    """Return a table of the architectures for which each family has kernels, by operator and dtype."""
    text = "| operator | family | dtype: architectures |\n| --- | --- | --- |\n"
    for family in families().values():
        own = [dtype for dtype in DTYPES if dtype in family.dtypes]
        served = {dtype: [arch.name for arch in ARCHITECTURES.values() if dtype in arch.dtypes] for dtype in own}
        words = [
            f"{dtype}: {', '.join(name for name in names if name in family.architectures)}"
            for dtype, names in served.items()
            if set(names) & set(family.architectures)
        ]
        solved = ", ".join(operator.operator for operator in family.operators)
        text += f"| {solved} | `{family.name}` | {'; '.join(words)} |\n"
    return text


def refreshed(page: str) -> str:
    """Return the page with its generated parts replaced."""
    parts = {"operators": _operators, "steps": _steps, "families": _served}
    return _MARK.sub(lambda found: f"{found[1]}{parts[found[2]]()}{found[3]}", page)


if __name__ == "__main__":
    for argument in map(Path, sys.argv[1:]):
        argument.write_text(refreshed(argument.read_text()))
