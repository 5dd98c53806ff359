"""`autotune profile` on a model from a file: before and after, what a narrow terminal shows, and mistakes."""

import json
import re

import pytest
import torch
import trace_events
from repository import ROOT

from autotune.core import chrome_trace
from autotune.profiling import attribution
from autotune.profiling.tree import tree
from autotune_cli.main import run_command
from tuning_db import Store

MODELS = """
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()

    def forward(self, x):
        return self.act(self.bn(self.conv(x)) + x)

def net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), Block(), nn.Flatten(), nn.Linear(168, 5))

def pair():
    return nn.Bilinear(3, 3, 3)

class Branches(nn.Conv2d):
    def forward(self, x):
        y = super().forward(x)
        return y if y.sum() > 0 else -y

def branches():
    return Branches(3, 4, 3)
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "models.py"
    path.write_text(MODELS)
    return path


@pytest.fixture
def profile(monkeypatch, capsys):
    """Run the script in this process: its exit code and what it wrote."""

    def here(*words):
        monkeypatch.setenv("COLUMNS", "80")
        try:
            code = run_command("profile", list(map(str, words)), "autotune profile")
        except SystemExit as exited:  # argparse
            code = exited.code
        return code, *capsys.readouterr()

    return here


@pytest.mark.process
def test_any_model_has_a_before_and_an_after(models, tmp_path, profile):
    """With an empty database all layers run on torch's operators."""
    Store.create(tmp_path / "empty.db").close()
    words = ["--device", "cpu", "--model", f"{models}:net", "--input", "3,9,8", "--batch", 2, "--calls", 1]
    words += ["--db", tmp_path / "empty.db", "--json", tmp_path / "new" / "all.json"]
    code, out, err = profile(*words)
    assert code == 0, err
    before, after = json.loads((tmp_path / "new" / "all.json").read_text())["profiles"]
    assert (before["about"]["variant"], after["about"]["variant"]) == ("eager", "FusedResNet")
    assert before["about"]["input"] == after["about"]["input"] == [2, 3, 9, 8]
    assert after["layers"]["1.conv"]["flops"] == 2 * 2 * 7 * 6 * 4 * 4 * 9
    assert {"0", "1.conv", "3"} <= after["layers"].keys() and "1.bn" not in after["layers"]
    assert after["tree"]["us"] == pytest.approx(after["totals"]["kernels_us"])
    assert after["totals"]["unattributed_us"] == 0
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "FusedResNet warns: " in out
    table = out.rpartition("speedup")[2]
    assert re.search(r"^ +conv +[\d.]+ +1 +[\d.]+ +\d+ +[\d.]+$", table, re.MULTILINE)
    assert re.search(r"^ +bn +[\d.]+ +1 +fused *$", table, re.MULTILINE)


@pytest.mark.parametrize("name", ["resnet50", "se_resnet9_fixup-compile", "se_resnet9_fixup-fused"])
def test_a_narrow_terminal_shortens_names_and_no_numbers(name, profile):
    path = ROOT / "tests" / "data" / "traces" / f"{name}.json.gz"
    code, out, err = profile("--from", path)
    assert code == 0, err
    assert all(len(line) <= 80 for line in out.splitlines())
    shown = out.partition("operator: kernel")[2].partition("\n\n")[0].splitlines()[1:]
    nodes = [node for _, node in tree(attribution.read(chrome_trace.load(path))).walk() if node.kind != "operator"]
    assert len(shown) == len(nodes)
    for line, node in zip(shown, nodes, strict=True):
        us = float(re.search(r" ([\d.]+) +[\d.]+%", line)[1])
        assert us == pytest.approx(node.us, abs=0.5, rel=0.01) and "…" not in line[50:]


def test_the_trace_of_a_recorded_trace_has_its_lanes(tmp_path, profile):
    code, _, err = profile(
        "--from", ROOT / "tests" / "data" / "traces" / "resnet50.json.gz", "--trace", tmp_path / "t.json"
    )
    assert code == 0, err
    [lane] = trace_events.lanes(trace_events.read(tmp_path / "t.json"), "autotune").values()
    assert {"network", "layer1.0", "layer1.0.conv1", "conv2d"} <= {one["name"] for one in lane}
    code, _, err = profile("--from", tmp_path / "t.json")
    assert code == 0, err


def test_a_page_names_the_libraries_of_each_module(tmp_path, profile):
    path = tmp_path / "page.html"
    code, _, err = profile("--from", ROOT / "tests" / "data" / "traces" / "resnet50.json.gz", "--html", path)
    assert code == 0, err
    modules = re.findall(r'<tr class="module".*?</tr>', path.read_text(), re.DOTALL)
    [first] = [row for row in modules if ">conv1<" in row and "<code>" not in row][:1]
    assert "cuDNN, CUDA driver" in first


MISTAKES = [
    (["--model", "FILE:net", "--input", "5,9,8"], "net does not take an input of 8x5x9x8: RuntimeError: "),
    (["--model", "FILE:pair", "--input", "3,4,4"], "pair does not take an input of 8x3x4x4: TypeError: "),
    (["--model", "FILE:branches", "--input", "3,9,8", "--db", "EMPTY"], "cannot be traced for an input of"),
    (["--model", "FILE:net", "--input", "3,0,8"], "'3,0,8' is not a shape: write C,H,W"),
    (["--model", "FILE:net", "--input", "3,9,8", "--layer", "1.con*x"], "no layer matches '1.con*x'"),
    (["--input", "3,9,8"], "se_resnet9_fixup does not take an input of 8x3x9x8"),
    (["--layer", "stem", "--compile"], "--layer finds nothing with --compile"),
    (["--json", "FILE/a.json"], "cannot be written"),
    (["--html", "FOLDER"], "is a folder: name a file in it"),
    (["--from", "a", "b", "c"], "--from takes one trace, or two"),
    (["--from", "NUMBER"], "was not recorded by `autotune profile`"),
]


@pytest.mark.process
@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_a_mistake_is_a_sentence(words, said, models, tmp_path, profile):
    Store.create(tmp_path / "empty.db").close()
    (tmp_path / "number.json").write_text("5")
    places = {"FILE": models, "EMPTY": tmp_path / "empty.db", "FOLDER": tmp_path, "NUMBER": tmp_path / "number.json"}
    for name, place in places.items():
        words = [word.replace(name, str(place)) for word in words]
    code, _, err = profile("--device", "cpu", *words)
    assert code == 2
    [sentence] = [line for line in err.splitlines() if "error: " in line]
    assert said in sentence and "Traceback" not in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_needs_a_gpu_says_so(profile):
    for words in (["--cudnn", "off"], ["--device", "cuda"]):
        code, _, err = profile(*words)
        assert code == 2 and "torch sees no NVIDIA GPU" in err
