"""tests/campaigns/compare_checkouts.py on this checkout beside itself, on the CPU."""

import json

import pytest
from processes import process
from repository import ROOT


@pytest.mark.daily(2, "whole runs")
def test_a_checkout_is_as_fast_as_itself(tuned_db, tmp_path):
    record = tmp_path / "record.json"
    case = f"se_resnet9_fixup,1,{tuned_db}"
    words = ["--other", ROOT, "--case", case, "--case", f"{case},step", "--rounds", 7, "--tolerance", "100%"]
    done = process("tests/campaigns/compare_checkouts.py", *words, "--out", record)
    assert done.returncode == 0, done.stderr
    assert "here / other" in done.stdout and "step" in done.stdout
    cases = json.loads(record.read_text())["cases"]
    assert [one["case"]["kind"] for one in cases] == ["network", "step"]
    for found in cases:
        assert len(found["here_us"]) == len(found["other_us"]) == 7 and min(found["here_us"]) > 0
        assert found["interval"][0] <= found["ratio"] <= found["interval"][1]


@pytest.mark.process
def test_a_checkout_without_the_project_is_an_error(tmp_path):
    done = process("tests/campaigns/compare_checkouts.py", "--other", tmp_path, "--case", "se_resnet9_fixup,1,none.db")
    assert done.returncode == 2 and "ended" in done.stderr.splitlines()[-1]
