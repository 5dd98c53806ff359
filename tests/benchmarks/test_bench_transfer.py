"""benchmarks/programs/bench_transfer.py on the CPU: three tunes of small networks, and both plans of the second one."""

import json

import pytest
from processes import script

MODEL = """
import torch
from torch import nn
def first(): return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))
def second(): return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1))
"""


@pytest.mark.daily(2, "whole runs")
@pytest.mark.compile
def test_both_plans_of_the_second_network_are_timed(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    # One trial a problem ends each tune; the budget only has to be long enough for a busy machine.
    limits = ["--budget", "20m", "--share", 0.5, "--trials", 1]
    options = ["--input", "3,16,16", "--batch", 2, *limits, "--seconds", 0.2, "--device", "cpu"]
    models = [f"{tmp_path / 'model.py'}:{name}" for name in ("first", "second")]
    record = ("--out", tmp_path / "found.json")
    done = script("benchmarks/programs/bench_transfer.py", *models, *options, "--keep", tmp_path / "kept", *record)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert list(found["budget_seconds"].values()) == [1200, 1200, 600]
    assert all(seconds > 0 for seconds in found["tune_seconds"].values())
    medians = [one["median"] for one in found["stream"].values()]
    assert len(medians) == 2 and min(medians) > 0
    assert found["speedup"]["median"] > 0
    copied = (tmp_path / "kept" / "2.txt").read_text()
    assert "kernels copied from other databases" in copied
    assert "kernels copied from other databases" not in (tmp_path / "kept" / "1.txt").read_text()
