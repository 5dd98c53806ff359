"""scripts/algorithms.py where there is no GPU: records are printed and drawn, bad input is a sentence."""

import json

import pytest
import torch
from cudnn_records import CLASSIC, recorded

from autotune_cli.algorithms.layers import layers_of
from autotune_cli.main import run_command


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    path = tmp_path_factory.mktemp("record") / "record.json"
    layer = {
        "name": "layer1.0.conv1",
        "problem": "conv2d n=128 h=16 w=16 c=64 k=64 r=3 s=3 pad=1 dtype=f16",
        "algorithms": [algorithm.as_json() for algorithm in [*recorded(), *CLASSIC]],
        "missing": ["no engines on Sundays"],
    }
    path.write_text(json.dumps({"machine": {"device": "NVIDIA H200"}, "layers": [layer]}))
    return path


def here(*arguments):
    """Run the script in this process: its exit code."""
    try:
        return run_command("algorithms", list(map(str, arguments)), "autotune algorithms")
    except SystemExit as exited:  # argparse
        return exited.code


@pytest.mark.process
def test_a_record_is_printed_in_order_within_demands_and_drawn(record, tmp_path, capsys):
    chart = tmp_path / "chart.png"
    arguments = ("--order", "workspace", "--workspace-limit", "1K", "--top", 3, "--chart", chart)
    assert here("--show", record, *arguments) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[0].strip() == "layer1.0.conv1" and max(map(len, lines)) <= 100
    table = lines[lines.index(next(line for line in lines if line.startswith("algorithm"))) + 1 :]
    fastest = min((one for one in recorded() if one.us and not one.workspace_bytes), key=lambda one: one.us)
    assert table[0].split()[:4] == [fastest.key, f"{fastest.us:.2f}", "0", "B"]  # of those that need nothing
    assert "4 FFT: unsupported: NOT_SUPPORTED" in printed
    assert "do not meet the demands" in printed and "no engines on Sundays" in printed
    assert "IMPLICIT_PRECOMP_GEMM" not in printed
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_those_that_repeat_their_bits_alone(record, capsys):
    assert here("--show", record, "--deterministic") == 0
    printed = capsys.readouterr().out
    assert "0 IMPLICIT_GEMM" in printed and "1 ALGO_1" in printed
    assert "WINOGRAD" not in printed and "eng41" not in printed


def test_the_layers_of_a_model_have_the_sizes_that_they_meet():
    found = dict(layers_of("se_resnet9_fixup", "layers.1.*", 7, None, "half"))
    assert list(found) == ["layers.1.0.conv1", "layers.1.0.conv2", "layers.1.0.downsample.1"]
    text = "n=7 h=16 w=16 c=64 k=128 r=3 s=3 stride=2,2 pad=1,1 dilation=1,1 groups=1 dtype=f16 epilogue=none"
    assert str(found["layers.1.0.conv1"]) == f"conv2d {text}"


NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--show", "nothing.json"], "not a record"),
        (["--problem", "gemm m=1 n=1 k=1 dtype=f16"], "convolutions"),
        (["--model", "se_resnet9_fixup", "--layer", "layer9*"], "no convolution is called 'layer9*'"),
        (["--model", "se_resnet9_fixup", "--input", "3,x"], "'3,x' is not a shape: write C,H,W"),
        (["--model", "se_resnet9_fixup", "--input", "3,9,9"], "se_resnet9_fixup does not take an input of 1x3x9x9"),
        (["--model", "MODEL:make", "--input", "4,9,9"], "make does not take an input of 1x4x9x9: RuntimeError"),
        (["--model", "MODEL:make"], "give --input C,H,W"),
        (["--model", "MODEL:make", "--input", "2,9,9", "--dtype", "f7"], "unknown dtype 'f7'"),
        (["--problem", "conv2d n=1 h=4 w=4 c=8 k=8", "--batch", "3"], "--batch goes with --model"),
        (["--problem", "conv2d n=1 h=4 w=4 c=8 k=8", "--chart", "chart.docx"], "end it in one of"),
        (["--problem", "conv2d n=1 h=4 w=4 c=8 k=8", "--out", "MODEL/record.json"], "cannot be written"),
        (["--problem", "conv2d n=1 h=4 w=4 c=8 k=8", "--workspace-limit", "much"], "write 512K, 64M or 1G"),
        pytest.param(["--problem", "conv2d n=1 h=4 w=4 c=8 k=8 dtype=f16"], "no NVIDIA GPU", marks=NO_GPU),
    ],
)
def test_bad_input_is_a_sentence(arguments, words, tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text("from torch import nn\nmake = lambda: nn.Conv2d(2, 4, 3)\n")
    assert here(*(argument.replace("MODEL", str(path)) for argument in arguments)) == 2
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said and "error: " in said.splitlines()[-1]


@pytest.mark.parametrize("lacking", ["machine", "name", "problem", "missing"])
def test_what_is_no_whole_record_is_refused(lacking, record, tmp_path, capsys):
    whole = json.loads(record.read_text())
    (whole if lacking == "machine" else whole["layers"][0]).pop(lacking)
    part = tmp_path / "part.json"
    part.write_text(json.dumps(whole))
    assert here("--show", part) == 2
    assert f"not a record of `autotune algorithms`: KeyError: '{lacking}'" in capsys.readouterr().err


def test_an_order_by_what_was_not_measured_is_told(record, tmp_path, capsys):
    whole = json.loads(record.read_text())
    for algorithm in whole["layers"][0]["algorithms"]:
        algorithm["energy_uj"] = None
    part = tmp_path / "part.json"
    part.write_text(json.dumps(whole))
    assert here("--show", part, "--order", "energy", "--top", 1) == 0
    assert "energy was not measured" in capsys.readouterr().out
