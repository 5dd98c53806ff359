"""`autotune bench-layers` and what it stands on, without a GPU: sets, measuring, lost processes, tables and charts."""

import json
import math

import faults
import pytest
import torch
from databases import put_time
from processes import script
from repository import ROOT

from autotune.core import ceil_div, device_name
from autotune.ir import parse
from autotune.ir.operators import Conv2d
from autotune.libraries import cudnn
from autotune.libraries.cudnn.graph import channels_last
from autotune.measure import CandidateBench
from autotune_cli.layers.comparison import Job
from autotune_cli.layers.contestants import torch_contestants
from autotune_cli.layers.layer_sets import layer_set, title
from autotune_cli.layers.process import ComparisonProcess
from autotune_cli.layers.report import summary
from autotune_cli.main import run_command
from tuning_db import Store

CPU = torch.device("cpu")
POOL = parse("avg_pool2d n=2 h=9 w=7 c=7 r=3 s=3 stride=2 pad=1 dtype=f32")


# -- sets of layers ----------------------------------------------------------------------------------------------------


def test_the_resnet_set_is_conv_bias_relu_of_two_networks():
    _, problems = layer_set("resnet", None)
    assert len(problems) == 23
    assert all(problem.n == 128 and str(problem.epilogue) == "bias,relu" for problem in problems)
    assert all(problem.p == ceil_div(problem.h, problem.stride[0]) for problem in problems), "padding keeps the size"


def test_the_awkward_set_has_what_fits_no_tile():
    _, problems = layer_set("awkward", None)
    assert len(problems) == len(set(problems)) >= 14
    assert {3, 4, 8} <= {problem.c for problem in problems if problem.r == 7}
    assert {1, 32} < {problem.groups for problem in problems}
    assert any(problem.groups == problem.c > 1 and problem.stride == (2, 2) for problem in problems)
    assert any(max(problem.dilation) > 1 for problem in problems)
    assert any(problem.c % 8 and problem.k % 8 and problem.c > 4 for problem in problems)
    assert {1, 7, 128} < {problem.n for problem in problems}
    assert len({title(problem) for problem in problems}) == len(problems)
    assert all(isinstance(problem, Conv2d) and problem.dtype == "f16" for problem in problems)


def test_only_chooses_layers():
    _, problems = layer_set("resnet", r"^1x1.*@7x7")
    assert [(problem.c, problem.k) for problem in problems] == [(512, 2048), (2048, 512)]
    assert len(layer_set("awkward", "groups=32 ")[1]) == 2


# -- contenders --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epilogue", ["none", "bias,relu", "add,relu", "bias,store,silu", "mul_scalar,scale,add"])
def test_torchs_convolution_with_the_chain_behind_it_is_right(epilogue):
    case = CandidateBench(
        parse(f"conv2d n=2 h=9 w=7 c=12 k=20 r=3 s=2 stride=2,1 pad=1,0 groups=2 dtype=f32 epilogue={epilogue}"), CPU
    )
    contender = next(torch_contestants(case))
    assert contender.label.startswith("conv2d")
    assert case.verify(contender.prove())[1] is None
    assert "never written" in case.verify(contender.bind())[1], "what is timed must not pay for a copy"


@pytest.mark.parametrize(
    ("text", "device", "words"),
    [
        ("conv2d n=1 h=4 w=4 c=8 k=8 dtype=f16 epilogue=bias,relu", "cpu", ["GPU"]),
        ("conv2d n=1 h=4 w=4 c=8 k=8 dtype=f16 epilogue=bias,leaky_relu", "cuda:0", ["with leaky_relu", "silu"]),
        (str(POOL), "cuda:0", ["convolutions", "avg_pool2d"]),
    ],
    ids=["device", "epilogue", "operator"],
)
def test_plans_that_cudnn_does_not_have_are_a_sentence(text, device, words):
    found = cudnn.find_plans(parse(text), torch.device(device))
    assert found.plans == [] and "\n" not in found.reason
    assert all(word in found.reason for word in words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_or_unusable_package_is_a_sentence():
    found = cudnn.find_plans(parse("conv2d n=1 h=4 w=4 c=8 k=8 dtype=f16"), torch.device("cuda:0"))
    assert found.plans == [] and "\n" not in found.reason
    assert f"pip install {cudnn.PACKAGE}" in found.reason or "package cudnn cannot be used" in found.reason


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (7, 16, 3, 3)])
def test_strides_are_torchs_channels_last(shape):
    assert tuple(channels_last(shape)) == torch.empty(shape, memory_format=torch.channels_last).stride()


# -- measuring ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def contests():
    with ComparisonProcess("cpu") as contests:
        yield contests


def test_a_layer_is_measured_against_torch(tuned_db, contests):
    with Store.open(tuned_db) as store:
        device = store.device(device_name(CPU))
        convolutions = [row.text for row in store.problems() if row.operator == "conv2d"]
        tuned = [text for text in convolutions if any(row.kernel.library for row in store.ranking(device, text))]
    heard = []
    entry = contests.measure(Job(parse(tuned[0]), tuned_db, 30), heard.append)
    assert "error" not in entry, entry["error"]
    ours, torchs = entry["sides"]["ours"], entry["sides"]["torch"]
    assert ours["label"].startswith("cpu_conv2d") and torchs["label"].startswith("conv2d + ")
    for side in (ours, torchs):
        assert 0 < side["us"]["low"] <= side["us"]["median"] <= side["us"]["high"] and side["us"]["samples"] == 30
        assert side["share"] == pytest.approx(entry["limit_us"] / side["us"]["median"])
        assert side["relative_error"] < 1e-5
        assert any(side["label"] == what for what in heard)
    assert entry["sides"]["tuned"]["label"].startswith("the tuner's choice: cpu_conv2d")
    assert entry["ratios"].keys() == {"tuned", "torch"} and entry["ratios"]["torch"]["rounds"] == 30
    assert entry["ratios_to_tuned"].keys() == {"ours", "torch"}
    assert entry["missing"].keys() == {"cudnn"}
    assert {trial["status"] for trial in entry["trials"]} == {"ok"}
    json.dumps(entry)


@pytest.mark.compile
@pytest.mark.process
@pytest.mark.parametrize("operator", ["conv2d_dgrad", "conv2d_wgrad"])
def test_a_gradient_is_measured_in_all_its_forms(operator, tmp_path, contests):
    problem = parse(f"{operator} n=2 h=9 w=7 c=8 k=16 r=3 s=3 pad=1 dtype=f32")
    path = tmp_path / "gradients.db"
    tune = ["--arch", "cpu", "--trials", 2, "--from-db", "none", "--db", path]
    assert run_command("tune", list(map(str, ["--problem", problem, *tune])), "autotune tune") == 0
    entry = contests.measure(Job(problem, path, 30), lambda what: None)
    assert "error" not in entry, entry["error"]
    assert entry["sides"].keys() == {"ours", "tuned", "torch"}
    assert entry["sides"]["torch"]["label"] == "convolution_backward"
    with Store.open(path) as store:
        tuned = {row.operator for row in store.problems()}
    assert tuned == ({"conv2d", operator} if operator == "conv2d_dgrad" else {operator})
    assert {trial["status"] for trial in entry["trials"]} == {"ok"}


@pytest.mark.compile
def test_what_kills_the_process_is_a_result_and_the_layer_goes_on(tmp_path, contests):
    library = faults.library(tmp_path)
    path = tmp_path / "faulty.db"
    with Store.create(path) as store:
        device = store.put_device(device_name(CPU), "x86-64", flops_per_us=1e5, bytes_per_us=1e4)
        about = {"kind": "shared_library", "target": "x86-64", "compiler": "", "flags": "", "cutlass": ""}
        binary = store.put_library(library.read_bytes(), **about, abi_version=1)
        for us, name in enumerate(("segfault", "scaled", "good"), 1):
            identity = dict.fromkeys(("dtype", "epilogue", "target", "source"), "") | {"family": "faulty"}
            kernel = store.put_kernel(identity | {"config": f'"{name}"'}, symbol=name, library_id=binary.id)
            put_time(store, device, POOL, kernel.id, float(us))
    entry = contests.measure(Job(POOL, path, 30), lambda what: None)
    trials = {trial["label"]: (trial["status"], trial["reason"]) for trial in entry["trials"]}
    assert trials['faulty "segfault"'] == ("crashed", "the process died: SIGSEGV")
    assert trials['faulty "scaled"'][0] == "wrong" and "relative error" in trials['faulty "scaled"'][1]
    assert entry["sides"]["ours"]["label"] == 'faulty "good"'


# -- what is said of it ------------------------------------------------------------------------------------------------


def entry(problem, ours, **others):
    """A layer of a record, of times in microseconds."""
    times = {"ours": ours, **others}
    sides = {
        side: {
            "label": "cutlass2_conv2d 128x128x64 64x64x64 s4 swizzle 2 slices 4",
            "us": {"median": us, "low": 0.99 * us, "high": 1.02 * us, "samples": 40},
            "share": 3.0 / us,
            "relative_error": 2e-4,
        }
        for side, us in times.items()
        if us
    }
    ratios = {
        side: {"median": us / ours, "low": 0.99 * us / ours, "high": 1.01 * us / ours, "rounds": 40}
        for side, us in others.items()
        if ours and us
    }
    kept = {"problem": str(problem), "limit_us": 3.0, "sides": sides, "ratios": ratios, "missing": {}, "trials": []}
    if ours and "tuned" in others and "cudnn" in others:
        median = others["cudnn"] / others["tuned"]
        kept["ratios_to_tuned"] = {"cudnn": {"median": median, "low": 0.99 * median, "high": 1.01 * median}}
    return kept


@pytest.fixture
def record():
    problems = layer_set("resnet", None)[1] + layer_set("awkward", None)[1]
    layers = [
        entry(problem, 10.0 * 1.1**i, cudnn=12.0 * 1.08**i, first=13.0 * 1.08**i, torch=30.0 * 1.05**i)
        for i, problem in enumerate(problems)
    ]
    layers[3] = entry(problems[3], None, cudnn=20.0) | {"missing": {"ours": "the database has no kernel for it"}}
    layers[4] = {"problem": str(problems[4]), "error": "finals: its process died"}
    return {
        "arguments": {"layers": "resnet"},
        "machine": {"device": "NVIDIA H200"},
        "cudnn": {"cudnn": "9.19.0", "frontend": "1.28.0"},
        "layers": layers,
    }


def test_the_summary_is_over_layers_with_both_times():
    layers = [entry(POOL, 10.0, cudnn=20.0), entry(POOL, 10.0, cudnn=5.0, torch=40.0), entry(POOL, 10.0, cudnn=10.05)]
    layers += [entry(POOL, None, cudnn=10.0), {"problem": str(POOL), "error": "lost"}]
    found = summary(layers)
    assert found["cudnn"] == {
        "layers": 3,
        "geometric_mean": pytest.approx(math.prod((2, 0.5, 1.005)) ** (1 / 3)),
        "worst": 0.5,
        "best": 2.0,
        "faster": 1,
        "slower": 1,
    }
    assert found["torch"]["layers"] == 1 and "first" not in found and "cudnn_to_tuned" not in found


def test_the_summary_says_how_the_tuners_choice_compares_with_cudnn():
    found = summary([entry(POOL, 10.0, tuned=9.0, cudnn=9.0), entry(POOL, 10.0, tuned=10.0, cudnn=12.1)])
    assert found["tuned"]["worst"] == 0.9 and found["tuned"]["best"] == 1.0
    assert found["cudnn"]["worst"] == 0.9
    assert (found["cudnn_to_tuned"]["worst"], found["cudnn_to_tuned"]["best"]) == (1.0, pytest.approx(1.21))


def run(*arguments):
    """The script in this process."""
    return run_command("bench-layers", list(map(str, arguments)), "autotune bench-layers")


@pytest.mark.process
def test_a_record_is_shown_in_a_terminals_width_and_drawn(record, tmp_path, capsys):
    path = tmp_path / "layers.json"
    path.write_text(json.dumps(record))
    assert run("--show", path) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 110
    for words in (
        "3x3/1 64>64 @16x16 n128",
        "1.20 (1.19-1.21)",
        "cutlass2_conv2d 128x128x64",
        "geometric mean",
        "9.19",
    ):
        assert words in text
    assert "3x3/2 128>256 @8x8 n128 without our best kernel: the database has no kernel for it" in text
    assert "not measured: finals: its process died" in text
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")

    path.write_text(json.dumps({**record, "layers": record["layers"][3:5]}))
    assert run("--show", path, "--chart", tmp_path / "none.png") == 0
    assert "no chart: no layer has both" in capsys.readouterr().out and not (tmp_path / "none.png").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--db FILE, made with autotune tune --problems"),
        (
            ["--db", "x.db", "--layers", "nonsense"],
            "choose awkward, resnet, resnet-dgrad, resnet-int8, resnet-wgrad or a file",
        ),
        (["--db", "x.db", "--only", "9x9"], "matches --only '9x9'"),
        (["--db", "x.db", "--only", "("], "no regular expression"),
        (["--show", ROOT / "pyproject.toml"], "not a record"),
    ],
    ids=["no database", "set", "only", "expression", "record"],
)
def test_mistakes_are_told_in_a_sentence(arguments, words, capsys):
    assert run(*arguments) == 2
    [sentence] = capsys.readouterr().err.splitlines()
    assert sentence.startswith("error: ") and words in sentence


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_measured(tmp_path):
    done = script("bench-layers", "--db", tmp_path / "any.db", "--out", tmp_path / "record.json")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr == "error: torch sees no NVIDIA GPU: layers are compared with cuDNN on one\n"
    assert not (tmp_path / "record.json").exists()
