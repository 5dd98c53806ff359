"""Binaries as a database stores them: compressed, and identified by the SHA-256 of the uncompressed bytes."""

from __future__ import annotations

import hashlib
import zlib

from tuning_db.errors import DatabaseError

_LEVEL = 3
"""zlib level: twice as fast as the default level 6, for an eighth more bytes."""
_SHIPPED_LEVEL = 9
"""zlib level of databases that are shipped: an eighth fewer bytes than _LEVEL, in ten times the time."""


MAX_BYTES = 2**28
"""Most bytes of a binary that is unpacked, so that a database cannot fill the memory of the process that loads it. The
binaries of the shipped databases have at most 300 KiB."""


def digest_of(binary: bytes) -> str:
    """Return the SHA-256 of a binary, in hexadecimal."""
    return hashlib.sha256(binary).hexdigest()


def compress(binary: bytes) -> bytes:
    """Return the stored form of a binary."""
    return zlib.compress(binary, _LEVEL)


def recompress(blob: bytes) -> bytes:
    """Return the stored form of the same binary for a database that is shipped; a damaged blob as it is."""
    unpacker = zlib.decompressobj()
    try:
        binary = unpacker.decompress(blob, MAX_BYTES)
    except (TypeError, zlib.error):
        return blob
    return zlib.compress(binary, _SHIPPED_LEVEL) if unpacker.eof else blob


def decompress(blob: bytes, digest: str, size: int, database: str) -> bytes:
    """Return the binary of a stored form. No more than `size` bytes are unpacked, whatever the stored form holds.

    Args:
        blob: What `compress` returned.
        digest: What `digest_of` returned.
        size: Number of bytes of the binary.
        database: Name of the database, for the message.

    Raises:
        DatabaseError: If the binary does not have this digest or this size, or is larger than MAX_BYTES.
    """
    if not isinstance(size, int) or not 0 <= size <= MAX_BYTES:
        raise DatabaseError(
            f"{database}: binary {digest[:12]} is said to have {size!r} bytes, and a binary has at most {MAX_BYTES}: "
            "tune again or restore the file"
        )
    unpacker = zlib.decompressobj()
    try:
        binary = unpacker.decompress(blob, size + 1)
    except (TypeError, zlib.error):
        binary = b""
    if not unpacker.eof or len(binary) != size or digest_of(binary) != digest:
        raise DatabaseError(f"{database}: binary {digest[:12]} is damaged; tune again or restore the file")
    return binary
