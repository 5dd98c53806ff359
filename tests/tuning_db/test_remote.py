"""Databases at a URL: fetched once, compared with their digest, and only read."""

import hashlib
import http.server
import importlib.util
import os
import pickle
import shutil
import threading
import tracemalloc

import fsspec
import pytest
import torch
from databases import LIBRARY, alter, fill, identity, told
from processes import TUNED_BATCH

from fused_resnet import FusedResNet, tune
from fused_resnet.networks import se_resnet9_fixup
from tuning_db import DatabaseError, Reader, Store, open_reader, remote
from tuning_db.location import is_address, is_remote
from tuning_db.share.pack import merge, pack
from tuning_db.trust import signature

ABSENT = "0" * 64
MIB = 2**20


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder of the copies, which no other test uses."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    remote._digest_once.cache_clear()
    return tmp_path / "cache" / "autotune" / "databases"


@pytest.fixture
def path(tmp_path):
    """A database with random rows, and a shared library (kernel 1)."""
    place = tmp_path / "model.db"
    with Store.create(place) as store:
        library = store.put_library(b"native", **LIBRARY | {"kind": "shared_library", "compiler": "c"})
        store.put_kernel(identity("{}"), symbol="s", library_id=library.id)
        fill(store, 1)
    return place


def digest_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files, apart from /short, which ends before its time, and /large, which has 40 MiB."""

    def do_GET(self):
        self.server.requests.append(self.path)
        if self.path.startswith("/short"):
            self._start(1000)
            self.wfile.write(bytes(400))
        elif self.path.startswith("/large"):
            self._start(40 * MIB)
            for _ in range(40):
                self.wfile.write(bytes(MIB))
        else:
            super().do_GET()

    def _start(self, length):
        self.send_response(200)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def web(tmp_path):
    """A server of the test's folder; `requests` holds the paths that were asked for, `url` is its address."""
    pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'autotune-cutlass[remote]'")
    made = lambda *given: Handler(*given, directory=str(tmp_path))  # noqa: E731
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), made) as server:
        server.requests, server.url = [], f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def in_memory(path):
    """The URL of the database in fsspec's memory."""
    system = fsspec.filesystem("memory")
    system.pipe_file("/model.db", path.read_bytes())
    yield f"memory://model.db#sha256={digest_of(path)}"
    system.store.clear()


def assert_refused(url, *words, opened=open_reader):
    """Check that a URL is refused in one line with these words, and that nothing is left."""
    with pytest.raises(DatabaseError) as error:
        opened(url)
    said = str(error.value)
    assert "\n" not in said and all(word in said for word in words), said
    return said


def test_which_locations_are_files_servers_and_urls(tmp_path):
    for where in ("postgresql+psycopg://me@host/x", "postgresql://host/x"):
        assert is_address(where) and not is_remote(where)
    for where in ("https://host/x.db", "s3://bucket/x.db#sha256=0", "memory://x", "zip://x.db::https://host/x.zip"):
        assert is_remote(where) and not is_address(where)
    for where in (tmp_path / "x.db", "x.db", "postgresql.db", "folder/x#sha256=0"):
        assert not is_remote(where) and not is_address(where)


def test_a_database_is_fetched_once(path, web, cache):
    url = f"{web.url}/model.db#sha256={digest_of(path)}"
    for _ in range(2):
        remote._digest_once.cache_clear()  # as in a new process
        with open_reader(url) as database, Store.open(url) as store, Reader(path) as here:
            assert database.problem_texts() == store.problem_texts() == here.problem_texts()
            assert database.binary(database.kernel(1).library) == b"native"
            assert database.name == store.name == f"{web.url}/model.db"
    assert web.requests == ["/model.db"]
    [copy] = cache.iterdir()
    assert copy.name == f"{digest_of(path)}.db" and copy.read_bytes() == path.read_bytes()
    assert copy.stat().st_mode & 0o777 == 0o444 and cache.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_any_file_system_of_fsspec_will_do(path, in_memory, kind, tmp_path):
    url = in_memory if kind == "memory" else f"{path.as_uri()}#sha256={digest_of(path).upper()}"
    merge([url], tmp_path / "merged.db")
    assert told(tmp_path / "merged.db") == told(path)
    fsspec.filesystem("memory").store.clear()
    path.unlink()
    pack([url, url], tmp_path / "packed.db", 3)
    assert (tmp_path / "packed.db").exists()


def test_a_url_without_a_digest_says_how_to_name_it(web, cache):
    for end in ("", "#sha256=", "#sha256=12ab", "#md5=12"):
        assert_refused(f"{web.url}/model.db{end}", f"{web.url}/model.db", "append #sha256=DIGEST", "sha256sum")
    assert web.requests == [] and not cache.exists()


def test_another_file_than_that_of_the_digest_is_not_kept(path, web, cache):
    assert_refused(
        f"{web.url}/model.db#sha256={ABSENT}", f"has the SHA-256 {digest_of(path)}, not {ABSENT}", "not used"
    )
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("/absent.db", ["/absent.db", "there is no such file"]),
        ("/short", ["/short", "payload is not completed", "check the URL and the network"]),
        ("/cache", ["/cache"]),
    ],
    ids=["absent", "truncated", "folder"],
)
def test_a_failed_download_leaves_nothing(web, cache, place, words):
    assert_refused(f"{web.url}{place}#sha256={ABSENT}", *words)
    assert list(cache.iterdir()) == []


def test_no_network(web, cache):
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as other:
        port = other.server_port  # nothing listens there after this line
    assert_refused(
        f"http://127.0.0.1:{port}/model.db#sha256={ABSENT}", "cannot fetch", "Cannot connect", "check the URL"
    )
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("opened", [open_reader, Store.open])
@pytest.mark.parametrize("end", ["", f"#sha256={ABSENT}"])
def test_an_unknown_protocol(opened, end, cache):
    words = (
        "the protocol gopher is unknown",
        "name a file, or a server as postgresql",
        "https://host/model.db#sha256=",
    )
    assert_refused(f"gopher://host/model.db{end}", *words, opened=opened)
    assert not cache.exists() or list(cache.iterdir()) == []


@pytest.mark.skipif(importlib.util.find_spec("s3fs") is not None, reason="s3fs is installed")
def test_a_missing_package_is_named(cache):
    assert_refused(f"s3://bucket/model.db#sha256={ABSENT}", "lacks a package", "s3fs", "autotune-cutlass[remote]")
    assert list(cache.iterdir()) == []


def test_a_folder_is_no_database(tmp_path, cache):
    assert_refused(f"{tmp_path.as_uri()}#sha256={ABSENT}", "it is a folder", "name a file")
    assert list(cache.iterdir()) == []


def test_messages_do_not_tell_secrets(web):
    host = web.url.removeprefix("http://")
    for place, end in (("absent.db", f"#sha256={ABSENT}"), ("short", f"#sha256={ABSENT}"), ("model.db", "")):
        url = f"http://me:secret@{host}/{place}?sig=secret{end}"
        assert "secret" not in assert_refused(url, f"{host}/{place}")
    assert "secret" not in assert_refused(url, "is only read", opened=Store.create)


def test_a_cache_that_cannot_be_written(in_memory, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert_refused(in_memory, "cannot keep memory://model.db", "set XDG_CACHE_HOME")


def test_a_copy_that_was_changed_is_fetched_again(path, web, cache):
    url = f"{web.url}/model.db#sha256={digest_of(path)}"
    remote.fetched(url)
    [copy] = cache.iterdir()
    copy.chmod(0o644)
    alter(copy, "UPDATE measurement SET median_us = 0.001")
    assert remote.fetched(url) == copy and copy.read_bytes() == path.read_bytes()
    assert len(web.requests) == 2


def test_a_large_file_is_not_held_in_memory(web, cache):
    url = f"{web.url}/large#sha256={hashlib.sha256(bytes(40 * MIB)).hexdigest()}"
    tracemalloc.start()
    try:
        copy = remote.fetched(url)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert copy.stat().st_size == 40 * MIB and peak < 20 * MIB


def test_a_file_with_its_digest_that_is_no_database(tmp_path):
    (tmp_path / "text").write_text("no database, and longer than a header")
    url = f"{(tmp_path / 'text').as_uri()}#sha256={digest_of(tmp_path / 'text')}"
    for opened in (open_reader, Store.open):
        assert_refused(url, "is not a tuning database", opened=opened)


def test_a_url_is_not_written(in_memory, cache):
    assert_refused(in_memory, "memory://model.db is a URL, which is only read", "name a file", opened=Store.create)
    with Store.open(in_memory) as store, pytest.raises(DatabaseError, match="readonly"):
        store.put_problem("conv2d other")
    with pytest.raises(DatabaseError, match="is only read"):
        tune(torch.nn.ReLU().eval(), torch.zeros(1, 3, 8, 8), in_memory)


def test_keys_count_for_urls_too(path, tmp_path):
    public = signature.generate(tmp_path / "key")
    url = f"{path.as_uri()}#sha256={digest_of(path)}"
    with pytest.raises(DatabaseError, match=r"file://.*model\.db has no valid signature by a key that you trust"):
        open_reader(url, [public])
    with Store.create(path) as store, Reader(path) as plain:
        store.put_signature(*signature.sign(plain.content(), signature.private_key(tmp_path / "key")))
    with open_reader(f"{path.as_uri()}#sha256={digest_of(path)}", [public]) as database:
        assert database.binary(database.kernel(1).library) == b"native"


def test_native_code_in_a_cache_that_everybody_may_write_is_refused(in_memory, cache):
    remote.fetched(in_memory)
    cache.chmod(0o777)
    for opened in (open_reader, Store.open):
        with opened(in_memory) as database, pytest.raises(DatabaseError, match="may be written by every user"):
            database.binary(database.kernel(1).library)


def test_a_network_runs_from_a_url(tuned_db, web, tmp_path):
    shutil.copy(tuned_db, tmp_path / "tuned.db")
    url = f"{web.url}/tuned.db#sha256={digest_of(tmp_path / 'tuned.db')}"
    model = se_resnet9_fixup.randomize(se_resnet9_fixup.build(), seed=5)
    x = torch.randn(TUNED_BATCH, 3, 64, 64, generator=torch.Generator().manual_seed(5))
    networks = [FusedResNet(place) for place in (tuned_db, url)]
    for network in networks:
        network.load_state_dict(model.state_dict())
    here, there = networks
    assert torch.equal(here(x), there(x))
    assert here.explain(x) == there.explain(x) and {row.source for row in there.explain(x)} == {"tuned"}
    assert torch.equal(pickle.loads(pickle.dumps(there))(x), here(x))
    compiled = torch.compile(model, backend="autotune", options={"tuning_db": url})
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-3)
    assert web.requests == ["/tuned.db"] and os.path.exists(remote.fetched(url))
