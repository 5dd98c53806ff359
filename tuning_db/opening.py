"""The function that opens a database for running networks: a file, the file of a URL, or a server."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from tuning_db.errors import DatabaseError
from tuning_db.location import Location, is_address, is_remote
from tuning_db.reader import Reader
from tuning_db.trust.signature import TRUSTED, public_keys

if TYPE_CHECKING:
    from tuning_db import protocols


def open_reader(
    where: Location, trusted_keys: Iterable[str | os.PathLike[str]] = ()
) -> AbstractContextManager[protocols.Database]:
    """Open a database for running networks.

    Args:
        where: The database. The file of a URL is fetched first, unless the user's cache has it.
        trusted_keys: Public keys, one of which must have signed the database: PEM files, their text, or base64. Without
            any, those of the environment variable AUTOTUNE_TRUSTED_KEYS.

    Raises:
        DatabaseError: There is no database, it cannot be read, or it is not signed by one of the keys.
    """
    keys = public_keys(trusted_keys)
    if is_remote(where):
        from tuning_db import remote

        return Reader(remote.fetched(where), keys, remote.name_of(where))
    if not is_address(where):
        return Reader(Path(where), keys)
    if keys:
        raise DatabaseError(
            f"a database on a server has no signature: pack it into a file by `autotune db pack` and sign that, "
            f"or do not set {TRUSTED}"
        )
    from tuning_db.store import Store

    return Store.open(where)
