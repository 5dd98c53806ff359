"""Rows of the database -> candidates that can be bound: the binary is checked and laid into the private folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from autotune.runtime import binary_cache
from autotune.runtime.binding import Candidate

if TYPE_CHECKING:
    from tuning_db.protocols import Database, Kernel


def candidate(store: Database, row: Kernel, launch: Mapping[str, int]) -> Candidate:
    """The candidate of a kernel's row with launch values; raises DatabaseError if its binary is damaged."""
    library = row.library
    if library is None:
        return Candidate(row.family, row.config, row.symbol)
    path = binary_cache.put(library.digest, library.kind, lambda: store.binary(library))
    return Candidate(row.family, row.config, row.symbol, library.kind, path, row.weight_layouts, dict(launch))
