"""`autotune bench`: records, charts and comparisons."""

import io
import json
import shutil
import sys

import pytest
from processes import TUNED_BATCH, assert_error, script


def test_bench_records_and_draws_what_it_timed(tuned_db, tmp_path):
    words = ["--db", tuned_db, "--device", "cpu", "--batch", TUNED_BATCH, "--only", "fused", "--seconds", "0.2"]
    done = script("bench", *words, "--out", tmp_path / "tiny.json")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "tiny.json").read_text())
    variants = record["batches"][0]["variants"]
    assert {name: variant["status"] for name, variant in variants.items()} == {"fused": "ok"}
    for variant in variants.values():
        assert 0 <= variant["error"] < 1e-5
        assert 0 < variant["stream"]["low"] <= variant["stream"]["median"] <= variant["stream"]["high"]
        assert variant["sm_mhz"] is None, "a CPU's clock is not read"
    assert (tmp_path / "tiny.png").read_bytes().startswith(b"\x89PNG")
    assert "fused" in done.stdout
    assert_error(script("bench", "--device", "cpu", "--only", "nonsense"), "nonsense", "eager")


def test_bench_compares_databases_in_one_run(tuned_db, tmp_path):
    other = shutil.copy(tuned_db, tmp_path / "before.db")
    words = ["--db", tuned_db, "--device", "cpu", "--batch", TUNED_BATCH, "--only", "fused", "--seconds", "0.2"]
    done = script("bench", *words, "--against", other, "--out", tmp_path / "two.json")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "two.json").read_text())
    variants = record["batches"][0]["variants"]
    assert {name: variant["status"] for name, variant in variants.items()} == {"fused": "ok", "fused from before": "ok"}
    assert variants["fused from before"]["stream_ratio"]["rounds"] > 0
    assert [entry["file"] for entry in record["against"]] == ["before.db"]
    assert_error(script("bench", *words, "--against", other, "--against", other), "two have the same name")
    assert_error(script("bench", *words, "--against", tmp_path / "none.db"), "no tuning database", "none.db")
    (tmp_path / "text.db").write_text("no database")
    assert_error(script("bench", *words, "--against", tmp_path / "text.db"), "text.db is not a tuning database")
    assert_error(script("bench", "--db", tmp_path / "text.db", *words[2:]), "text.db is not a tuning database")


def test_a_paused_bench_ends_with_the_process_that_paused_it(tuned_db, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    words = [
        "--db",
        tuned_db,
        "--device",
        "cpu",
        "--batch",
        TUNED_BATCH,
        "--only",
        "fused",
        "--out",
        tmp_path / "bench.json",
    ]
    assert_error(script("bench", *words, "--pause"), "standard input ended while --pause waited")


NETWORK = """
import torch

def small():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 4, 1))
"""


RESULTS = """
import torch

class Results(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)

    def forward(self, x):
        y = self.conv(x)
        return {"y": y, "number": 3, "size": x.shape[0], "nothing": None, "text": "a", "all": (y.mean(), x.ndim)}
"""


@pytest.mark.process
def test_bench_times_models_that_return_numbers_beside_tensors(tmp_path):
    (tmp_path / "net.py").write_text(RESULTS)
    network = ("--model", f"{tmp_path / 'net.py'}:Results", "--input", "3,8,8", "--batch", "2,20", "--device", "cpu")
    done = script("bench", *network, "--only", "eager,channels_last", "--seconds", "0.01", "--out", tmp_path / "r.json")
    assert done.returncode == 0, done.stderr
    for batch in json.loads((tmp_path / "r.json").read_text())["batches"]:
        assert [variant["status"] for variant in batch["variants"].values()] == ["ok", "ok"]
        assert all(variant["error"] < 1e-5 for variant in batch["variants"].values())


@pytest.mark.process
def test_bench_runs_backward_passes_in_the_thread_that_is_asked_for(tmp_path):
    says = "class Says(torch.nn.Module):\n    def forward(self, x):\n"
    says += "        print('threads:', torch.autograd.is_multithreading_enabled())\n        return x\n"
    (tmp_path / "net.py").write_text(
        f"import torch\n{says}def net():\n    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), Says())\n"
    )
    network = (
        "--model",
        f"{tmp_path / 'net.py'}:net",
        "--input",
        "3,8,8",
        "--batch",
        "2",
        "--device",
        "cpu",
        "--train",
    )
    words = (*network, "--only", "eager", "--seconds", "0.01", "--out", tmp_path / "step.json")
    for options, expected in (((), "True"), (("--one-thread",), "False")):
        done = script("bench", *words, *options)
        said = [line for line in done.stdout.splitlines() if line.startswith("threads:")]
        assert said[-1] == f"threads: {expected}", done.stderr
        assert ("backward in the calling thread" in done.stdout) == bool(options)
        assert json.loads((tmp_path / "step.json").read_text())["arguments"]["one_thread"] == bool(options)


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:of the 5 convolutions", "ignore:a training step runs on torch's operators")
def test_bench_times_training_steps(empty_db, tmp_path):
    (tmp_path / "net.py").write_text(NETWORK)
    network = ("--model", f"{tmp_path / 'net.py'}:small", "--input", "3,8,8", "--batch", "2", "--device", "cpu")
    times = ("--seconds", "0.2", "--out", tmp_path / "step.json")
    done = script("bench", *network, "--train", "--db", empty_db, "--only", "eager,channels_last,fused", *times)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "step.json").read_text())
    variants = record["batches"][0]["variants"]
    assert {name: variant["status"] for name, variant in variants.items()} == dict.fromkeys(variants, "ok")
    assert list(variants) == ["eager", "channels_last", "fused"]
    assert all(variant["error"] < 1e-5 for variant in variants.values())
    assert "forward and backward" in record["method"]["settings"] and "training step" in done.stdout
    assert_error(script("bench", *network, "--amp"), "--amp is for --train")
    assert_error(script("bench", *network, "--one-thread"), "--one-thread is for --train")
    assert_error(script("bench", *network, "--train", "--precision", "tf32"), "are for inference, not for --train")
    assert_error(script("bench", *network, "--train", "--only", "jit"), "jit", "compile_reduce")
