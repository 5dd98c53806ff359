"""bench_networks.py: the table, the means and the chart of a record."""

import argparse
import json
import math

import bench_networks
import pytest
import speedups
import torch

from autotune.core import AutotuneError


def variant(us, ratio, error=1e-3):
    stream = {"median": us, "low": us, "high": us, "samples": 9}
    return {"status": "ok", "error": error, "stream": stream, "stream_ratio": ratio and {"median": ratio}}


def run(*words):
    parser = argparse.ArgumentParser()
    bench_networks.add_arguments(parser)
    return bench_networks.main(parser.parse_args(words))


FAILED = {"status": "failed", "reason": "no memory"}
RECORD = {
    "machine": {"device": "a GPU"},
    "networks": {
        "one": {
            "batches": [
                {
                    "batch": 1,
                    "variants": {
                        "eager": variant(400.0, 4.0, error=2e-3),
                        "compile_frozen": variant(200.0, 2.0),
                        "compile_max": variant(150.0, 1.5),
                        "untuned": variant(160.0, 1.6),
                        "fused": variant(100.0, 1.0),
                    },
                },
                {
                    "batch": 8,
                    "variants": {
                        "compile_frozen": variant(900.0, 0.9),
                        "compile_max": FAILED,
                        "fused": variant(1000.0, 1.0),
                    },
                },
            ]
        },
        "two": {"batches": [{"batch": 1, "variants": {"compile_frozen": variant(3.0, None), "fused": FAILED}}]},
        "three": {"reason": "autotune tune ended with 2"},
    },
}


def test_a_speedup_is_over_the_faster_mode_of_torch_compile():
    first, second, third = speedups.rows(RECORD)
    assert (first.network, first.batch, first.us, first.speedup) == ("one", 1, 100.0, 1.5)
    assert first.untuned == pytest.approx(1.5 / 1.6)
    assert (first.error, first.error_ratio) == (1e-3, pytest.approx(0.5))
    assert second.speedup == 0.9 and math.isnan(second.untuned) and math.isnan(second.error_ratio)
    assert math.isnan(third.speedup) and math.isnan(third.us)
    assert speedups.mean(row.speedup for row in (first, second, third)) == pytest.approx(math.sqrt(1.5 * 0.9))


@pytest.mark.process  # matplotlib asks fc-list for fonts
def test_a_record_is_shown_and_drawn_again(tmp_path, capsys):
    path = tmp_path / "networks.json"
    path.write_text(json.dumps(RECORD))
    assert run("--show", str(path)) == 0
    shown = capsys.readouterr().out
    assert "one, batch 8, compile_max: no memory" in shown and "three failed: autotune tune ended with 2" in shown
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_networks_are_those_of_torchvision_and_the_u_net():
    assert len(bench_networks.NETWORKS) >= 14
    assert bench_networks.NETWORKS["vgg16_bn"] == "torchvision:vgg16_bn"
    assert bench_networks.NETWORKS[bench_networks.UNET] == "unet"


def test_processes_see_the_gpu_of_their_place_only(monkeypatch):
    assert bench_networks.places(None, "cuda") == [{}]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [place["CUDA_VISIBLE_DEVICES"] for place in bench_networks.places([0, 1], "cuda")] == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7")
    assert bench_networks.places([1], "cuda") == [{"CUDA_VISIBLE_DEVICES": "GPU-7"}]
    with pytest.raises(AutotuneError, match="--devices 2: torch sees 2 GPUs"):
        bench_networks.places([1, 2], "cuda")
    with pytest.raises(AutotuneError, match="torch sees 0 GPUs"):
        bench_networks.places([0], "cpu")


@pytest.mark.daily(2, "whole runs")
@pytest.mark.process
def test_a_network_is_tuned_and_timed_with_what_was_compiled_ahead(tmp_path, monkeypatch, capsys):
    (tmp_path / "net.py").write_text("import torch\ndef net():\n    return torch.nn.Conv2d(3, 8, 3)\n")
    monkeypatch.setitem(bench_networks.NETWORKS, "small", f"{tmp_path / 'net.py'}:net")
    path = tmp_path / "networks.json"
    where = ["--device", "cpu", "--input", "3,16,16", "--dbs", str(tmp_path / "dbs"), "--out", str(path)]
    words = ["--only", "small", "--batch", "1", "--budget", "2s", "--seconds", "0", "--compile-ahead", "2"]
    words += ["--skip", "compile_max", *where]
    cached = []
    measure = bench_networks.measure

    def seen(*arguments):
        cached.extend(sorted((tmp_path / "dbs").glob("small.inductor-*/**/*.py")))
        return measure(*arguments)

    monkeypatch.setattr(bench_networks, "measure", seen)
    assert run(*words) == 0
    assert cached and "compiled 1 of 1" in capsys.readouterr().err
    (row,) = speedups.rows(json.loads(path.read_text()))
    assert row.speedup > 0 and row.untuned > 0 and row.peers.keys() == {"reduce-overhead"}
    assert row.error < 1e-5
    words = [*(word for word in words[:-1] if word not in ("--compile-ahead", "2")), str(tmp_path / "again.json")]
    assert run(*words, "--db", str(tmp_path / "dbs" / "small.db"), "--skip", "compile_max,untuned") == 0
    record = json.loads((tmp_path / "again.json").read_text())
    assert record["networks"]["small"].keys() == {"batches"} and record["database"]["file"] == "small.db"
    assert record["networks"]["small"]["batches"][0]["variants"].keys() == {"eager", "compile_frozen", "fused"}
