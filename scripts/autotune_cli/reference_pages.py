"""The generated parts of the pages in docs/reference: operators, steps, families, options, tables, figures.

docs/site_hooks.py puts them between the markers of each page when the site is built; pages in git have a note there.
`python -m autotune_cli.reference_pages docs/reference/families.md` prints one page with its generated parts.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path

import sqlalchemy as sa

from autotune.core import ARCHITECTURES
from autotune.families import PERMISSIONS, AnyFamily, Parameter, Value, families, folder_of
from autotune.ir import DTYPES, OPERATORS, Problem
from autotune.ir.epilogue_steps import STEPS
from autotune.ir.problem import FieldType, field_types
from autotune_cli.figures import Catalogue, Group, command, record_name
from autotune_cli.main import COMMANDS, options_module
from autotune_cli.record import ROOT
from tuning_db.location import SCHEMA_VERSION
from tuning_db.schema import Base

_MARK = re.compile(r"(<!-- (\w+), generated -->\n).*?(<!-- end -->)", re.DOTALL)


def refreshed(page: str) -> str:
    """Return the text of a page with its generated parts replaced."""
    return _MARK.sub(lambda found: f"{found[1]}{_PARTS[found[2]]()}{found[3]}", page)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is, in one line, in a cell of a table."""
    return re.sub(r"([|*<\[\]])", r"\\\1", " ".join(text.split()))


# -- problems.md -------------------------------------------------------------------------------------------------------


def usage(operator: type[Problem]) -> str:
    """Return the syntax of an operator, such as "conv2d n=N h=N ... [stride=1,1] ... dtype=DTYPE [epilogue=none]"."""
    fields = sorted(dataclasses.fields(operator), key=lambda field: field.name in ("dtype", "epilogue"))
    types = field_types(operator)
    return " ".join([operator.operator, *(_word(field, types[field.name]) for field in fields)])


def _word(field: dataclasses.Field[object], kind: FieldType) -> str:
    if field.default is not dataclasses.MISSING:
        return f"[{field.name}={kind.write(field.default)}]"
    return f"{field.name}={kind.placeholder}"


def _operators() -> str:
    return "\n".join(
        f"### {name}\n\n```\n{usage(operator)}\n```\n\n{inspect.cleandoc(operator.__doc__ or '')}\n"
        for name, operator in OPERATORS.items()
    )


def _steps() -> str:
    rows = [(f"`{name}`", ", ".join(kind.operands)) for name, kind in STEPS.items() if not kind.custom]
    return _table(["step", "operands"], rows)


# -- families.md -------------------------------------------------------------------------------------------------------


def _own_families() -> list[AnyFamily]:
    return [family for name, family in families().items() if folder_of(name) is None]


def _families() -> str:
    """Return a table of the operators, dtypes and architectures that each family has kernels for."""
    rows = [
        (f"[`{family.name}`](#{family.name})", ", ".join(each.operator for each in family.operators), _served(family))
        for family in _own_families()
    ]
    return _table(["family", "operators", "dtypes: architectures"], rows)


def _served(family: AnyFamily) -> str:
    """Return the architectures for each dtype of a family; dtypes with the same ones share an entry."""
    dtypes_on: dict[str, list[str]] = {}
    for dtype in (dtype for dtype in DTYPES if dtype in family.dtypes):
        names = [arch.name for arch in ARCHITECTURES.values() if dtype in arch.dtypes]
        if served := ", ".join(name for name in names if name in family.architectures):
            dtypes_on.setdefault(served, []).append(dtype)
    return "; ".join(f"{', '.join(dtypes)}: {served}" for served, dtypes in dtypes_on.items())


def _parameters() -> str:
    return "\n".join(map(_family_section, _own_families()))


def _family_section(family: AnyFamily) -> str:
    about = " ".join(inspect.cleandoc(type(family).__doc__ or "").split("\n\n")[0].split())
    facts = [f"Template: `templates/{family.template}`."]
    for name, meaning in PERMISSIONS.items():
        if any(name in family.required_permissions({each.name: value}) for each, value in _values(family)):
            facts.append(f"Some configs need the permission `{name}` ({meaning}).")
    rows = [(f"`{each.name}`", _written(each.values), _plain(each.meaning)) for each in family.parameters]
    rows += [
        (f"`{each.name}` (launch)", _written(each.values), _plain(each.meaning)) for each in family.launch_parameters
    ]
    table = "\n" + _table(["parameter", "values", "meaning"], rows) if rows else ""
    return f"### {family.name}\n\n{_plain(about)}\n\n{' '.join(facts)}\n{table}"


def _values(family: AnyFamily) -> Iterator[tuple[Parameter, Value]]:
    return ((parameter, value) for parameter in family.parameters for value in parameter.values)


def _written(values: Sequence[Value]) -> str:
    """Return values joined by commas; five or more integers in a row are written as first to last."""
    runs: list[list[Value]] = [[value] for value in values[:1]]
    for before, value in pairwise(values):
        if isinstance(before, int) and value == before + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    words = ([f"{run[0]} to {run[-1]}"] if len(run) > 4 else [f"{value}" for value in run] for run in runs)
    return ", ".join(chain.from_iterable(words))


# -- options.md --------------------------------------------------------------------------------------------------------


def _commands() -> str:
    """Return a table of all commands, then the arguments and options of each one."""
    rows = [
        (heading, f"[`autotune {name}`](#autotune-{name})", about)
        for heading, commands in COMMANDS.items()
        for name, about in commands.items()
    ]
    sections = [_command(name) for group in COMMANDS.values() for name in group]
    return "\n".join([_table(["", "command", "what it does"], rows), *sections])


def _command(name: str) -> str:
    found = importlib.import_module(options_module(name))
    parser = argparse.ArgumentParser(prog=f"autotune {name}")
    found.add_arguments(parser)
    about = inspect.cleandoc(found.__doc__ or "")
    return f"## autotune {name}\n\n```text\n{about}\n```\n{_arguments(parser)}{_subcommands(parser)}"


def _subcommands(parser: argparse.ArgumentParser) -> str:
    """Return the sections of a command's own commands, such as `db merge`."""
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return "".join(
        f"\n### {sub.prog.partition(' ')[0]} {sub.prog.split()[1]} {name}\n\n{_plain(sub.description or '')}\n"
        f"{_arguments(sub)}"
        for action in found
        for name, sub in action.choices.items()
    )


def _arguments(parser: argparse.ArgumentParser) -> str:
    """Return a table of a parser's arguments, by group."""
    text = ""
    for group in parser._action_groups:
        actions = [
            action
            for action in group._group_actions
            if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
            and action.help != argparse.SUPPRESS
        ]
        if actions:
            title = "" if group in (parser._positionals, parser._optionals) else _plain(group.title or "")
            title = f"\n**{title[0].upper()}{title[1:]}**\n" if title else ""
            rows = [(_spelling(action), _plain(_help(parser, action))) for action in actions]
            text += f"{title}\n{_table(['argument', 'meaning'], rows)}"
    return text


def _spelling(action: argparse.Action) -> str:
    """Return how an argument is written, such as `--batch N[,N]`."""
    name = action.metavar or (
        f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper().replace("_", "-")
    )
    value = name if isinstance(name, str) else " ".join(name)
    value = {"+": f"{value} ...", "*": f"[{value} ...]", "?": f"[{value}]"}.get(str(action.nargs), value)
    if not action.option_strings:
        return f"`{value}`"
    words = [option if action.nargs == 0 else f"{option} {value}" for option in action.option_strings]
    return ", ".join("`{}`".format(word.replace("|", "\\|")) for word in words)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


# -- database.md -------------------------------------------------------------------------------------------------------


def _tables() -> str:
    """Return the version of the schema, and the columns of each table."""
    documented = {str(mapper.local_table): mapper.class_.__doc__ or "" for mapper in Base.registry.mappers}
    sections = [
        f"### {table.name}\n\n{_plain(documented[table.name])}\n\n"
        + _table(["column", "type", "meaning"], [_column(column) for column in table.columns])
        + "".join(f"\nUnique together: {', '.join(f'`{name}`' for name in names)}.\n" for names in _unique(table))
        for table in Base.metadata.tables.values()
    ]
    return f"The version of the schema is **{SCHEMA_VERSION}**.\n\n" + "\n".join(sections)


def _column(column: sa.Column[object]) -> tuple[str, str, str]:
    kind = str(column.type) + (", may be NULL" if column.nullable else "")
    marks = ["unique"] * bool(column.unique) + [
        f"refers to [`{key.target_fullname}`](#{key.column.table.name})" for key in column.foreign_keys
    ]
    about = ["the row's number"] if column.primary_key and column.name == "id" else []
    about += [_plain(column.doc)] if column.doc else []
    return f"`{column.name}`", kind, "; ".join([*about, *marks])


def _unique(table: sa.FromClause) -> list[list[str]]:
    constraints = getattr(table, "constraints", ())
    found = [list(each.columns.keys()) for each in constraints if isinstance(each, sa.UniqueConstraint)]
    return [names for names in found if len(names) > 1]


# -- figures.md --------------------------------------------------------------------------------------------------------


def _figures() -> str:
    """Return a table of the groups of figures, the commands that measure them, the debts and the formulas."""
    catalogue = Catalogue.read(ROOT)
    groups = [*catalogue.groups.values()]
    rows = [
        (f"`{group.id}`", *_stands_on(group), ", ".join(f"`{name}.json`" for name in group.record)) for group in groups
    ]
    commands = "".join(f"# {group.id}\n{command([group], record_name(catalogue, group))}\n" for group in groups)
    debts = [(f"`{name}`", f"{number}", _plain(reason)) for (number, name), reason in sorted(catalogue.debts.items())]
    formulas = [(f"`{name}`", f"`{formula}`") for name, (formula, _) in catalogue.formulas.items()]
    return "\n".join(
        [
            _table(["group", "device", "batches", "database and plan", "record"], rows),
            f"### Commands\n\n```sh\n{commands}```\n",
            f"### Debts\n\n{_table(['figure or record', 'fault', 'reason'], debts)}",
            f"### Formulas\n\n{_table(['id', 'formula'], formulas)}",
        ]
    )


def _stands_on(group: Group) -> tuple[str, str, str]:
    """Return the device, the batch sizes and the database of a group; a batch in * has kernels of older templates."""
    batches = ", ".join(f"{batch}*" if batch in group.older else f"{batch}" for batch in group.batches)
    database = f"`{group.database}`" + (f": `{group.plan}`" if group.plan else ", no plan")
    return group.device, _plain(batches), database if group.database else "tuned in the run"


_PARTS = {
    "operators": _operators,
    "steps": _steps,
    "families": _families,
    "parameters": _parameters,
    "commands": _commands,
    "tables": _tables,
    "figures": _figures,
}
"""Name in the markers -> what returns the part."""


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        sys.stdout.write(refreshed(path.read_text()))
