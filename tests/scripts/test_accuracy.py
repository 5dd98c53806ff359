"""The script that tells what precision costs, at its smallest."""

import json
import os

import pytest
from processes import script

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}  # layers this small only wait for each other's threads


def record(out, *arguments):
    done = script("accuracy", "--device", "cpu", "--out", out / "told.json", *arguments, env=ONE_THREAD)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "told.json").read_text()), done.stdout


@pytest.mark.process
def test_a_network_that_it_trains(tmp_path):
    small = ("--width", 16, "--size", 32, "--steps", 4, "--train-batch", 8, "--images", 30, "--batch", 16)
    told, shown = record(tmp_path, *small, "--calibration", 16, "--bias-correction", "both")
    assert told["training"]["steps"] == 4 and 0 < told["training"]["loss"] < 10
    assert told["images"] == 30 and 0 <= told["reference_top1"] <= 1
    assert list(told["precisions"]) == ["f32", "int8 uncorrected", "int8", "fp8 uncorrected", "fp8"]
    exact, uncorrected, in_bytes, _, in_floats = told["precisions"].values()
    assert in_floats["layers"]["e4m3"] == in_bytes["layers"]["s8"] and in_floats["corrected_biases"] == 19
    assert in_bytes["error"] < in_floats["error"] < 0.3, "e4m3 has steps of 6 to 12 %"
    assert [one["corrected_biases"] for one in (exact, uncorrected, in_bytes)] == [0, 0, 19]
    assert uncorrected["error"] != in_bytes["error"] and uncorrected["layers"] == in_bytes["layers"]
    assert exact["agreement"] == 1 and exact["error"] < 1e-5 and exact["top1"] == told["reference_top1"]
    assert 1e-4 < in_bytes["error"] < 0.2 and in_bytes["error"] <= in_bytes["worst"] and in_bytes["samples"] == 30
    assert in_bytes["layers"]["s8"] == 19 + 1 and set(in_bytes["not_in_bytes"]) == {"conv1", "fc"}
    # 19 convolutions and a cast: the mean of the last image, which is one pixel, is no layer
    assert in_bytes["kernels_from"] == {"untuned": 25} and in_bytes["on_our_kernels"] == 0
    assert "torch f32" in shown and "0 of 25" in shown


@pytest.mark.process
def test_any_model_on_random_images(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n"
        "make = lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(),"
        " nn.Conv2d(16, 32, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 7))\n"
    )
    sizes = ("--input", "3,12,12", "--images", 20, "--batch", 8, "--calibration", 8)
    told, shown = record(tmp_path, "--model", f"{file}:make", *sizes, "--precision", "int8", "--precision", "bf16")
    assert told["reference_top1"] is None and told["images"] == 20 and told["input"] == [3, 12, 12]
    assert list(told["precisions"]) == ["int8", "bf16"]
    assert told["precisions"]["int8"]["layers"]["s8"] == 4 and 1e-4 < told["precisions"]["int8"]["error"] < 0.1
    assert told["precisions"]["bf16"]["tensors"] == "bfloat16" and 1e-4 < told["precisions"]["bf16"]["error"] < 0.1
    assert all(len(line) <= 80 for line in shown.splitlines() if not line.startswith(("wrote", str(file))))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--precision", "int4"), "unknown precision 'int4': choose"), (("--device", "cuda"), "torch sees no NVIDIA GPU")],
)
def test_mistakes_are_told_in_a_line(arguments, said):
    if "cuda" in arguments and os.path.exists("/dev/nvidiactl"):
        pytest.skip("there may be a GPU")
    done = script("accuracy", *arguments)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and said in done.stderr


def test_a_database_that_is_absent_is_told_before_the_training(tmp_path):
    saved = tmp_path / "trained.pt"
    small = ("--steps", 1, "--train-batch", 2, "--width", 4, "--size", 16, "--save", saved)
    done = script("accuracy", "--device", "cpu", "--db", tmp_path / "absent.db", *small)
    assert done.returncode == 2 and "absent.db" in done.stderr and len(done.stderr.splitlines()) == 1
    assert not saved.exists()
