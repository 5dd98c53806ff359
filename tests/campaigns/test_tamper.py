"""tests/campaigns/tamper.py: a sample of its changes of a database, each run by a process of its own."""

import json

import pytest
from databases import alter, renew_digests
from processes import assert_error, process


def tamper(database, folder, *arguments):
    # A process of its own: it forks, and this one's OpenMP threads would be missing in its children.
    done = process(
        "tests/campaigns/tamper.py", "--db", database, "--out", folder / "tamper-cpu.json", "--seed", 7, *arguments
    )
    record = folder / "tamper-cpu.json"
    return done, json.loads(record.read_text()) if record.exists() else None


@pytest.mark.parametrize("form", [(), ("--packed",)], ids=["tuned", "packed"])
def test_no_change_gives_wrong_results_or_unclear_errors(form, tuned_db, tmp_path):
    done, record = tamper(tuned_db, tmp_path, "--columns", 24, "--bits", 4, "--binaries", 4, *form)
    assert done.returncode == 0 and record["faults"] == [], done.stdout + done.stderr
    counts = record["counts"]
    assert sum(counts["binary"].values()) == counts["binary"]["refused"] == 4
    assert sum(counts["dictionary"].values()) == (11 if form else 0)
    assert counts["column"]["right"] and counts["column"]["refused"] and sum(counts["bit"].values()) == 4


def test_a_database_whose_kernels_compute_something_else_is_refused(tuned_db, tmp_path):
    """The check can fail: with digests that fit the changed layouts, the results are wrong."""
    wrong = tmp_path / "wrong.db"
    wrong.write_bytes(tuned_db.read_bytes())
    alter(wrong, "UPDATE kernel SET weight_layouts = '{}' WHERE weight_layouts <> '{}'")
    renew_digests(wrong)
    done, _ = tamper(wrong, tmp_path)
    assert_error(done, "wrong.db does not run as it is: relative error")
