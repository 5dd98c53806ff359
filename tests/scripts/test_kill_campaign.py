"""scripts/checks/kill_campaign.py: one kill of each kind of process that a run has."""

import json

import pytest
from processes import process


@pytest.mark.process
@pytest.mark.process
def test_a_killed_tuner_leaves_nothing(tmp_path):
    found = tmp_path / "kills.json"
    done = process("checks/kill_campaign", "--kills", 1, "--seed", 3, "--signal", "TERM", "--json", found)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kills" in done.stdout and "no defect" in done.stdout
    record = json.loads(found.read_text())
    [kill] = record["kills"]
    assert (kill["target"], kill["signal"], kill["defects"], record["defects"]) == ("tuner", "TERM", [], 0)
    assert kill["exit_code"] in (0, 143) and record["database"] == "SQLite" and record["arguments"]["seed"] == 3


def test_unknown_targets_are_refused():
    done = process("checks/kill_campaign", "--target", "tuner,compilers")
    assert done.returncode == 2 and "'compilers' is none of tuner, worker, compiler" in done.stderr
