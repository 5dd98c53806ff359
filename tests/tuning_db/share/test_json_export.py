"""Imports of damaged exports: the right rows or one DatabaseError, and a sound database."""

import json
import shutil
import sqlite3
from contextlib import closing

import pytest
from databases import fill, told
from fuzzing import damaged_json, damages, fuzz
from hypothesis import given
from hypothesis import strategies as st

from tuning_db import DatabaseError, Store
from tuning_db.share import json_export


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The text of an export with rows in every table."""
    folder = tmp_path_factory.mktemp("exported")
    with Store.create(folder / "rows.db") as store:
        fill(store, 3, count=6)
        json_export.export(store, folder / "rows.json")
    data = json.loads((folder / "rows.json").read_text())
    assert all(data[table] for table in json_export.TABLES)
    return data


def imported(text, empty, folder):
    """Import a file into a new database; return the error, or None. An error leaves no rows."""
    for path in folder.iterdir():
        path.unlink()
    (folder / "f.json").write_text(text, errors="surrogatepass")
    shutil.copy(empty, folder / "f.db")  # faster than a new one
    try:
        with Store.create(folder / "f.db") as store:
            json_export.import_(folder / "f.json", store)
    except DatabaseError as error:
        assert "f.json" in str(error) or "f.db" in str(error)
        assert not any(told(folder / "f.db").values()), "rows of a refused file"
        return error
    return None


def assert_sound(empty, folder):
    """Check a database with sqlite itself, and that its own export gives the same rows."""
    with closing(sqlite3.connect(folder / "f.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    with Store.open(folder / "f.db") as store:
        json_export.export(store, folder / "again.json")
    shutil.copy(empty, folder / "again.db")
    with Store.create(folder / "again.db") as store:
        json_export.import_(folder / "again.json", store)
    assert told(folder / "again.db") == told(folder / "f.db")


def test_a_damaged_export_is_imported_whole_or_not_at_all(exported, empty_db, tmp_path):
    @fuzz(50)
    @given(damages(exported))
    def check(found):
        if imported(json.dumps(damaged_json(exported, found)), empty_db, tmp_path) is None:
            assert_sound(empty_db, tmp_path)

    check()


def test_a_text_that_is_cut_or_changed_is_refused(exported, empty_db, tmp_path):
    text = json.dumps(exported)

    @fuzz(25)
    @given(st.integers(0, len(text) - 1), st.sampled_from(("cut", "[", "}", "\x00", "\udcff", "\\ud800", "9")))
    def check(place, change):
        changed = text[:place] + ("" if change == "cut" else change + text[place + 1 :])
        if imported(changed, empty_db, tmp_path) is None:
            assert_sound(empty_db, tmp_path)

    check()
