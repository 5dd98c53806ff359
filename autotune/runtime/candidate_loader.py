"""Rows of the database -> candidates: each binary is checked and written to the private folder of binaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from autotune.runtime import binary_cache
from autotune.runtime.binding import Candidate

if TYPE_CHECKING:
    from tuning_db.protocols import Database, Kernel


def candidate(store: Database, row: Kernel, launch: Mapping[str, int]) -> Candidate:
    """Return the candidate of a kernel's row.

    Args:
        store: The database that holds the row.
        row: The kernel.
        launch: Launch parameters by name.

    Raises:
        DatabaseError: The kernel's binary is damaged.
    """
    library = row.library
    if library is None:
        return Candidate(row.family, row.config, row.symbol)
    path = binary_cache.put(library.digest, library.kind, lambda: store.binary(library))
    return Candidate(
        row.family,
        row.config,
        row.symbol,
        library.kind,
        path,
        row.weight_layouts,
        dict(launch),
        tuple(row.launch_names),
    )
