"""Packs binaries for shipping: Zstandard frames with a dictionary for the kernels of each family and target.

Kernels of a family share most of their code, so a dictionary of some of them makes the others small. A frame needs its
dictionary alone, so a reader unpacks any kernel without those beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from tuning_db.share.snapshot import Row, Snapshot
from tuning_db.trust.binaries import Unpacker, zstandard

DICTIONARY_BYTES = 5 * 2**18
"""Most bytes of binaries in a dictionary: 1 MiB makes files 2 % larger, and a plan unpacks in 31 instead of 41 ms."""

_LEVEL = 18
"""Level of Zstandard: an eighth fewer bytes than level 12, in ten times the time (3 s for 1 MB on one core)."""

_TABLE_BYTES = 2**12
"""More bytes than the tables take that Zstandard puts in front of a dictionary."""

_FEWEST_BYTES = 2**12
"""Bytes of binaries for which a dictionary is made; Zstandard makes no tables of a few bytes."""


def packed(snapshot: Snapshot, name: str) -> tuple[list[Row], list[Row]]:
    """Return the rows of the libraries with packed binaries, and the rows of their dictionaries.

    Args:
        snapshot: The content of a database.
        name: Name of the database, for messages.

    Raises:
        DatabaseError: A binary is damaged, or Python lacks Zstandard.
    """
    zstd = zstandard(name)
    unpacker, blobs, dictionaries = Unpacker(name), dict[int, bytes](), dict[int, Row]()
    for group in _groups(snapshot):
        binaries = [unpacker.binary(row["blob"], row["digest"], row["size"]) for row in group]
        shared = _dictionary(zstd, binaries)
        if shared and shared.dict_id not in dictionaries:
            content, options = shared.dict_content, zstd.CompressionParameter
            blob = zstd.compress(content, options={options.compression_level: _LEVEL, options.checksum_flag: 1})
            dictionaries[shared.dict_id] = {"id": shared.dict_id, "size": len(content), "blob": blob}
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # zstd holds no lock of Python
            frames = pool.map(partial(zstd.compress, level=_LEVEL, zstd_dict=shared), binaries)
            blobs |= zip((row["id"] for row in group), frames, strict=True)
    libraries = [{**row, "blob": blobs[row["id"]]} for row in snapshot["library"]]
    return libraries, [dictionaries[number] for number in sorted(dictionaries)]


def _groups(snapshot: Snapshot) -> Iterator[list[Row]]:
    """Yield the libraries by the family and target of their first kernel, each in the order of the kernels' configs."""
    first: dict[int, Row] = {}
    for kernel in snapshot["kernel"]:
        if kernel["library_id"] is not None:
            first.setdefault(kernel["library_id"], kernel)
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(snapshot["library"], key=lambda row: (first[row["id"]]["config"], row["digest"])):
        kernel = first[row["id"]]
        groups.setdefault((kernel["family"], kernel["target"]), []).append(row)
    yield from groups.values()


def _dictionary(zstd: Any, binaries: Sequence[bytes]) -> Any:
    """Return a dictionary of binaries that are evenly spaced; None where there is nothing to share."""
    total = sum(map(len, binaries))
    if len(binaries) < 2 or total < _FEWEST_BYTES:
        return None
    most = min(len(binaries), max(1, len(binaries) * DICTIONARY_BYTES // total))
    content = b"".join(binaries[i * len(binaries) // most] for i in range(most))[:DICTIONARY_BYTES]
    raw = zstd.ZstdDict(content, is_raw=True)
    return zstd.finalize_dict(raw, binaries, len(content) + _TABLE_BYTES, _LEVEL)
