"""tests/campaigns/kill_campaign.py: one kill, its record, and wrong arguments."""

import json

import pytest
from processes import script

SEED = 15
"""The kill comes 0.1 s after the tuner has set its handlers."""


@pytest.mark.process
def test_a_killed_tuner_leaves_nothing(tmp_path):
    found = tmp_path / "kills.json"
    arguments = ("--kills", 1, "--seed", SEED, "--signal", "TERM", "--out", found)
    done = script("tests/campaigns/kill_campaign.py", *arguments, AUTOTUNE_GENERATED=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kills" in done.stdout and "no defect" in done.stdout
    record = json.loads(found.read_text())
    [kill] = record["kills"]
    assert (kill["target"], kill["signal"], kill["defects"], record["defects"]) == ("tuner", "TERM", [], 0)
    assert kill["exit_code"] in (0, 143)
    assert record["database"] == "SQLite" and record["arguments"]["seed"] == SEED


def test_unknown_targets_are_refused():
    done = script("tests/campaigns/kill_campaign.py", "--target", "tuner,compilers")
    assert done.returncode == 2 and "'compilers' is none of tuner, worker, compiler" in done.stderr
