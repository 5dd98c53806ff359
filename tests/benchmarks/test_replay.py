"""benchmarks/programs/replay.py: recordings, comparisons and errors."""

import json
from pathlib import Path

from processes import script
from repository import ROOT

from autotune.search import DEFAULT_SAMPLER


def test_the_script_records_and_compares(tuned_db, tmp_path):
    file, chart = tmp_path / "cpu.json.gz", tmp_path / "curves.png"
    done = script("benchmarks/programs/replay.py", "record", tuned_db, file)
    assert done.returncode == 0, done.stderr
    assert "spaces" in done.stdout and "trials" in done.stdout and file.stat().st_size > 100
    merged = tmp_path / "merged.json.gz"
    done = script("benchmarks/programs/replay.py", "merge", file, file, merged)
    assert done.returncode == 0 and merged.read_bytes() == file.read_bytes(), done.stderr
    options = ("--sampler", "cost-model", "--sampler", DEFAULT_SAMPLER, "--seeds", 2, "--chart", chart)
    done = script("benchmarks/programs/replay.py", "compare", file, *options)
    assert done.returncode == 0, done.stderr
    assert "cost-model" in done.stdout and DEFAULT_SAMPLER in done.stdout and "within" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_a_recording_is_searched_on_clusters(tuned_db, tmp_path):
    recording, out = tmp_path / "cpu.json.gz", tmp_path / "cluster.json"
    assert script("benchmarks/programs/replay.py", "record", tuned_db, recording).returncode == 0
    done = script(
        "benchmarks/programs/replay.py", "cluster", recording, "--seeds", 1, "--name", "a network", "--out", out
    )
    assert done.returncode == 0, done.stderr
    assert "64 hosts" in done.stdout and "at least" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    found = json.loads(out.read_text())
    times = {(one["hosts"], one["gpus"]): one["seconds"][0] for one in found["clusters"]}
    assert set(times) == {(hosts, gpus) for hosts in (1, 2, 4, 8, 16, 32, 64) for gpus in (1, 2, 4, 8)}
    assert min(times.values()) >= found["recording"]["least_seconds"] - 0.01 and times[64, 8] <= times[1, 1]
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_mistakes_are_told_in_a_line(tmp_path):
    for arguments, word in (
        (("compare", tmp_path / "none.json.gz"), "none.json.gz"),
        (("compare", ROOT / "tests" / "data" / "search_h200.json.gz", "--sampler", "tpf"), "module:Class"),
        (("record", ROOT / "tuning_db" / "se_resnet9_fixup_h200.db", tmp_path / "x.gz"), "packed"),
    ):
        done = script("benchmarks/programs/replay.py", *arguments)
        assert done.returncode == 2 and done.stderr.startswith("error: ") and word in done.stderr, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    assert not Path(tmp_path / "x.gz").exists()
