"""`autotune profile` as users run it: its tables, JSON, page and traces, and what it says of mistakes."""

import json
import re

import pytest
import torch
import trace_events
from processes import TUNED_BATCH, script

CALLS = 2
NUMBERS = ("n", "h", "w", "c", "k", "r", "s", "stride", "pad")
MODELS = """
from torch import nn

def net():
    more = [layer for _ in range(3) for layer in (nn.ReLU(), nn.Conv2d(16, 16, 3))]
    return nn.Sequential(nn.Conv2d(3, 16, 3), *more)

def number():
    return 3

def broken():
    raise ValueError("no weights")
"""


def flops_of(conv2d):
    """Of a convolution with square strides and padding, without groups and dilation, from its problem's text."""
    n, h, w, c, k, r, s, stride, pad = (int(re.search(rf"\b{name}=(\d+)", conv2d)[1]) for name in NUMBERS)
    p, q = (h + 2 * pad - r) // stride + 1, (w + 2 * pad - s) // stride + 1
    return 2 * n * p * q * k * c * r * s


def test_the_script_profiles_a_network_and_its_fused_one(tuned_db, tmp_path):
    files = [tmp_path / name for name in ("all.json", "page.html", "trace.json.gz")]
    words = ["--device", "cpu", "--batch", TUNED_BATCH, "--db", tuned_db, "--calls", CALLS]
    words += ["--json", files[0], "--html", files[1], "--trace", files[2]]
    done = script("profile", *words)
    assert done.returncode == 0, done.stderr
    before, after = json.loads(files[0].read_text())["profiles"]
    assert before["about"]["variant"] == "eager" and after["about"]["variant"] == "FusedResNet"
    for profile in (before, after):
        totals = profile["totals"]
        assert totals["kernels_us"] + totals["wait_us"] == pytest.approx(totals["total_us"])
        assert profile["tree"]["us"] == pytest.approx(totals["kernels_us"])
        assert totals["difference"] == pytest.approx(totals["total_us"] / totals["measured_us"] - 1)
    ours = {library["name"]: library for library in after["libraries"]}["ours"]
    symbols = {layer["symbol"] for layer in after["layers"].values() if "template" in layer}
    assert ours["kernels"] == len(symbols) and ours["open"]
    of_layers = [layer for layer in after["layers"].values() if layer["problem"].startswith("conv2d ")]
    assert of_layers and all(layer["flops"] == flops_of(layer["problem"]) for layer in of_layers)
    page = files[1].read_text()
    assert not re.search(r"""(src|href)=|https?://(?!schema)|@import|url\(""", page.replace("github.com", ""))
    assert "cpu/conv2d.cpp.j2" in page and "mkldnn_convolution" in page and "Side by side" in page
    for name in ("conv2 Conv2d", "mkldnn_convolution", "oneDNN", "fused", "without the profiler"):
        assert name in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())

    for path, profile in zip((files[2], tmp_path / "trace-fused.json.gz"), (before, after), strict=True):
        [lane] = trace_events.lanes(trace_events.read(path), "autotune").values()
        kernels = [one["args"] for one in lane if "kernel" in one["args"]]
        for layer, about in profile["layers"].items():
            of_layer = [args for args in kernels if args["module"] == layer]
            assert len(of_layer) >= CALLS
            if "template" in about:
                assert len(of_layer) == CALLS
                for key, value in {**about, "kernel": about["symbol"]}.items():
                    assert key in ("symbol", "source", "template") or all(args[key] == value for args in of_layer)
                assert all(about["template"] in args["source"] and args["limit_us"] > 0 for args in of_layer)

    again = script("profile", "--from", files[2], tmp_path / "trace-fused.json.gz", "--layer", "layers.1.*.conv1")
    assert again.returncode == 0, again.stderr
    assert "conv1 Conv2d" in again.stdout and "stem Sequential" not in again.stdout


@pytest.mark.process  # git tells the commit
@pytest.mark.parametrize(("precision", "dtype"), [("tf32", "tf32"), ("int8", "s8"), ("fp8", "e4m3")])
def test_a_fused_network_has_a_precision_of_its_own(precision, dtype, empty_db, tmp_path):
    (tmp_path / "models.py").write_text(MODELS)
    words = ["--model", f"{tmp_path}/models.py:net", "--input", "3,12,12", "--batch", 2, "--device", "cpu"]
    words += ["--calls", 1, "--db", empty_db, "--precision", precision, "--json", tmp_path / "all.json"]
    done = script("profile", *words, AUTOTUNE_INDUCTOR="0")
    assert done.returncode == 0, done.stderr
    before, after = json.loads((tmp_path / "all.json").read_text())["profiles"]
    assert [profile["about"]["precision"] for profile in (before, after)] == [None, precision]
    assert [profile["about"]["dtype"] for profile in (before, after)] == ["float32"] * 2
    assert f"dtype={dtype}" in after["layers"]["2"]["problem"] and after["tree"]["us"] > 0
    assert "eager: 2x3x12x12, float32; " in " ".join(done.stdout.split())
    assert f"FusedResNet: 2x3x12x12, float32, {precision}; " in " ".join(done.stdout.split())


def test_mistakes_are_told_in_a_sentence(empty_db, tmp_path):
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    wrong = {
        "torchvision:NAME": ["--model", "resnet9000"],
        "no file": ["--model", f"{tmp_path}/absent.py:net"],
        "it has net, number, broken": ["--model", f"{path}:nothing"],
        ":broken' failed: ValueError: no weights": ["--model", f"{path}:broken"],
        "returned a int": ["--model", f"{path}:number"],
        "--input C,H,W": ["--model", f"{path}:net"],
        "x.db": ["--model", f"{path}:net", "--input", "3,8,8", "--db", "x.db"],
        "--precision is for FusedResNet: give --db FILE": ["--model", f"{path}:net", "--precision", "int8"],
        "tf32 is for --dtype f32": ["--db", empty_db, "--precision", "tf32", "--dtype", "bf16"],
        "is not a trace": ["--from", str(path)],
        "absent.json": ["--from", f"{tmp_path}/absent.json"],
        "runs nothing: leave out --db": ["--from", str(path), "--db", "x.db"],
        "runs nothing: leave out --channels-last, --precision": [
            *("--from", str(path), "--precision", "int8", "--channels-last")
        ],
        "torchvision": ["--model", "torchvision:resnet5O"],
    }
    if not torch.cuda.is_available():
        wrong["no NVIDIA GPU"] = ["--cudnn", "off"]
    for words, line in wrong.items():
        done = script("profile", "--device", "cpu", *line)
        assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
