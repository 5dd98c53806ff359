"""The database of checks that need none: an empty one, on which every layer runs on torch's operators."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuning_db import Store, open_reader


@contextmanager
def given_or_empty(given: Path | None) -> Iterator[Path]:
    """Yield the database that a user gave, or an empty one, which exists meanwhile.

    Raises:
        DatabaseError: The database cannot be read: an error of the command, not of each network.
    """
    with tempfile.TemporaryDirectory() as folder:
        database = given or Path(folder, "empty.db")
        if given is None:
            Store.create(database).close()
        with open_reader(database):
            pass
        yield database
