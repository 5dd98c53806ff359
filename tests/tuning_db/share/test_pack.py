"""Packed databases: the same plans, digests and binaries in fewer bytes; what is damaged is refused."""

import random
import shutil
import sqlite3
import sys
from contextlib import closing

import pytest
from databases import LIBRARY, alter, fill, identity, put_device, put_time, rows

from tuning_db import DatabaseError, Reader, Store, shipped_databases
from tuning_db.location import SCHEMA_VERSION
from tuning_db.share import dictionaries, diff, json_export
from tuning_db.share.merge import merge_into
from tuning_db.share.pack import DROPPED, merge, pack
from tuning_db.share.snapshot import read
from tuning_db.trust.digests import launch_text

KEPT = 3
FAMILIES = ("conv", "pool")


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(dictionaries, "_LEVEL", 1)


@pytest.fixture
def tuned(tmp_path):
    """A database with kernels of two families that have much in common, and one that is alone."""
    path, rng = tmp_path / "tuned.db", random.Random(3)
    common = {name: rng.randbytes(9000) for name in FAMILIES}
    details = {"interval_us": [1.0, 2.0], "workspace_bytes": 7, "energy_uj": 3.0, **dict.fromkeys(DROPPED, "x")}
    with Store.create(path) as store:
        device, choices = put_device(store), []
        for at in range(9):
            name = FAMILIES[at % 2] if at else "alone"
            binary = common.get(name, b"")[at * 50 :] + rng.randbytes(300)
            library = store.put_library(binary, compiler="c", **LIBRARY)
            key = {**identity(f'{{"a": {at}}}'), "family": name}
            kernel = store.put_kernel(key, symbol="s", library_id=library.id)
            put_time(store, device, f"{name} n={at % 3}", kernel.id, 1.0 + at, details=details, final=at % 2 == 0)
            choices.append({"layer": str(at), "kernel": kernel.id, "launch": {}, "us": 1.0 + at})
        library = store.put_library(rng.randbytes(300), compiler="c", **LIBRARY)
        kernel = store.put_kernel({**identity("{}"), "family": "gradient"}, symbol="s", library_id=library.id)
        for us in (1.0, 2.0):
            put_time(store, device, "gradient n=1", kernel.id, us, details=details)
        store.put_plan(device_id=device.id, network="net n=1", median_us=9.0, spread_us=0.1, choices=choices[:5])
    return path


def essence(path):
    """Return all that running reads of the plans of a database: digests of rows, and binaries."""
    with Reader(path) as reader:
        found = {}
        for device in reader.devices():
            for network in reader.planned(device):
                plan = reader.plan(device, network)
                kernels = [reader.kernel(choice["kernel"]) for choice in plan.choices]
                launches = [(one["layer"], launch_text(one["launch"]), one["us"]) for one in plan.choices]
                binaries = [reader.binary(kernel.library) for kernel in kernels if kernel.library]
                known = [(kernel.family, kernel.config, kernel.symbol) for kernel in kernels]
                found[device.name, network] = plan.median_us, plan.details, launches, known, binaries
    newest = "SELECT digest FROM plan WHERE id IN (SELECT max(id) FROM plan GROUP BY device_id, network)"
    return found, sorted(rows(path, newest))


def digests(path, table):
    return {digest for (digest,) in rows(path, f"SELECT digest FROM {table}")}


def test_packing_several_keeps_the_best_of_each(tmp_path):
    paths = [tmp_path / "h200.db", tmp_path / "a100.db"]
    for seed, path in enumerate(paths):
        with Store.create(path) as store:
            fill(store, seed, device=path.stem)
            fill(store, seed + 7, device=path.stem)  # newer plans of the same networks
    pack(paths, tmp_path / "packed.db", KEPT)
    with Store.open(tmp_path / "packed.db") as packed:
        for path in paths:
            with Store.open(path) as store:
                device, there = store.device(path.stem), packed.device(path.stem)
                for problem in store.problems():
                    ranking = store.ranking(device, problem.text)
                    libraries = [row for row in ranking if row.kernel.library_id is None][:1]  # all of one family
                    fastest = min(ranking, key=lambda row: row.median_us, default=None)
                    wanted = [row.median_us for row in ranking if row in [*ranking[:KEPT], *libraries, fastest]]
                    assert [row.median_us for row in packed.ranking(there, problem.text)] == wanted
                for network in ("net n=1", "net n=2"):
                    mine, its = store.plan(device, network), packed.plan(there, network)
                    assert its.median_us == mine.median_us
                    for a, b in zip(mine.choices, its.choices, strict=True):
                        assert store.kernel(a["kernel"]).config == packed.kernel(b["kernel"]).config
        assert packed.counts()["plan"] == 4
        used = {row.library_id for row in packed.kernels("sm_90")} - {None}
        assert len(used) == packed.counts()["library"]


@pytest.mark.daily(3)
@pytest.mark.parametrize("path", shipped_databases(), ids=lambda path: path.stem)
def test_a_shipped_database_runs_the_same_kernels_when_it_is_packed(path, tmp_path):
    packed = tmp_path / "packed.db"
    pack([path], packed, 1)
    assert essence(packed) == essence(path)
    for table in ("kernel", "library", "measurement", "plan"):
        assert digests(packed, table) <= digests(path, table)
    with Reader(packed) as reader:
        reader.check_all()
    assert packed.stat().st_size < path.stat().st_size or rows(path, "SELECT * FROM dictionary")


def test_with_all_nothing_but_the_form_of_binaries_changes(tuned, tmp_path):
    packed, again = tmp_path / "packed.db", tmp_path / "again.db"
    pack([tuned], packed, None)
    assert len(rows(packed, "SELECT id FROM dictionary")) == len(FAMILIES)
    with Store.open(tuned) as store, Store.open(packed) as other:
        assert read(store) == read(other) and store.extracts() == other.extracts() == []
        assert all(not (count.first or count.second) for count in diff.counts(read(store), read(other)).values())
    with Reader(tuned) as reader, Reader(packed) as other:
        assert reader.content().text == other.content().text, "a signature is valid for both"
    merge([packed], again)
    assert essence(again) == essence(packed) == essence(tuned)
    assert not rows(again, "SELECT * FROM dictionary"), "a merged database is one for tuners"
    with Store.open(packed) as store:
        json_export.export(store, tmp_path / "packed.json")
    with Store.create(tmp_path / "imported.db") as store:
        json_export.import_(tmp_path / "packed.json", store)
    assert essence(tmp_path / "imported.db") == essence(tuned)


def test_an_extract_says_so_and_keeps_what_digests_cover(tuned, tmp_path):
    packed = tmp_path / "packed.db"
    pack([tuned], packed, 0)
    assert essence(packed) == essence(tuned)
    assert len(digests(packed, "library")) == len(digests(packed, "measurement")) == 5 + 1, "of the plan and a gradient"
    with Store.open(packed) as store:
        assert all("of an operator that no plan names" in kept for kept in store.extracts())
        [device] = store.devices()
        details = [row.details for text in store.problem_texts() for row in store.measurements(device, text)]
    assert all(set(one) == {"interval_us", "workspace_bytes", "energy_uj"} for one in details)
    pack([packed], tmp_path / "again.db", None)
    merge([packed, tuned], tmp_path / "merged.db")
    for name in ("again.db", "merged.db"):
        with Store.open(tmp_path / name) as store:
            assert len(store.extracts()) == 1, "it still lacks trials"


def test_a_packed_database_is_tuned_further(tuned, tmp_path):
    packed = tmp_path / "packed.db"
    pack([tuned], packed, 1)
    with Store.create(tmp_path / "more.db") as store:
        fill(store, 1)
        snapshot = read(store)
    with Store.create(packed) as store:
        merge_into(store, snapshot)
        kernels = store.kernels("sm_90")
        assert len({kernel.library_id for kernel in kernels if kernel.library}) > len(digests(tuned, "library"))
        assert all(store.binary(kernel.library) for kernel in kernels if kernel.library)


def refused(path):
    """Read everything in each way; return the messages with which it is refused, each one sentence."""
    told = set()
    for attempt in (_checked, _read, _packed_again):
        with pytest.raises(DatabaseError) as error:
            attempt(path)
        told.add(str(error.value))
    assert all("\n" not in one and ". " not in one for one in told), told
    assert all(str(path.parent) in one for one in told), told
    return told


def _checked(path):
    with Reader(path) as reader:
        reader.check_all()


def _read(path):
    with Store.open(path) as store:
        for kernel in store.kernels("sm_90"):
            store.binary(kernel.library)


def _packed_again(path):
    target = path.with_name("target.db")
    try:
        pack([path], target, None)
    finally:
        assert not target.exists() and not list(path.parent.glob(".target.db*"))


@pytest.mark.parametrize("table", ["library", "dictionary"])
@pytest.mark.parametrize(
    "change",
    [
        "blob = zeroblob(length(blob))",
        "blob = x''",
        "blob = substr(blob, 1, length(blob) - 1)",
        "blob = substr(blob, 2)",
        "blob = CAST(blob || x'00' AS BLOB)",
        "blob = CAST(substr(blob, 1, length(blob) / 2) || x'0123456789' || substr(blob, length(blob) / 2 + 6) AS BLOB)",
        "blob = CAST(x'789c' || substr(blob, 3) AS BLOB)",  # the codec: zlib
        "blob = CAST(substr(blob, 1, 4) || x'ff' || substr(blob, 6) AS BLOB)",  # flags of the frame's header
        "blob = CAST(substr(blob, 1, 5) || x'12345678' || substr(blob, 10) AS BLOB)",  # id of the dictionary
        "size = size + 1",
        "size = size - 1",
        "size = -1",
        "size = 1000000000000",
        "size = 'text'",
        "id = id + 1",
    ],
)
def test_each_tampered_row_is_refused(table, change, tuned, tmp_path):
    packed = tmp_path / "packed.db"
    pack([tuned], packed, None)
    if table == "library" and change == "id = id + 1":
        change = "blob = (SELECT other.blob FROM library other WHERE other.id = library.id % 10 + 1)"
    ids = [number for (number,) in rows(packed, f"SELECT id FROM {table}")]
    assert len(ids) == {"library": 10, "dictionary": 2}[table]
    for number in ids:
        path = shutil.copy(packed, tmp_path / "tampered.db")
        alter(path, f"UPDATE {table} SET {change} WHERE id = {number}")
        refused(path)


def test_dictionaries_that_change_places_are_refused(tuned, tmp_path):
    packed = tmp_path / "packed.db"
    pack([tuned], packed, None)
    (first, a), (second, b) = rows(packed, "SELECT id, blob FROM dictionary")
    with closing(sqlite3.connect(packed)) as connection:
        for number, blob in ((first, b), (second, a)):
            connection.execute("UPDATE dictionary SET blob = ? WHERE id = ?", (blob, number))
        connection.commit()
    refused(packed)
    alter(packed, "DELETE FROM dictionary")
    assert any("dictionary" in told for told in refused(packed))


def test_a_python_without_zstandard_neither_packs_nor_overwrites(tuned, tmp_path, monkeypatch):
    packed = tmp_path / "packed.db"
    pack([tuned], packed, 1)
    for name in ("compression", "compression.zstd", "backports", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    for told in refused(packed):
        assert told.endswith(
            ".db: packed binaries need Zstandard, which Python has from 3.14 on: pip install backports.zstd"
        )
    with pytest.raises(DatabaseError, match="need Zstandard"):
        pack([tuned], tmp_path / "new.db", 1)
    with pytest.raises(DatabaseError, match=r"packed\.db exists"):
        pack([tuned], packed, 1)
    assert not (tmp_path / "new.db").exists()
    with Reader(tuned) as reader:
        assert sum(reader.check_all().values())


def test_packing_is_reproducible(tuned, tmp_path):
    for name in ("a.db", "b.db"):
        pack([tuned], tmp_path / name, None)
    assert (tmp_path / "a.db").read_bytes() == (tmp_path / "b.db").read_bytes()
    assert rows(tmp_path / "a.db", "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert rows(tmp_path / "a.db", "PRAGMA freelist_count") == [(0,)]
