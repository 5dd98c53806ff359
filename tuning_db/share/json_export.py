"""Exports a database to a JSON file that people can read and compare, and imports it.

The file has one line for each row. Binaries are in base64; NaN and infinities are {"float": "nan"}.
"""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tuning_db.errors import DatabaseError
from tuning_db.location import SCHEMA_VERSION, SCHEMAS
from tuning_db.schema import Base
from tuning_db.share.merge import Outcome, merge_into
from tuning_db.share.snapshot import TABLES, Row, Snapshot, read
from tuning_db.store import Store
from tuning_db.trust import digests
from tuning_db.trust.binaries import Unpacker

FORMAT = "autotune tuning database"

_LISTS = ("launch_names", "samples_us", "choices")
"""Columns of JSON that hold a list; the others hold a dictionary."""

_INTEGERS = 2**63
"""Integers of a database are at least -_INTEGERS and smaller than _INTEGERS."""


def export(store: Store, path: Path) -> None:
    """Write all rows to a new file; raises DatabaseError if it exists or cannot be written."""
    snapshot = read(store)
    try:
        with path.open("x") as file:
            file.write(f'{{"format": {json.dumps(FORMAT)}, "schema": {SCHEMA_VERSION}')
            for table in TABLES:
                rows = ",\n".join(json.dumps(_plain_value(row), allow_nan=False) for row in snapshot[table])
                file.write(f',\n"{table}": [\n{rows}\n]')
            file.write("}\n")
    except FileExistsError:
        raise DatabaseError(f"{path} exists: remove it or name another file") from None
    except OSError as error:
        raise DatabaseError(f"cannot write {path}: {error.strerror}") from error


def import_(path: Path, store: Store) -> Outcome:
    """Add the rows of an exported file to a database; raises DatabaseError if it is not one, or is damaged."""
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise DatabaseError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DatabaseError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise DatabaseError(f"{path} is not an exported tuning database: its first line does not say so")
    if data.get("schema") not in SCHEMAS:
        found = str(data.get("schema"))[:20]
        raise DatabaseError(f"{path} has schema {found}, this version reads {SCHEMA_VERSION}: export it again")
    try:
        data.setdefault("network", [])  # older versions export none
        snapshot: Snapshot = {table: [_row(str(path), table, row) for row in data[table]] for table in TABLES}
        for table, rows in snapshot.items():
            if len({row["id"] for row in rows}) < len(rows):
                raise ValueError(f"two rows of '{table}' have the same id")
        digests.fill(str(path), snapshot)
        return merge_into(store, snapshot)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DatabaseError(f"{path} is damaged: {type(error).__name__} {error}; nothing was imported") from error
    except sa.exc.IntegrityError as error:
        raise DatabaseError(f"{path} is damaged: {error.orig}; nothing was imported") from error


def _plain_value(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case float() if not math.isfinite(value):
            return {"float": str(value)}
        case dict():
            return {name: _plain_value(item) for name, item in value.items()}
        case list():
            return [_plain_value(item) for item in value]
    return value


def _row(file: str, table: str, row: Row) -> Row:
    """Return the row that `export` wrote.

    Raises:
        ValueError: It has other columns, or a value of a wrong type.
        DatabaseError: Its binary is damaged.
    """
    columns = Base.metadata.tables[table].c
    names = set(columns.keys())
    if set(row) != names:
        raise ValueError(f"a row of '{table}' has the wrong columns: {', '.join(sorted(set(row) ^ names))}")
    row = {name: _value(value) for name, value in row.items()}
    if "blob" in row:
        row["blob"] = base64.b64decode(row["blob"], validate=True)
    for column in columns:
        if not _fits(row[column.name], column):
            raise ValueError(f"'{column.name}' of a row of '{table}' is {repr(row[column.name])[:40]}")
    if "blob" in row:
        Unpacker(file).binary(row["blob"], row["digest"], row["size"])
    return row


def _fits(value: Any, column: sa.Column[Any]) -> bool:
    """Return whether a value has the type of a column, and can be stored in it."""
    if value is None:
        return bool(column.nullable)
    if isinstance(column.type, sa.JSON):
        return type(value) is (list if column.name in _LISTS else dict)
    types = (int, float) if isinstance(column.type, sa.Float) else (column.type.python_type,)
    if type(value) is int:
        return int in types and -_INTEGERS <= value < _INTEGERS
    return type(value) in types and not (isinstance(value, str) and any(map(_is_surrogate, value)))


def _is_surrogate(character: str) -> bool:
    """Return whether a character cannot be encoded: half of a pair that JSON may hold alone."""
    return "\ud800" <= character <= "\udfff"


def _value(value: Any) -> Any:
    match value:
        case {"float": str(text)} if len(value) == 1:
            return float(text)
        case dict():
            return {name: _value(item) for name, item in value.items()}
        case list():
            return [_value(item) for item in value]
    return value
