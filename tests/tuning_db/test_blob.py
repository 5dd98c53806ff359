"""Stored binaries: what is unpacked, and how much of it at most."""

import hashlib
import random
import tracemalloc
import zlib
from functools import cache

import pytest

from tuning_db import DatabaseError
from tuning_db.blob import MAX_BYTES, compress, decompress, digest_of, recompress


def test_what_was_stored_is_unpacked():
    for size in (0, 1, 70_000):
        binary = random.Random(size).randbytes(size)
        assert decompress(compress(binary), digest_of(binary), size, "a.db") == binary


@cache
def bomb(size):
    """A blob of about size / 1000 bytes that unpacks to `size` zeros, and their digest."""
    return zlib.compress(bytes(size), 9), hashlib.sha256(bytes(size)).hexdigest()


@pytest.mark.parametrize("said", [0, 100, 2**16, -1, MAX_BYTES + 1, 2**62, None, "64", 1.5])
def test_a_blob_is_not_unpacked_beyond_its_size(said):
    blob, digest = bomb(2**25)
    tracemalloc.start()
    try:
        with pytest.raises(DatabaseError, match=r"a\.db: binary .* (damaged|at most)"):
            decompress(blob, digest, said, "a.db")
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("blob", [None, "text", 7, b"", b"not zlib"])
def test_what_is_no_blob_is_damaged(blob):
    with pytest.raises(DatabaseError, match=r"a\.db: binary .* is damaged"):
        decompress(blob, digest_of(b"x"), 1, "a.db")


def test_a_recompressed_blob_is_smaller_and_holds_the_same_binary():
    draw = random.Random(1)
    binary = " ".join(str(draw.randrange(100)) for _ in range(20_000)).encode()
    smaller = recompress(compress(binary))
    assert len(smaller) < len(compress(binary))
    assert decompress(smaller, digest_of(binary), len(binary), "a.db") == binary


@pytest.mark.parametrize("blob", [None, "text", b"", b"not zlib", compress(bytes(range(256)))[:-9]])
def test_a_damaged_blob_is_recompressed_to_itself(blob):
    assert recompress(blob) is blob
