"""Digests of rows: their documented format, from SQL alone."""

import base64
import hashlib
import json
import lzma

import pytest
from databases import alter, fill, rows
from repository import ROOT

from tuning_db import DatabaseError, Store
from tuning_db.share.pack import merge
from tuning_db.share.snapshot import read

IDENTITY = "json_array(k.family, k.config, k.dtype, k.epilogue, k.target)"


def sha256(*values):
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def launch(text):
    return " ".join(f"{name}={value}" for name, value in sorted(json.loads(text).items()))


def expected(path):
    """Yield table, id and digest of each row, as digests.py documents them."""
    kernels = rows(
        path,
        f"""SELECT k.id, {IDENTITY}, k.symbol, k.weight_layouts, k.launch_names,
            CASE WHEN l.id NOT NULL THEN json_array(l.digest, l.kind, l.target) END
            FROM kernel k LEFT JOIN library l ON l.id = k.library_id""",
    )
    identities = {}
    for number, identity, symbol, layouts, names, binary in kernels:
        identities[number] = json.loads(identity)
        values = (identities[number], symbol, json.loads(layouts), json.loads(names), binary and json.loads(binary))
        yield "kernel", number, sha256("kernel", *values)
    for number, device, problem, kernel, values, status, median, final, details in rows(
        path,
        """SELECT m.id, json_array(d.name, d.target), p.text, m.kernel_id, m.launch, m.status, m.median_us, m.final,
            m.details
            FROM measurement m JOIN device d ON d.id = m.device_id JOIN problem p ON p.id = m.problem_id""",
    ):
        read_of = [json.loads(details).get(name) for name in ("interval_us", "workspace_bytes")]
        parts = (json.loads(device), problem, identities[kernel], launch(values), status, median, bool(final), *read_of)
        yield "measurement", number, sha256("measurement", *parts)
    for number, device, network, median, choices, details in rows(
        path,
        """SELECT p.id, json_array(d.name, d.target), p.network, p.median_us, p.choices, p.details
            FROM plan p JOIN device d ON d.id = p.device_id""",
    ):
        layers = [
            [c["layer"], identities[c["kernel"]], launch(json.dumps(c["launch"])), c.get("us"), bool(c.get("overlap"))]
            for c in json.loads(choices)
        ]
        found = json.loads(details).get("alternatives")
        yield "plan", number, sha256("plan", json.loads(device), network, median, layers, found)
    if rows(path, "SELECT * FROM sqlite_master WHERE name = 'network'"):  # older files have none
        for number, key, body in rows(path, "SELECT id, key, body FROM network"):
            yield "network", number, sha256("network", key, lzma.decompress(base64.b85decode(body)).decode())


def stored(path):
    for table in ("kernel", "measurement", "plan", "network"):
        if rows(path, f"SELECT * FROM sqlite_master WHERE name = '{table}'"):
            yield from ((table, *row) for row in rows(path, f"SELECT id, digest FROM {table}"))


@pytest.fixture(params=["tuned", "merged", "shipped"])
def path(request, tmp_path):
    place = tmp_path / "a.db"
    match request.param:
        case "tuned":
            with Store.create(place) as store:
                fill(store, 1)
                fill(store, 2, device="other")
        case "merged":
            for seed, compiler in ((1, "c"), (2, "d")):
                with Store.create(tmp_path / f"{seed}.db") as store:
                    fill(store, seed, compiler=compiler)
            merge([tmp_path / "1.db", tmp_path / "2.db"], place)
        case "shipped":
            return ROOT / "tuning_db" / "resnets_h200.db"
    return place


def test_every_row_has_the_documented_digest(path):
    wanted = set(expected(path))
    assert wanted == set(stored(path)) and {table for table, *_ in wanted} >= {"kernel", "measurement"}


def test_a_kernel_that_is_completed_gets_another_digest(tmp_path):
    key = {"family": "f", "config": "{}", "dtype": "f32", "epilogue": "none", "target": "sm_90", "source": "0"}
    made = {"kind": "device_image", "target": "sm_90", "compiler": "", "flags": "", "cutlass": "", "abi_version": 1}
    with Store.create(tmp_path / "a.db") as store:
        store.put_kernel(key, symbol="s", error="it does not compile")
        before = set(stored(tmp_path / "a.db"))
        store.put_kernel(key, symbol="s", launch_names=["a"], library_id=store.put_library(b"x", **made).id)
    assert set(stored(tmp_path / "a.db")) == set(expected(tmp_path / "a.db")) != before


@pytest.mark.parametrize("table", ["kernel", "measurement", "plan", "network"])
def test_a_damaged_row_is_not_passed_on(table, tmp_path):
    """Merging would give it a new digest."""
    columns = {"kernel": "symbol", "measurement": "status", "plan": "network", "network": "body"}
    path, column = tmp_path / "a.db", columns[table]
    with Store.create(path) as store:
        fill(store, 1)
    alter(path, f"UPDATE {table} SET {column} = 'x' WHERE id = 2")
    with Store.open(path) as store, pytest.raises(DatabaseError, match=rf"a\.db: row 2 of table '{table}' is damaged"):
        read(store)
