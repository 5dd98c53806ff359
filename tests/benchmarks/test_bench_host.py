"""benchmarks/programs/bench_host.py on the CPU."""

import re

import pytest
from processes import script

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


def test_host_cost_is_measured(tuned_db):
    done = script("benchmarks/programs/bench_host.py", "--db", tuned_db, "--device", "cpu", "--calls", 20, "--loads", 1)
    assert done.returncode == 0, done.stderr
    assert "us a call" in done.stdout
    stages = dict(re.findall(r"^ +(\w[\w ]*?) +([\d.]+)$", done.stdout, re.MULTILINE))
    total = float(re.search(r"to a first result, N = 1: (\d+) ms", done.stdout)[1])
    parts = [float(stages[name]) for name in ("imports", "making the module", "choosing and binding", "the first run")]
    assert min(parts) > 0 and sum(parts) == pytest.approx(total, abs=1)


@pytest.mark.daily(2, "whole runs")
@pytest.mark.process
def test_the_start_of_a_captured_model_is_measured_by_both_doors(empty_db, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_INDUCTOR", "0")
    words = ("--db", empty_db, "--device", "cpu", "--model", "unet", "--input", "3,16,16", "--calls", 20, "--loads", 1)
    done = script("benchmarks/programs/bench_host.py", *words)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"from the call of ([\w.]+) to a first result, N = 1: (\d+) ms", done.stdout)
    assert [door for door, _ in found] == ["torch.compile", "from_model"]
    assert all(int(milliseconds) > 0 for _, milliseconds in found)
    assert 0 < float(re.search(r"before the backend +([\d.]+)", done.stdout)[1]) < int(found[0][1])
