"""Evidence: what was found is read again, and a file that cannot be read or written changes nothing."""

import os
import shutil
import sqlite3
import time

import pytest
from databases import rows

from tuning_db import DatabaseError, Store, evidence
from tuning_db.evidence import Check, Wrong

SOFTWARE = {"driver": "580.1", "torch": "2.9", "cudnn": "91000"}
CHECK = Check("p", "GPU", **SOFTWARE, seed=3, error=1e-3, eager_error=2e-3, us=5.0, status="right")
WRONG = Wrong("kernel", "gemm m=1", "580.1")


@pytest.fixture
def path(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "evidence.db"
    monkeypatch.setenv("AUTOTUNE_EVIDENCE", str(path))
    return path


def test_nothing_is_known_at_first(path):
    assert evidence.last("p", device="GPU", **SOFTWARE) is None and evidence.quarantined() == {}
    assert not path.exists()


def test_the_newest_check_of_a_plan_with_this_software_counts(path):
    evidence.add(CHECK)
    evidence.add(CHECK._replace(status="wrong", worst="layer1"), [WRONG])
    evidence.add(CHECK._replace(torch="2.10", status="slower"))
    found = evidence.last("p", device="GPU", **SOFTWARE)
    assert (found.status, found.worst, found.error, found.us) == ("wrong", "layer1", 1e-3, 5.0)
    assert found.date[:4] == time.strftime("%Y", time.gmtime())
    assert evidence.last("p", device="GPU", **{**SOFTWARE, "torch": "2.10"}).status == "slower"
    for other in ({"driver": "590"}, {"cudnn": ""}, {"torch": "3"}):
        assert evidence.last("p", device="GPU", **{**SOFTWARE, **other}) is None
    assert evidence.last("q", device="GPU", **SOFTWARE) is None and evidence.last("p", device="CPU", **SOFTWARE) is None
    assert len(rows(path, "SELECT * FROM plan_check")) == 3, "rows are only added"


def test_what_is_quarantined_is_read_again_after_a_change(path):
    evidence.add(CHECK, [WRONG])
    assert evidence.quarantined() == {"gemm m=1": {WRONG}}
    others = [WRONG._replace(kernel="other"), WRONG._replace(problem="gemm m=2")]
    evidence.add(CHECK, others)
    assert evidence.quarantined() == {"gemm m=1": {WRONG, others[0]}, "gemm m=2": {others[1]}}
    path.unlink()
    assert evidence.quarantined() == {}


@pytest.mark.parametrize("damage", ["garbage", "short", "empty", "other", "folder"])
def test_a_file_that_cannot_be_read_counts_as_empty(path, damage):
    evidence.add(CHECK, [WRONG])
    data = path.read_bytes()
    path.unlink()
    match damage:
        case "garbage":
            path.write_bytes(os.urandom(5000))
        case "short":
            path.write_bytes(data[:5000])
        case "empty":
            path.touch()
        case "other":
            Store.create(path).close()
        case "folder":
            path.mkdir()
    assert evidence.last("p", device="GPU", **SOFTWARE) is None and evidence.quarantined() == {}
    before = path.read_bytes() if damage == "other" else None
    if damage != "empty":
        with pytest.raises(DatabaseError, match=r"evidence\.db"):
            evidence.add(CHECK)
    if before:
        assert path.read_bytes() == before, "another database is left as it is"


def test_where_nothing_can_be_written_it_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("AUTOTUNE_EVIDENCE", str(tmp_path / "file" / "evidence.db"))
    with pytest.raises(DatabaseError, match="AUTOTUNE_EVIDENCE"):
        evidence.add(CHECK)
    assert evidence.quarantined() == {}


def test_it_is_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.delenv("AUTOTUNE_EVIDENCE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    evidence.add(CHECK)
    assert (tmp_path / "autotune" / "evidence.db").exists() and evidence.last("p", device="GPU", **SOFTWARE)


def test_reading_does_not_wait_for_a_writer(path):
    evidence.add(CHECK, [WRONG])
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    writer = sqlite3.connect(path)
    writer.execute("BEGIN EXCLUSIVE")
    started = time.monotonic()
    assert evidence.last("p", device="GPU", **SOFTWARE) is None
    assert time.monotonic() - started < 5
    writer.rollback()
    writer.close()
    assert evidence.last("p", device="GPU", **SOFTWARE)
