"""tests/campaigns/any_size.py on the CPU: results, first calls and a comparison at sizes that were not tuned."""

import json

import pytest
from processes import script

MODEL = """
from torch import nn
def net():
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 3), nn.ReLU())
"""


@pytest.mark.daily(2, "whole runs")
@pytest.mark.process
def test_other_sizes_are_right_and_are_compared(tmp_path):
    (tmp_path / "net.py").write_text(MODEL)
    out = tmp_path / "sizes.json"
    words = ["--model", f"{tmp_path / 'net.py'}:net", "--db", tmp_path / "sizes.db", "--tuned", "24x24", "--step", 4]
    words += ["--device", "cpu", "--sizes", 5, "--compare", 1, "--budget", "8s", "--seconds", "0.1", "--out", out]
    done = script("tests/campaigns/any_size.py", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 sizes: first call" in done.stdout and done.stdout.rstrip().endswith(f"wrote {out}")
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 5 and all(row["error"] < 1e-5 for row in rows)
    [compared] = [row for row in rows if "us" in row]
    assert compared["us"].keys() == {"other", "tuned", "dynamic", "eager"}
    assert compared["over_other"].keys() == {"tuned", "dynamic", "eager"}
