"""Whose native code is loaded: files of this user and of root, signed files, and others with permission."""

import os
import shutil

import pytest
from databases import LIBRARY, identity

from tuning_db import DatabaseError, Reader, Store, open_reader
from tuning_db.trust import signature
from tuning_db.trust.signature import ALLOW, Origin

OTHER = 12345  # a uid that is not ours
NATIVE = {**LIBRARY, "kind": "shared_library", "compiler": "c"}

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


@pytest.fixture
def path(tmp_path):
    """A database with a shared library (kernel 1) and a device image (kernel 2) in a folder of its own."""
    place = tmp_path / "folder" / "a.db"
    with Store.create(place) as store:
        for config, kind in (("1", "shared_library"), ("2", "device_image")):
            library = store.put_library(kind.encode(), **NATIVE | {"kind": kind})
            store.put_kernel(identity(config), symbol="s", library_id=library.id)
    return place


def binary(database, number):
    return database.binary(database.kernel(number).library)


@pytest.fixture(params=[open_reader, Store.open], ids=["reader", "store"])
def opened(request):
    return request.param


def test_this_users_file_is_loaded(path, opened):
    with opened(path) as database:
        assert binary(database, 1) == b"shared_library" and binary(database, 2) == b"device_image"


@as_root
@pytest.mark.parametrize("place", ["a.db", ".", ".."], ids=["file", "folder", "folder above"])
def test_native_code_of_another_user_is_refused_in_a_sentence(path, opened, place, monkeypatch):
    os.chown(path.parent / place if place != "a.db" else path, OTHER, OTHER)
    with opened(path) as database:
        with pytest.raises(
            DatabaseError, match=rf"{path} holds native code .* another user \(uid {OTHER}\).*{ALLOW}=1"
        ):
            binary(database, 1)
        assert binary(database, 2) == b"device_image"
        monkeypatch.setenv(ALLOW, "1")
        assert binary(database, 1) == b"shared_library"


@pytest.mark.parametrize(("mode", "loaded"), [(0o666, False), (0o664, True), (0o600, True)])
def test_a_file_that_everybody_may_write_is_another_users(path, opened, mode, loaded):
    path.chmod(mode)
    assert (Origin.of(path, "a.db").others is None) == loaded
    with opened(path) as database:
        if loaded:
            assert binary(database, 1)
        else:
            with pytest.raises(DatabaseError, match="may be written by every user"):
                binary(database, 1)


@pytest.mark.parametrize(("mode", "trusted"), [(0o777, False), (0o1777, True), (0o775, True)])
def test_a_folder_that_everybody_may_write_needs_the_sticky_bit(path, mode, trusted):
    path.parent.chmod(mode)
    assert (Origin.of(path, "a.db").others is None) == trusted


@as_root
def test_a_log_of_another_user_beside_the_file_counts(path):
    log = path.with_name("a.db-wal")
    log.write_bytes(b"")
    os.chown(log, OTHER, OTHER)
    assert "a.db-wal belongs to another user" in Origin.of(path, "a.db").others


@as_root
def test_a_link_does_not_hide_the_owner(path, tmp_path):
    link = tmp_path / "link.db"
    link.symlink_to(path)
    os.chown(path, OTHER, OTHER)
    with open_reader(link) as database, pytest.raises(DatabaseError, match="another user"):
        binary(database, 1)
    shutil.copy(path, tmp_path / "copy.db")  # a copy belongs to whom made it
    with open_reader(tmp_path / "copy.db") as database:
        assert binary(database, 1)


@as_root
def test_a_signed_file_may_belong_to_anyone(path, tmp_path):
    public = signature.generate(tmp_path / "key")
    with Store.create(path) as store, Reader(path) as plain:
        store.put_signature(*signature.sign(plain.content(), signature.private_key(tmp_path / "key")))
    os.chown(path, OTHER, OTHER)
    with open_reader(path) as database, pytest.raises(DatabaseError, match="another user"):
        binary(database, 1)
    with open_reader(path, [public]) as database:
        assert binary(database, 1) == b"shared_library"
