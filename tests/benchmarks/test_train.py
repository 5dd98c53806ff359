"""train.py at its smallest, and the distance of loss curves."""

import json

import pytest
from processes import script
from training_curves import POINTS, Run, compared


def run(way, seed, losses):
    return Run(way, seed, losses, 0.5, 1.0)


def test_a_curve_has_the_means_of_equal_parts():
    assert run("torch", 0, [1.0, 2.0, 4.0]).curve() == [1.0, 2.0, 4.0]
    long = run("torch", 0, [float(i) for i in range(10 * POINTS)]).curve()
    assert len(long) == POINTS and long[:2] == [4.5, 14.5]


def test_distances_of_curves():
    theirs = [run("torch", seed, [1.0 + seed, 1.0 - seed]) for seed in range(3)]
    assert compared(theirs[:1]) == {"deviation": None, "spread": None}
    found = compared([*theirs, run("autotune", 0, [1.0, 1.5])])
    assert found["deviation"] == pytest.approx(0.5**0.5 / 2)
    assert found["spread"] == pytest.approx((1 + 2 + 1) / 3)


@pytest.mark.process  # matplotlib asks fc-list for fonts
def test_the_default_network_is_trained_both_ways(empty_db, tmp_path):
    small = ("--device", "cpu", "--steps", 2, "--batch", 2, "--seeds", 2, "--images", 3)
    words = ("--db", empty_db, *small, "--out", tmp_path / "it.json")
    done = script("benchmarks/programs/train.py", *words, AUTOTUNE_INDUCTOR="0")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "it.json").read_text())
    runs = [Run(**entry) for entry in record["runs"]]
    assert [(one.way, one.seed) for one in runs] == [("torch", 0), ("torch", 1), ("autotune", 0)]
    assert runs[2].losses == pytest.approx(runs[0].losses, rel=1e-4) and runs[1].losses[0] != runs[0].losses[0]
    assert record["deviation"] < 1e-3 < record["spread"]
    assert "top-1" in done.stdout and (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")
    again = script("benchmarks/programs/train.py", "--show", tmp_path / "it.json")
    assert again.returncode == 0 and str(tmp_path / "it.png") in again.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((), "give --db FILE"), (("--db", "absent.db"), "no tuning database"), (("--show", "absent"), "cannot read")],
)
def test_mistakes_are_told_in_a_line(arguments, said):
    done = script("benchmarks/programs/train.py", *arguments)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and said in done.stderr
