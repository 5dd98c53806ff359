"""A binary that is stored by zlib, or by Zstandard with or without a dictionary, is unpacked or refused."""

import hashlib
import random
import struct
import sys
import tracemalloc
import zlib
from functools import cache

import pytest

from tuning_db import DatabaseError
from tuning_db.trust.binaries import MAX_BYTES, MAX_DICTIONARY_BYTES, Unpacker, compress, digest_of, zstandard

DAMAGED = r"^a\.db: (binary|dictionary) \w+ is damaged; tune again or restore the file$"


def unpack(blob, digest, size, dictionary=None):
    return Unpacker("a.db", lambda number: dictionary).binary(blob, digest, size)


@pytest.fixture(scope="module")
def zstd():
    return zstandard("a test")


@pytest.fixture(scope="module")
def shared(zstd):
    """Binaries that have much in common, and the dictionary that they share."""
    rng = random.Random(1)
    common = rng.randbytes(20_000)
    binaries = [common[i * 100 :] + rng.randbytes(500) for i in range(8)]
    return binaries, zstd.finalize_dict(zstd.ZstdDict(common, is_raw=True), binaries, 30_000, 3)


def frame_of(zstd, content, **options):
    """Return a frame with a checksum."""
    return zstd.compress(content, options={zstd.CompressionParameter.checksum_flag: 1, **options})


@pytest.mark.parametrize("form", ["zlib", "zstd"])
def test_what_was_stored_is_unpacked(form, zstd):
    for size in (0, 1, 70_000):
        binary = random.Random(size).randbytes(size)
        blob = compress(binary) if form == "zlib" else zstd.compress(binary)
        assert unpack(blob, digest_of(binary), size) == binary


def test_binaries_of_a_dictionary_are_unpacked(zstd, shared):
    binaries, dictionary = shared
    row = len(dictionary.dict_content), frame_of(zstd, dictionary.dict_content)
    asked = []
    unpacker = Unpacker("a.db", lambda number: asked.append(number) or row)
    for binary in binaries:
        blob = zstd.compress(binary, zstd_dict=dictionary)
        assert len(blob) < len(binary) / 10
        assert unpacker.binary(blob, digest_of(binary), len(binary)) == binary
        assert zlib.decompress(unpacker.tuned_form(blob, digest_of(binary), len(binary))) == binary
    assert asked == [dictionary.dict_id], "a dictionary is read once"


@cache
def bomb(size, form="zlib"):
    """A blob of about size / 1000 bytes that unpacks to `size` zeros, and their digest."""
    blob = zlib.compress(bytes(size), 9) if form == "zlib" else zstandard("a test").compress(bytes(size), 9)
    return blob, hashlib.sha256(bytes(size)).hexdigest()


@pytest.mark.parametrize("form", ["zlib", "zstd"])
@pytest.mark.parametrize("said", [0, 100, 2**16, -1, MAX_BYTES + 1, 2**62, None, "64", 1.5])
def test_a_blob_is_not_unpacked_beyond_its_size(said, form):
    blob, digest = bomb(2**25, form)
    tracemalloc.start()
    try:
        with pytest.raises(DatabaseError, match=r"a\.db: binary .* (damaged|at most)"):
            unpack(blob, digest, said)
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("said", [0, 100, 2**16, -1, MAX_DICTIONARY_BYTES + 1, None, "64", 1.5])
def test_a_dictionary_is_not_unpacked_beyond_its_size(said, zstd, shared):
    binaries, dictionary = shared
    blob = zstd.compress(binaries[0], zstd_dict=dictionary)
    tracemalloc.start()
    try:
        with pytest.raises(DatabaseError, match=r"a\.db: dictionary .* (damaged|at most)"):
            unpack(blob, digest_of(binaries[0]), len(binaries[0]), (said, bomb(2**25, "zstd")[0]))
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()


def test_a_frame_does_not_choose_the_memory_of_its_decoder(zstd):
    """A frame whose header asks for a window of 2 GiB holds one block of 3 bytes."""
    block = struct.pack("<I", 3 << 3 | 1)[:3] + b"abc"
    assert unpack(b"\x28\xb5\x2f\xfd" + bytes([0, 0]) + block, digest_of(b"abc"), 3) == b"abc", "a window of 1 KiB"
    with pytest.raises(DatabaseError, match=DAMAGED):
        unpack(b"\x28\xb5\x2f\xfd" + bytes([0, 21 << 3]) + block, digest_of(b"abc"), 3)


@pytest.mark.parametrize("blob", [None, "text", 7, b"", b"not zlib", b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfd" * 9])
def test_what_is_no_blob_is_damaged(blob):
    with pytest.raises(DatabaseError, match=DAMAGED):
        unpack(blob, digest_of(b"x"), 1)


@pytest.mark.parametrize("form", ["zlib", "zstd"])
def test_bytes_behind_a_blob_are_damage(form, zstd):
    blob = compress(b"x") if form == "zlib" else zstd.compress(b"x")
    for more in (b"\0", blob):
        with pytest.raises(DatabaseError, match=DAMAGED):
            unpack(blob + more, digest_of(b"x"), 1)


def test_each_damaged_byte_of_a_frame_is_noticed(zstd, shared):
    binaries, dictionary = shared
    row = len(dictionary.dict_content), frame_of(zstd, dictionary.dict_content)
    blob = zstd.compress(binaries[3], zstd_dict=dictionary)
    refused = 0
    for at in range(len(blob)):
        changed = blob[:at] + bytes([blob[at] ^ 1 << at % 8]) + blob[at + 1 :]
        try:
            assert unpack(changed, digest_of(binaries[3]), len(binaries[3]), row) == binaries[3]
        except DatabaseError:
            refused += 1
    assert refused > 0.95 * len(blob)


def test_a_damaged_or_missing_dictionary_is_named(zstd, shared):
    binaries, dictionary = shared
    content, blob = dictionary.dict_content, zstd.compress(binaries[0], zstd_dict=dictionary)
    whole = frame_of(zstd, content)
    other = zstd.finalize_dict(zstd.ZstdDict(bytes(range(256)) * 9, is_raw=True), binaries, 9000, 3).dict_content
    rows = [
        None,
        (len(content), None),
        (len(content), b""),
        (len(content), zlib.compress(content)),
        (len(content) + 1, whole),
        (len(content) - 1, whole),
        (len(content), whole[:-9]),
        (len(content), whole + b"x"),
        (len(content), zstd.compress(content, zstd_dict=dictionary)),
        (len(other), frame_of(zstd, other)),
        (0, frame_of(zstd, b"")),
        (3000, frame_of(zstd, binaries[0][:3000])),
        *(
            (len(content), whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            for at in range(9, len(whole), len(whole) // 50)
        ),
    ]
    for row in rows:
        with pytest.raises(DatabaseError, match=rf"^a\.db: dictionary {dictionary.dict_id} is damaged; tune again"):
            unpack(blob, digest_of(binaries[0]), len(binaries[0]), row)


def test_a_python_without_zstandard_says_what_to_install(monkeypatch, zstd):
    blob = zstd.compress(b"x")
    for name in ("compression", "compression.zstd", "backports", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DatabaseError, match=r"^a\.db: packed .*Python has from 3\.14 on: pip install backports\.zstd$"):
        unpack(blob, digest_of(b"x"), 1)
    assert unpack(compress(b"x"), digest_of(b"x"), 1) == b"x", "other binaries need none"
