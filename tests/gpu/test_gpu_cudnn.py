"""cuDNN's plans on the device: built, right, capturable, restored from their own form; layers compared with them."""

import json

import pytest
import torch
from helpers import relative_error, script, solve

from autotune.errors import VendorError
from autotune.measure import Case
from autotune.problem import parse
from autotune.timing import sampler
from autotune.vendor import cudnn
from tuning_db import Store

pytestmark = pytest.mark.gpu

LIMIT = {"f16": 1e-3, "bf16": 8e-3}
TEXTS = [
    "conv2d n=4 h=14 w=14 c=64 k=64 r=3 s=3 pad=1 dtype={} epilogue=bias,relu",
    "conv2d n=3 h=13 w=9 c=24 k=40 r=3 s=3 stride=2,1 pad=1 dtype={} epilogue=bias,add,relu",
    "conv2d n=2 h=9 w=9 c=32 k=64 r=3 s=3 pad=2 dilation=2 dtype={} epilogue=add,relu",
    "conv2d n=5 h=7 w=7 c=64 k=64 r=3 s=3 pad=1 groups=4 dtype={} epilogue=none",
    "conv2d n=16 h=1 w=1 c=128 k=72 dtype={} epilogue=bias",
]


@pytest.fixture(scope="module")
def device():
    chosen = torch.device("cuda:0")
    try:
        cudnn.versions(chosen)
    except VendorError as error:
        pytest.skip(str(error))
    return chosen


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("text", TEXTS)
def test_plans_are_right_also_when_captured(text, dtype, device):
    problem = parse(text.format(dtype))
    found = cudnn.find_plans(problem, device)
    assert found.reason is None and found.plans
    assert found.plans[0].index == 0
    assert len({str(plan) for plan in found.plans}) == len(found.plans)
    case = Case(problem, device, seed=2)
    expected = solve(problem, case.tensors, case.scalars)["y"]
    right = []
    for plan in found.plans:
        assert plan.engine is not None, f"{plan}: {plan.error}"
        if plan.error is None and case.verify(found.bind(plan, case.tensors))[1] is None:
            assert relative_error(case.tensors["y"], expected) < LIMIT[dtype]
            right.append(plan)
    assert len(right) >= 2, [f"{plan}: {plan.error}" for plan in found.plans]
    for plan in right[:3]:
        sample = sampler(found.bind(plan, case.tensors), device)
        case.poison()
        assert 0 < sample() < 1e5
        torch.cuda.synchronize()
        assert case.check()[1] is None, f"{plan} is wrong in a graph"


def test_a_plan_runs_from_its_own_form(device):
    problem = parse(TEXTS[0].format("f16"))
    found = cudnn.find_plans(problem, device)
    plan = next(plan for plan in found.plans if plan.error is None)
    data = found.serialized(plan)
    assert len(data) > 100
    library = cudnn._library(device)
    restored = library.cudnn.pygraph(handle=library.handle)
    restored.deserialize(library.handle, list(data))
    case = Case(problem, device)
    graph = found.graphs[plan.bias]
    pack = {key.get_uid(): tensor for key, tensor in graph.pack(case.tensors).items()}
    workspace = torch.empty(max(1, plan.workspace_bytes), dtype=torch.uint8, device=device)
    case.poison()
    restored.execute(pack, workspace, handle=library.handle)
    torch.cuda.synchronize()
    assert case.check()[1] is None


def test_what_cudnn_does_not_support_is_a_sentence(device):
    found = cudnn.find_plans(parse("conv2d n=1 h=4 w=4 c=8 k=8 dtype=f16 epilogue=silu"), device)
    assert not found.plans and "silu" in found.reason


def test_layers_are_compared(device, tmp_path):
    Store.create(tmp_path / "empty.db").close()
    layers = tmp_path / "small.txt"
    layers.write_text("\n".join(text.format("f16") for text in TEXTS[:2]))
    place = tmp_path / "record.json"
    done = script("bench_layers", "--layers", layers, "--db", tmp_path / "empty.db", "--json", place)
    assert done.returncode == 0, done.stderr
    assert "without our best kernel" in done.stdout and "tune.py --problems" in done.stdout
    record = json.loads(place.read_text())
    assert record["cudnn"]["cudnn"].startswith("9.") and record["machine"]["gpu"]
    for layer in record["layers"]:
        assert set(layer["sides"]) == {"cudnn", "first", "torch"}, layer["missing"]
        assert layer["sides"]["cudnn"]["us"]["median"] <= 1.1 * layer["sides"]["first"]["us"]["median"]
        assert all(side["relative_error"] < LIMIT["f16"] for side in layer["sides"].values())
        assert sum(trial["side"] == "cudnn" for trial in layer["trials"]) > 5
        assert layer["state"]["after"]["sm_mhz"] > 0
        fused = [trial for trial in layer["trials"] if trial["label"].startswith("cudnn_convolution")]
        assert [trial["status"] for trial in fused] == ["ok"], fused
