"""The reader of the runtime (plain sqlite3) returns the same rows as SQLAlchemy with the schema."""

import shutil
import sqlite3
from contextlib import closing

import pytest
from databases import alter, fill
from repository import ROOT

from tuning_db import DatabaseError, Reader, Store, open_reader
from tuning_db.schema import ProblemRow

SHIPPED = ROOT / "tuning_db" / "se_resnet9_fixup_h200.db"


@pytest.fixture(params=["random", "shipped"])
def path(request, tmp_path):
    if request.param == "shipped":
        return SHIPPED
    with Store.create(tmp_path / "random.db") as store:
        fill(store, 1)
        fill(store, 2, device="other")
    return tmp_path / "random.db"


def library(row):
    return row and (row.id, row.digest, row.kind, row.target)


def kernel(row):
    return (
        row.id,
        row.family,
        row.config,
        row.symbol,
        row.weight_layouts,
        list(row.launch_names),
        library(row.library),
    )


def measured(row):
    return (row.kernel_id, kernel(row.kernel), row.launch, row.median_us, row.final, row.details)


def answers(database, texts, networks, kernels):
    """All that the database answers to questions about these problems, networks and kernels, as plain values."""
    devices = database.devices()
    yield [(row.id, row.name, row.target, row.flops_per_us, row.bytes_per_us) for row in devices]
    yield database.problem_texts()
    yield [device and device.id for device in map(database.device, [*(row.name for row in devices), "absent"])]
    yield [kernel(database.kernel(number)) for number in kernels]
    yield [database.binary(found) for number in kernels if (found := database.kernel(number).library)]
    for device in devices:
        for text in texts:
            yield [measured(row) for row in database.ranking(device, text)]
            yield database.best_us(device, text)
        for network in networks:
            row = database.plan(device, network)
            yield row and (row.median_us, row.choices, row.details)


def test_both_ways_of_reading_answer_the_same(path):
    with closing(sqlite3.connect(path)) as connection:
        texts, networks, kernels = (
            [value for (value,) in connection.execute(query)]
            for query in ("SELECT text FROM problem", "SELECT DISTINCT network FROM plan", "SELECT id FROM kernel")
        )
    questions = ([*texts, "absent"], [*networks, "absent"], kernels)
    assert texts
    with open_reader(path) as plain, Store.open(path) as store:
        assert isinstance(plain, Reader)
        assert list(answers(plain, *questions)) == list(answers(store, *questions))


def test_it_is_read_while_others_write(tmp_path):
    with Store.create(tmp_path / "a.db") as store:
        fill(store, 1)
        with store.writing() as session, open_reader(tmp_path / "a.db") as before:
            count = len(before.problem_texts())
            session.add(ProblemRow(text="conv2d more", operator="conv2d"))
            session.flush()
            with open_reader(tmp_path / "a.db") as during:
                assert len(during.problem_texts()) == count
        with open_reader(tmp_path / "a.db") as after:
            assert len(after.problem_texts()) == count + 1


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DatabaseError, match=r"no tuning database at .*absent\.db"):
        open_reader(tmp_path / "absent.db")
    (tmp_path / "words.db").write_text("words")
    with pytest.raises(DatabaseError, match=r"words\.db is not a tuning database"):
        open_reader(tmp_path / "words.db")
    Store.create(tmp_path / "partial.db").close()
    with closing(sqlite3.connect(tmp_path / "partial.db")) as connection:
        connection.execute("DROP TABLE device")
    partial = open_reader(tmp_path / "partial.db")
    with partial as database, pytest.raises(DatabaseError, match=r"partial\.db: no such table: device"):
        database.devices()


@pytest.mark.parametrize("opened", [open_reader, Store.open, Store.create])
def test_a_directory_is_called_one(opened, tmp_path):
    with pytest.raises(DatabaseError, match=r"is a directory: name the file of a tuning database$"):
        opened(tmp_path)


@pytest.mark.parametrize("opened", [open_reader, Store.open])
def test_a_file_without_bytes_is_called_empty(opened, tmp_path):
    (tmp_path / "a.db").touch()
    with pytest.raises(DatabaseError, match=r"a\.db is empty.*run `autotune tune"):
        opened(tmp_path / "a.db")


def test_an_address_is_a_servers():
    with pytest.raises(DatabaseError, match="name a file, or a server"):
        open_reader("mysql://user@host/name")


CHANGES = {
    ("kernel", "weight_layouts"): ["{}", '{"weight": "kcrs"}', "[]", "null", "5", "{", "[" * 100_000, b"\xff", None],
    ("kernel", "launch_names"): ["[]", '["a", "z"]', "{}", None],
    ("kernel", "library_id"): [None, 1, 2**62, "x"],
    ("kernel", "digest"): [None, "", "0" * 64],
    ("library", "digest"): ["0" * 64, "../../evil", None],
    ("library", "kind"): ["cudnn_plan", "evil", None],
    ("measurement", "kernel_id"): [1, 10**6, None],
    ("measurement", "launch"): ['{"z": 0, "a": 5}', '{"z": "x"}', "[1]", "{"],
    ("measurement", "median_us"): [-1.0, "x", b"1"],
    ("measurement", "details"): ["[]", '{"workspace_bytes": 7}', "", 5],
    ("device", "target"): ["sm_80", None, 7],
    ("device", "flops_per_us"): [0, -1, "x", None, float("inf")],
}


@pytest.mark.parametrize(("table", "column"), CHANGES)
def test_a_changed_column_is_an_error_that_names_row_and_database(table, column, tmp_path):
    path = tmp_path / "changed.db"
    with Store.create(path) as store:
        fill(store, 1)
        device, problems = store.devices()[0], store.problem_texts()
        used = [row for text in problems for row in store.ranking(device, text) if row.kernel.library]
        row = used[-1]
        number = {"kernel": row.kernel_id, "library": row.kernel.library_id, "measurement": row.id, "device": 1}[table]
        text = row.problem.text
    alter(
        path,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '') WHERE type = 'table'",
    )
    for value in CHANGES[table, column]:
        shutil.copy(path, tmp_path / "one.db")
        with closing(sqlite3.connect(tmp_path / "one.db")) as connection:
            change = f"UPDATE {table} SET {column} = ? WHERE id = ? AND {column} IS NOT ?"
            changed = connection.execute(change, [value, number, value]).rowcount
            connection.commit()
        if not changed:
            continue
        damaged = r"one\.db: row \d+ of table '(kernel|measurement|device)' is damaged"
        with pytest.raises(DatabaseError, match=damaged), Reader(tmp_path / "one.db") as database:
            database.ranking(database.devices()[0], text)
