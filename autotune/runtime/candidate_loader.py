"""Rows of the database -> candidates, whose binaries have the digests that their rows name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from autotune.runtime.binary import Binary
from autotune.runtime.binding import Candidate

if TYPE_CHECKING:
    from tuning_db.protocols import Database, Kernel, Library

_in_use: WeakValueDictionary[tuple[str, str], Binary] = WeakValueDictionary()
"""Binaries that some candidate has, by kind and digest: a library of several kernels is unpacked once."""


def candidate(store: Database, row: Kernel, launch: Mapping[str, int]) -> Candidate:
    """Return the candidate of a kernel's row.

    Args:
        store: The database that holds the row.
        row: The kernel.
        launch: Launch parameters by name.

    Raises:
        DatabaseError: The kernel's binary is damaged, or is not trusted.
    """
    if row.library is None:
        return Candidate(row.family, row.config, row.symbol)
    return Candidate(
        row.family,
        row.config,
        row.symbol,
        _binary(store, row.library),
        row.weight_layouts,
        dict(launch),
        tuple(row.launch_names),
    )


def _binary(store: Database, library: Library) -> Binary:
    key = library.kind, library.digest
    binary = _in_use.get(key)
    if binary is None:
        binary = _in_use[key] = Binary(*key, store.binary(library))
    return binary
