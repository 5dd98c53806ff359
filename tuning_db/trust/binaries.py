"""The stored forms of a binary, and what is unpacked of them.

A binary is stored compressed, and identified by the SHA-256 of the uncompressed bytes. A tuner writes zlib. A packed
database holds Zstandard frames (RFC 8878), most of which name a dictionary that the kernels of a family share: a row of
the table `dictionary`, whose id is the dictionary's own. The first bytes of a blob tell which of the two it is.

Python decodes Zstandard from 3.14 on; before, the package `backports.zstd` does. It is imported for the first frame.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tuning_db.errors import DatabaseError

_LEVEL = 3
"""zlib level: twice as fast as the default level 6, for an eighth more bytes."""

MAX_BYTES = 2**28
"""Most bytes of a binary that is unpacked, so that a database cannot fill the memory of the process that loads it. The
binaries of the shipped databases have at most 300 KiB."""

MAX_DICTIONARY_BYTES = 2**23
"""Most bytes of a dictionary that is unpacked: six times those that `autotune db pack` writes."""

_FRAME = b"\x28\xb5\x2f\xfd"
"""The first bytes of a Zstandard frame; zlib's first byte is 0x78."""

_SMALLEST_WINDOW = 10
"""Smallest binary logarithm of a window that zstd takes as a limit."""


def digest_of(binary: bytes) -> str:
    """Return the SHA-256 of a binary, in hexadecimal."""
    return hashlib.sha256(binary).hexdigest()


def compress(binary: bytes) -> bytes:
    """Return the stored form of a binary in a database that is tuned."""
    return zlib.compress(binary, _LEVEL)


def zstandard(database: str) -> Any:
    """Return the module that packs and unpacks Zstandard; raises DatabaseError if there is none.

    Args:
        database: Name of the database, for the message.
    """
    try:
        from compression import zstd
    except ImportError:
        try:
            from backports import zstd
        except ImportError as error:
            raise DatabaseError(
                f"{database}: packed binaries need Zstandard, which Python has from 3.14 on: pip install backports.zstd"
            ) from error
    return zstd


@dataclass(frozen=True)
class Unpacker:
    """Unpacks the binaries of one database, and keeps the dictionaries that they need.

    Attributes:
        database: Name of the database, for messages.
        dictionary_row: Returns size and blob of a dictionary by its id; None if there is no such dictionary.
    """

    database: str
    dictionary_row: Callable[[int], tuple[Any, Any] | None] = lambda _: None
    _dictionaries: dict[int, Any] = field(default_factory=dict)

    def binary(self, blob: bytes, digest: str, size: int) -> bytes:
        """Return the binary of a stored form. No more than `size` bytes are unpacked, whatever the form holds.

        Args:
            blob: The stored form.
            digest: What `digest_of` returned.
            size: Number of bytes of the binary.

        Raises:
            DatabaseError: The binary does not have this digest or this size, or is larger than MAX_BYTES; its
                dictionary is missing or damaged; or Python lacks Zstandard.
        """
        what = f"binary {digest[:12]}"
        self._check_size(what, size, MAX_BYTES)
        binary = self._of_frame(blob, size) if _is_frame(blob) else unzipped(blob, size)
        if binary is None or len(binary) != size or digest_of(binary) != digest:
            raise self._damaged(what)
        return binary

    def tuned_form(self, blob: bytes, digest: str, size: int) -> bytes:
        """Return the form in which a tuner stores a binary, which needs no dictionary; zlib is returned as it is."""
        return compress(self.binary(blob, digest, size)) if _is_frame(blob) else blob

    def _of_frame(self, blob: bytes, size: int, is_dictionary: bool = False) -> bytes | None:
        """Return what a Zstandard frame holds, at most size + 1 bytes; None if it is damaged."""
        zstd = zstandard(self.database)
        window = max(_SMALLEST_WINDOW, size.bit_length())  # a frame cannot make the decoder allocate more than this
        try:
            number = zstd.get_frame_info(blob).dictionary_id
            if number and is_dictionary:
                return None  # a dictionary needs none
            dictionary = self._dictionary(number) if number else None
            unpacker = zstd.ZstdDecompressor(dictionary, {zstd.DecompressionParameter.window_log_max: window})
            content: bytes = unpacker.decompress(blob, size + 1)
        except zstd.ZstdError:
            return None
        return content if unpacker.eof and not unpacker.unused_data else None

    def _dictionary(self, number: int) -> Any:
        """Return a dictionary. It has a checksum; what is unpacked with it is compared with the digest of a binary."""
        if number not in self._dictionaries:
            what = f"dictionary {number}"
            size, blob = self.dictionary_row(number) or (0, b"")
            self._check_size(what, size, MAX_DICTIONARY_BYTES)
            content = self._of_frame(blob, size, is_dictionary=True) if _is_frame(blob) else None
            if content is None or len(content) != size:
                raise self._damaged(what)
            try:
                found = zstandard(self.database).ZstdDict(content)
            except ValueError:
                raise self._damaged(what) from None
            if found.dict_id != number:
                raise self._damaged(what)
            self._dictionaries[number] = found
        return self._dictionaries[number]

    def _check_size(self, what: str, size: int, most: int) -> None:
        if not isinstance(size, int) or not 0 <= size <= most:
            raise DatabaseError(
                f"{self.database}: {what} is said to have {size!r} bytes, and it may have at most {most}: tune again "
                "or restore the file"
            )

    def _damaged(self, what: str) -> DatabaseError:
        return DatabaseError(f"{self.database}: {what} is damaged; tune again or restore the file")


def _is_frame(blob: object) -> bool:
    return isinstance(blob, bytes) and blob.startswith(_FRAME)


def unzipped(blob: bytes, size: int) -> bytes | None:
    """Return what a zlib stream holds, at most size + 1 bytes; None if it is damaged."""
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(blob, size + 1)
    except (TypeError, zlib.error):
        return None
    return content if unpacker.eof and not unpacker.unused_data else None
