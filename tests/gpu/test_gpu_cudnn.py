"""cuDNN on the device: plans built, right, capturable, restored, tuned; classic algorithms chosen and really run."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from comparison import LIMIT, relative_error
from kernels import tried
from processes import process
from reference import solve

from autotune.core import LibraryError, device_target
from autotune.cudnn_algorithms import torch_layers as public
from autotune.ir import parse
from autotune.libraries import cudnn
from autotune.libraries.cudnn.graph import arguments
from autotune.measure import CandidateBench, Worker, sampler
from autotune.runtime import candidate
from autotune.runtime.engine import RefusedError
from autotune.tuner import LibraryCandidates
from tuning_db import Store

pytestmark = pytest.mark.gpu

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
    except LibraryError as error:
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
    case = CandidateBench(problem, device, seed=2)
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
        case.fill_nan()
        assert 0 < sample() < 1e5
        torch.cuda.synchronize()
        assert case.check()[1] is None, f"{plan} is wrong in a graph"


BYTES = [
    "conv2d n=4 h=14 w=14 c=64 k=64 r=3 s=3 pad=1 dtype={} epilogue=scale,bias,relu",
    "conv2d n=3 h=9 w=13 c=64 k=96 r=1 s=1 stride=2 dtype={} epilogue=scale,bias",
    "conv2d n=2 h=8 w=8 c=32 k=64 r=1 s=1 dtype={} epilogue=scale,bias,add,mul_scalar,relu",
]


@pytest.mark.parametrize("dtype", ["s8", "e4m3"])
@pytest.mark.parametrize("text", BYTES)
def test_plans_are_right_in_bytes(text, dtype, device):
    problem = parse(text.format(dtype))
    found = cudnn.find_plans(problem, device)
    assert found.reason is None and found.plans
    case = CandidateBench(problem, device, seed=2)
    built = [plan for plan in found.plans if plan.error is None]
    said = [case.verify(found.bind(plan, case.tensors, case.scalars))[1] for plan in built]
    assert None in said, said


PASSES = [
    "conv2d_dgrad n=4 h=14 w=14 c=64 k=32 r=3 s=3 stride=2 pad=1 dtype={} epilogue=none",
    "conv2d_dgrad n=3 h=9 w=8 c=32 k=64 r=3 s=3 pad=1 dtype={} epilogue=bias,relu",
    "conv2d_wgrad n=4 h=14 w=14 c=64 k=32 r=3 s=3 pad=1 dtype={} epilogue=none",
    "conv2d_wgrad n=5 h=9 w=7 c=32 k=64 r=1 s=1 stride=2 dtype={} epilogue=none",
]
CHAINS = [
    *("bias,silu", "bias,gelu", "bias,gelu_tanh", "bias,sigmoid", "bias,tanh", "bias,relu6", "bias,hardswish"),
    *("bias,hardsigmoid", "scale,bias,relu", "mul_scalar,add_scalar", "add_scalar,relu,add_scalar", "bias,clamp"),
    *("bias,silu,add", "relu,store,add_scalar"),
]


@pytest.mark.parametrize("text", PASSES)
def test_gradients_have_plans_that_are_right(text, device):
    _some_are_right(parse(text.format("f16")), device)


@pytest.mark.parametrize("chain", CHAINS)
def test_chains_have_plans_that_are_right(chain, device):
    _some_are_right(parse(f"conv2d n=4 h=14 w=14 c=64 k=64 r=3 s=3 pad=1 dtype=f16 epilogue={chain}"), device)


def _some_are_right(problem, device):
    found = cudnn.find_plans(problem, device)
    assert found.plans, found.reason
    case = CandidateBench(problem, device, seed=3)
    failed = {}
    for plan in found.plans:
        if plan.error is None:
            complaint = case.verify(found.bind(plan, case.tensors, case.scalars))[1]
            if complaint is None:
                return
            failed[str(plan)] = complaint
    pytest.fail(f"no plan is right: {failed or [plan.error for plan in found.plans]}")


def test_numeric_notes_are_told_apart(device):
    plans = cudnn.find_plans(parse(TEXTS[3].format("f16").replace("groups=4 ", "")), device).plans
    notes = {note for plan in plans for note in plan.numeric or ()}
    assert "TENSOR_CORE" in notes
    assert not all("TENSOR_CORE" in plan.numeric for plan in plans) or len(notes) > 1
    weight = parse("conv2d_wgrad n=32 h=28 w=28 c=128 k=128 r=3 s=3 pad=1 dtype=f16")
    determined = {plan.deterministic for plan in cudnn.find_plans(weight, device).plans}
    assert determined <= {True, False} and True in determined


def test_plans_are_tuned_stored_and_run_by_the_plan(device, tmp_path):
    """From the worker into the database, out of it into a step, also captured, and refused by another cuDNN."""
    problem = parse(TEXTS[1].format("f16"))
    target = device_target(device)
    with Store.create(tmp_path / "plans.db") as store, Worker(str(device)) as worker:
        with LibraryCandidates(store, [Worker(str(device))], [problem], target) as listing:
            [(_, rows, reason)] = listing.ready(wait=True)
        assert reason is None and len(rows) > 5
        with LibraryCandidates(store, [Worker(str(device))], [problem], target) as listing:
            [(_, again, _)] = listing.ready(wait=True)
        assert [row.id for row in again] == [row.id for row in rows]
        usable = [row for row in rows if row.library]
        candidates = [candidate(store, row, {}) for row in usable]
        results = tried(worker, problem, candidates)
        config = json.loads(usable[0].config)
    assert sum(result.status == "ok" for result in results) >= 2, results
    assert config["engine"] is not None and config["made_by"].startswith("cuDNN 9.") and config["of"] == len(rows)
    case = CandidateBench(problem, device, seed=5)
    chosen = next(c for c, result in zip(candidates, results, strict=True) if result.status == "ok")
    step = case.bind(chosen)
    assert case.verify(step)[1] is None
    sample = sampler(step, device)
    case.fill_nan()
    assert 0 < sample() < 1e5
    torch.cuda.synchronize()
    assert case.check()[1] is None
    other = replace(chosen, config=chosen.config.replace(config["made_by"], "cuDNN 9.1.0, frontend 1.28.0"))
    with pytest.raises(RefusedError, match=r"9\.1\.0"):
        case.bind(other)


# -- classic algorithms ------------------------------------------------------------------------------------------------

SIZES = {"n": 8, "c": 64, "h": 28, "w": 28, "k": 64, "r": 3}


def convolution(dtype, last):
    form = torch.channels_last if last else torch.contiguous_format
    torch.manual_seed(1)
    layer = torch.nn.Conv2d(SIZES["c"], SIZES["k"], SIZES["r"], padding=1).cuda().to(dtype).to(memory_format=form)
    x = torch.randn(SIZES["n"], SIZES["c"], SIZES["h"], SIZES["w"], device="cuda", dtype=dtype)
    return layer, x.to(memory_format=form).requires_grad_()


def gradients(layer, x):
    """The output and all gradients, of one fixed gradient of the output."""
    y = layer(x)
    torch.manual_seed(2)
    dy = torch.randn(y.shape, device="cuda").to(y.dtype).contiguous()
    given = torch.autograd.grad(y, (x, layer.weight, layer.bias), dy)
    return [tensor.detach().float() for tensor in (y, *given)]


def precise(layer, x):
    wide = copy.deepcopy(layer).double()
    return gradients(wide, x.detach().double().requires_grad_())


def kernels(work):
    work()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    return tuple(sorted({event.key for event in profile.key_averages() if event.device_type.name == "CUDA"}))


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["f32", "f16"])
def test_every_classic_algorithm_that_is_supported_really_runs(dtype, last):
    layer, x = convolution(dtype, last)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        expected = precise(layer, x)
        offered = public.supported(layer, x, kinds=("classic",))
        fields = {
            "forward": "conv_fwd_algo",
            "backward-data": "conv_bwd_data_algo",
            "backward-filter": "conv_bwd_filter_algo",
        }
        ran = {direction: {} for direction in fields}
        for algorithm in offered:
            ask = {fields[algorithm.direction]: int(algorithm.key)}
            if not algorithm.usable:
                with pytest.raises(LibraryError, match=r"are supported|none are"), public.use(layer, **ask):
                    gradients(layer, x)
                continue
            with public.use(layer, **ask) as names:
                assert names == [""]
                found = gradients(layer, x)
                ran[algorithm.direction][algorithm.key] = kernels(lambda: gradients(layer, x))
            for actual, wanted in zip(found, expected, strict=True):
                # winograd and fft in half precision lose more than a sum does
                assert relative_error(actual, wanted) < (2e-2 if dtype == torch.float16 else 2e-4), algorithm
    assert len(ran["forward"]) >= 2 and len(ran["backward-filter"]) >= 2, ran
    for direction, kernels_of in ran.items():
        assert len(set(kernels_of.values())) >= min(2, len(kernels_of)), (direction, kernels_of)
    print({direction: {key: len(names) for key, names in of.items()} for direction, of in ran.items()})


def test_a_model_is_wrapped_captured_and_trained():
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, padding="same", bias=False)
    ).cuda()
    network = network.half().to(memory_format=torch.channels_last)
    x = torch.randn(4, 16, 14, 14, device="cuda").half().to(memory_format=torch.channels_last)
    expected = network(x).detach()
    wrapped = public.wrap(network, deterministic=True, workspace_limit=32 << 20)
    assert type(wrapped[0]) is public.Conv2d
    wrapped(x).sum().backward()
    assert wrapped[0].weight.grad is not None
    assert relative_error(wrapped(x).detach().float(), expected.float()) < 5e-3
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        wrapped(x)
        with torch.cuda.graph(graph):
            y = wrapped(x)
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert relative_error(y.float(), expected.float()) < 5e-3


@pytest.mark.parametrize("prefer", ["time", "energy", "workspace"])
def test_what_is_preferred_is_measured_and_taken(prefer, device):
    layer, x = convolution(torch.float16, True)
    with public.use(layer, prefer=prefer):
        y = layer(x)
    assert relative_error(y.detach().float(), precise(layer, x)[0]) < 2e-2


def test_an_engine_is_chosen_by_name(device):
    layer, x = convolution(torch.float16, True)
    offered = [a for a in public.supported(layer, x, kinds=("engine",)) if a.direction == "forward" and a.usable]
    with public.use(layer, conv_fwd_algo=offered[0].key):
        y = layer(x)
    assert relative_error(y.detach().float(), precise(layer, x)[0]) < 5e-3
    with pytest.raises(LibraryError, match="eng9999"), public.use(layer, conv_fwd_algo="eng9999"):
        layer(x)
    with pytest.raises(LibraryError, match="channels-last"), public.use(layer, conv_fwd_algo="eng0"):
        layer.to(memory_format=torch.contiguous_format)(x.detach().contiguous())


def test_the_script_lists_all_passes(tmp_path):
    record = tmp_path / "record.json"
    problem = "conv2d n=8 h=28 w=28 c=64 k=64 r=3 s=3 pad=1 dtype=f16"
    done = process("algorithms", "--problem", problem, "--out", record, "--energy", "--chart", tmp_path / "p.png")
    assert done.returncode == 0, done.stderr
    (layer,) = json.loads(record.read_text())["layers"]
    seen = {(a["direction"], a["kind"]) for a in layer["algorithms"] if a["status"] == "ok"}
    assert {direction for direction, _ in seen} == {"forward", "backward-data", "backward-filter"}
    assert ("forward", "classic") in seen
    assert any(a["energy_uj"] and a["energy_uj"] > 0 for a in layer["algorithms"])


def test_a_plan_runs_from_its_own_form(device):
    problem = parse(TEXTS[0].format("f16"))
    found = cudnn.find_plans(problem, device)
    plan = next(plan for plan in found.plans if plan.error is None)
    data = found.serialized(plan)
    assert len(data) > 100
    library = cudnn.library(device)
    restored = library.cudnn.pygraph(handle=library.handle)
    restored.deserialize(library.handle, list(data))
    case = CandidateBench(problem, device)
    pack = arguments(problem, plan.bias, case.tensors, case.scalars)
    workspace = torch.empty(max(1, plan.workspace_bytes), dtype=torch.uint8, device=device)
    case.fill_nan()
    restored.execute(pack, workspace, handle=library.handle)
    torch.cuda.synchronize()
    assert case.check()[1] is None


def test_what_cudnn_does_not_support_is_a_sentence(device):
    found = cudnn.find_plans(parse("conv2d n=1 h=4 w=4 c=8 k=8 dtype=f16 epilogue=leaky_relu"), device)
    assert not found.plans and "leaky_relu" in found.reason


def test_layers_are_compared(device, tmp_path):
    Store.create(tmp_path / "empty.db").close()
    layers = tmp_path / "small.txt"
    layers.write_text("\n".join(text.format("f16") for text in TEXTS[:2]))
    place = tmp_path / "record.json"
    done = process("bench-layers", "--layers", layers, "--db", tmp_path / "empty.db", "--out", place)
    assert done.returncode == 0, done.stderr
    assert "without our best kernel" in done.stdout and "autotune tune --problems" in done.stdout
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
