"""cuDNN's plans among a database's candidates, where there is no cuDNN; and which algorithms a layer can be given."""

import json

import pytest
import torch
from cudnn_records import CLASSIC, recorded
from torch import nn

from autotune.core import LibraryError, ProblemError, UnknownNameError, device_name, device_target
from autotune.cudnn_algorithms import Algorithm, ordered, pareto
from autotune.cudnn_algorithms import torch_layers as public
from autotune.cudnn_algorithms.benchmark import list_algorithms, passes
from autotune.cudnn_algorithms.selection import select_algorithm
from autotune.ir import Conv2dDgrad, Conv2dWgrad, parse
from autotune.libraries import cudnn
from autotune.libraries.cudnn import classic
from autotune.libraries.cudnn.graph import arguments, operand_numbers, vector_dtypes
from autotune.measure import Worker
from autotune.runtime import bind, candidate, shortlist
from autotune.runtime.engine import RefusedError
from autotune.runtime.selection import choices
from autotune.tuner import LibraryCandidates
from tuning_db import Store

CPU = torch.device("cpu")
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
TEXT = "conv2d n=2 h=5 w=4 c=6 k=8 r=3 s=3 pad=1 dtype=f32 epilogue=bias,relu"
CONFIG = {"plan": "eng4_k24=26", "bias": "f32", "workspace_bytes": 0, "made_by": "cuDNN 9.19.0, frontend 1.28.0"}


# -- candidates --------------------------------------------------------------------------------------------------------


def timed(store, problem, family, config, us, symbol="", data=None):
    """A kernel's row that was timed on this machine's CPU."""
    device = store.put_device(device_name(CPU), device_target(CPU), flops_per_us=1.0, bytes_per_us=1.0)
    identity = {"family": family, "config": json.dumps(config), "dtype": problem.dtype, "source": "test"}
    identity |= {"epilogue": str(problem.epilogue), "target": device.target}
    values = {"kind": cudnn.KIND, "target": device.target, "compiler": "", "flags": "", "cutlass": "", "abi_version": 0}
    library = store.put_library(data, **values) if data else None
    row = store.put_kernel(identity, symbol=symbol, library_id=library.id if library else None)
    of = {"device_id": device.id, "problem_id": store.put_problem(str(problem)).id, "kernel_id": row.id}
    store.put_measurement(**of, status="ok", median_us=us, spread_us=0.0)
    return device, row


def test_a_plan_that_cannot_be_used_here_gives_way_to_the_next_candidate(tmp_path):
    problem = parse(TEXT)
    with Store.create(tmp_path / "plans.db") as store:
        timed(store, problem, "aten", {"memory_format": "contiguous"}, 9.0)
        timed(store, problem, cudnn.FAMILY, CONFIG, 3.0, str(problem), b"a plan")
        first, second, *_ = choices(store, problem, CPU)
    assert str(first.candidate) == "cudnn eng4_k24=26 bias=f32" and not first.candidate.native
    tensors = {operand.name: torch.randn(operand.shape) for operand in problem.operands()}
    with pytest.raises(RefusedError, match="NVIDIA GPU"):
        bind(first.candidate, problem, tensors, (), CPU)
    bind(second.candidate, problem, tensors, (), CPU).run()
    expected = torch.relu(
        torch.nn.functional.conv2d(tensors["x"].permute(0, 3, 1, 2), tensors["weight"], tensors["bias0"], padding=1)
    )
    assert torch.allclose(tensors["y"].permute(0, 3, 1, 2), expected, atol=1e-4)


def test_a_plan_serves_the_problem_that_it_was_made_for_and_no_other(tmp_path):
    problem, larger = parse(TEXT), parse(TEXT.replace("n=2", "n=4"))
    with Store.create(tmp_path / "plans.db") as store:
        _, row = timed(store, problem, cudnn.FAMILY, CONFIG, 3.0, str(problem), b"a plan")
        plan = candidate(store, row, {})
        assert [choice.candidate.family for choice in choices(store, larger, CPU)] == ["aten"]
    tensors = {operand.name: torch.randn(operand.shape) for operand in larger.operands()}
    with pytest.raises(RefusedError, match=r"is for '.*n=2 .*not for '.*n=4 "):
        bind(plan, larger, tensors, (), CPU)


def test_plans_take_no_place_from_kernels(tmp_path):
    problem = parse(TEXT)
    with Store.create(tmp_path / "plans.db") as store:
        for i in range(8):
            timed(store, problem, cudnn.FAMILY, {**CONFIG, "plan": f"eng{i}"}, 1.0 + i, str(problem), b"%d" % i)
        device, _ = timed(store, problem, "aten", {"memory_format": "contiguous"}, 20.0)
        timed(store, problem, "aten", {"memory_format": "channels_last"}, 2.5)
        ranking = store.ranking(device, str(problem))
    kept = shortlist(ranking, 5, 3)
    assert [row.median_us for row in kept] == [1.0, 2.0, 2.5, 3.0, 20.0]
    assert [row.median_us for row in shortlist(ranking, 1, 0)] == [2.5]


def test_a_worker_without_cudnn_says_so_and_stores_nothing(tmp_path):
    with (
        Store.create(tmp_path / "plans.db") as store,
        LibraryCandidates(store, [Worker("cpu")], [parse(TEXT)], device_target(CPU)) as listing,
    ):
        [(_, rows, reason)] = listing.ready(wait=True)
        assert rows == [] and "GPU" in reason and "\n" not in reason and listing.is_done
        assert store.counts()["kernel"] == 0


def test_listing_that_is_given_up_ends_its_process(tmp_path):
    worker = Worker("cpu")
    with Store.create(tmp_path / "plans.db") as store:
        with LibraryCandidates(store, [worker], [parse(TEXT)], device_target(CPU)) as listing:
            assert list(listing.ready(wait=False)) == [] and not listing.is_done  # the process is still starting
        assert worker.pid is None


class Offering:
    """Stands in for the process with a GPU's cuDNN in it: offers two plans for each problem, the second broken."""

    def __init__(self):
        self.asked = []

    def library_plans(self, problem, deadline):
        self.asked.append(problem)
        configs = [{**CONFIG, "plan": f"eng{rank}", "rank": rank, "of": 2} for rank in range(2)]
        plans = (
            cudnn.SerializedPlan(configs[0], b"plan", None),
            cudnn.SerializedPlan(configs[1], b"", "cannot be built"),
        )
        return cudnn.SerializedPlans(CONFIG["made_by"], plans if problem else ())

    def stop(self):
        self.asked.append("stop")


def test_plans_are_listed_once(tmp_path):
    first, second = parse(TEXT), parse(TEXT.replace("n=2", "n=3"))
    with Store.create(tmp_path / "plans.db") as store:
        for problems, asked in (([first], [None, first]), ([first, second], [None, second]), ([second], [None])):
            worker = Offering()
            with LibraryCandidates(store, [worker], problems, "sm_90") as listing:
                listed = list(listing.ready(wait=True))
            assert worker.asked == [*asked, "stop"]
            assert [problem for problem, *_ in listed] == problems
            for problem, rows, reason in listed:
                assert reason is None and [row.error for row in rows] == [None, "cannot be built"]
                assert [bool(row.library) for row in rows] == [True, False]
                assert {row.symbol for row in rows} == {str(problem)}


@pytest.mark.parametrize("epilogue", ["none", "bias,scale,add,store,add_scalar,clamp,hardswish"])
@pytest.mark.parametrize("operator", ["conv2d", "conv2d_dgrad", "conv2d_wgrad"])
def test_a_graphs_tensors_follow_from_the_problem(operator, epilogue):
    problem = parse(f"{operator} n=2 h=7 w=5 c=8 k=12 r=3 s=3 pad=1 groups=2 dtype=f16 epilogue={epilogue}")
    tensors = {o.name: torch.randn(o.shape).half() for o in problem.operands()}
    scalars = tuple(torch.rand(problem.epilogue.scalars).tolist())
    plain, own = vector_dtypes(problem) if "bias" in epilogue else ("f16", "f16")
    assert own == ("f32" if "bias" in epilogue else "f16")
    given = arguments(problem, own, tensors, scalars)
    numbers = operand_numbers(problem)
    assert list(numbers.values()) == list(range(1, len(tensors) + 1))
    for name, number in numbers.items():
        assert torch.equal(given[number].to(tensors[name].dtype), tensors[name])
    if "weight" in tensors:
        assert given[numbers["weight"]].is_contiguous(memory_format=torch.channels_last)
    for name in {"bias0", "scale1"} & set(tensors):
        assert given[numbers[name]].dtype == torch.float32
        assert arguments(problem, plain, tensors, scalars)[numbers[name]].dtype == torch.float16
    others = {number: float(tensor) for number, tensor in given.items() if number not in numbers.values()}
    expected = {101 + i: value for i, value in enumerate(scalars)}
    assert others == pytest.approx(expected | ({201: 3.0, 202: 1 / 6} if "hardswish" in epilogue else {}))


# -- which algorithm ---------------------------------------------------------------------------------------------------


def test_recorded_plans_are_ordered_and_chosen_by_time_workspace_and_engine():
    plans = list(recorded())
    timed = [plan for plan in plans if plan.us]
    assert len(timed) > 40
    fastest = min(timed, key=lambda plan: plan.us)
    assert select_algorithm(plans, "forward") == fastest == ordered(plans, "time")[0]
    assert [a.usable for a in ordered(plans, "time")] == sorted((a.usable for a in plans), reverse=True)
    of_41 = [plan for plan in timed if plan.name == "engine 41"]
    assert select_algorithm(plans, "forward", "eng41") == min(of_41, key=lambda plan: plan.us)
    exact = next(plan for plan in timed if plan.key == "eng4")  # is also the name of an engine with many plans
    assert sum(plan.name == "engine 4" for plan in timed) > 1 and select_algorithm(plans, "forward", "eng4") == exact
    small = [plan for plan in timed if plan.workspace_bytes <= 131]
    assert select_algorithm(plans, "forward", workspace_limit=131) == min(small, key=lambda plan: plan.us)
    assert select_algorithm(plans, "forward", "eng41", prefer="workspace").workspace_bytes == 0


def test_the_front_of_recorded_plans_is_beaten_by_none():
    plans = [plan for plan in recorded() if plan.us]
    front = pareto([*plans, Algorithm("forward", "engine", "eng99", "engine 99", 0, us=None)], "workspace")
    for point in front:
        better = [p for p in plans if p.us <= point.us and p.workspace_bytes <= point.workspace_bytes]
        assert all((p.us, p.workspace_bytes) == (point.us, point.workspace_bytes) for p in better)
    assert {p.us for p in pareto(CLASSIC[:4], "workspace")} == {11.0, 12.0, 30.0}
    assert [p.us for p in pareto(CLASSIC[:4], "energy")] == [11.0, 12.0]


def test_records_of_algorithms_are_read_back():
    plans = [*recorded(), *CLASSIC]
    assert [Algorithm(**values) for values in json.loads(json.dumps([p.as_json() for p in plans]))] == plans


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"key": "4"}, ["algorithm 4", "NOT_SUPPORTED", "0 IMPLICIT_GEMM, 1 IMPLICIT_PRECOMP_GEMM"]),
        ({"key": "eng9"}, ["eng9", "7 WINOGRAD_NONFUSED are supported"]),
        ({"key": "7", "deterministic": True}, ["7 WINOGRAD_NONFUSED is not known to be deterministic", "0 IMPLICIT"]),
        ({"key": "1", "workspace_limit": 100}, ["4.0 KiB", "more than 100 B", "0 IMPLICIT_GEMM fit"]),
        ({"key": "1", "workspace_limit": -1}, ["none fits; the least workspace is 0 B, of 0 IMPLICIT_GEMM"]),
    ],
)
def test_an_unsupported_choice_lists_what_is_supported(asked, words):
    with pytest.raises(LibraryError) as raised:
        select_algorithm(CLASSIC, "forward", **asked)
    text = str(raised.value)
    assert "\n" not in text and "4 FFT" not in text
    assert all(word in text for word in words), text


def test_demands_and_preferences_decide_where_nothing_is_named():
    assert select_algorithm(CLASSIC, "forward").key == "7"
    assert select_algorithm(CLASSIC, "forward", deterministic=True).key == "1"
    assert select_algorithm(CLASSIC, "forward", prefer="energy").key == "1"
    assert select_algorithm(CLASSIC, "forward", prefer="workspace").key == "0"
    assert select_algorithm(CLASSIC, "forward", workspace_limit=10).key == "0"
    assert select_algorithm(CLASSIC, "backward-data", prefer="energy").key == "1"
    with pytest.raises(LibraryError, match=r"no algorithm.*none are"):
        select_algorithm(CLASSIC, "backward-filter")


# -- for torch's layers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"conv_fwd_algo": 8}, ["forward algorithm 8", "0 IMPLICIT_GEMM", "7 WINOGRAD_NONFUSED"]),
        ({"conv_bwd_data_algo": 6}, ["backward-data algorithm 6", "5 WINOGRAD_NONFUSED"]),
        ({"conv_bwd_filter_algo": -1}, ["backward-filter algorithm -1", "6 FFT_TILING"]),
        ({"conv_fwd_algo": "IMPLICIT_GEMM"}, ["forward algorithm 'IMPLICIT_GEMM'", "0 IMPLICIT_GEMM", "'eng41'"]),
        ({"conv_fwd_algo": "8"}, ["forward algorithm '8'", "7 WINOGRAD_NONFUSED"]),
        ({"conv_fwd_algo": True}, ["forward algorithm True", "0 IMPLICIT_GEMM"]),
        ({"prefer": "luck"}, ["luck", "time, workspace, energy"]),
        ({"conv_fwd_algo": 1, "workspace_limit": -5}, ["-5"]),
        ({}, ["no pass has a requirement"]),
    ],
)
def test_a_choice_that_no_layer_could_have_is_refused_at_once(choice, words):
    with pytest.raises((LibraryError, UnknownNameError)) as raised, public.use(nn.Conv2d(3, 4, 3), **choice):
        pass
    assert all(word in str(raised.value) for word in words) and "\n" not in str(raised.value)


def model():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.ReLU(), nn.Conv2d(4, 5, 3, padding=1)), nn.Flatten())


def test_layers_are_found_by_pattern():
    assert list(public.convolutions(model())) == ["0", "1.1"]
    assert list(public.convolutions(model(), "1.*")) == ["1.1"]
    assert list(public.convolutions(nn.Conv2d(1, 1, 1))) == [""]
    with pytest.raises(UnknownNameError, match=r"no convolution is called 'layer9\.\*': there are 0, 1\.1"):
        public.convolutions(model(), "layer9.*")
    with pytest.raises(UnknownNameError, match=r"no nn\.Conv2d"):
        public.convolutions(nn.Sequential(nn.ReLU()))


@without_gpu
def test_without_a_gpu_nothing_is_chosen_and_the_model_is_as_before():
    network = model()
    x = torch.randn(2, 3, 8, 8)
    before = network(x)
    with pytest.raises(LibraryError, match="NVIDIA GPU"), public.use(network, conv_fwd_algo=1):
        pass
    with pytest.raises(LibraryError, match="NVIDIA GPU"):
        public.wrap(network, conv_fwd_algo=1)
    assert type(network[0]) is nn.Conv2d and "forward" not in vars(network[0])
    assert torch.equal(network(x), before)
    with pytest.raises(LibraryError, match="the input is on cpu"):
        public.Conv2d.from_module(network[0], conv_fwd_algo=1)(x)
    if not torch.backends.cudnn.is_available():
        with pytest.raises(LibraryError, match="torch has no cuDNN here"):
            classic.load()
    with pytest.raises(LibraryError, match="NVIDIA GPU"):
        list_algorithms(parse("conv2d n=1 h=4 w=4 c=8 k=8 dtype=f16"), CPU)


def test_a_layer_that_takes_anothers_place_shares_its_parameters():
    layer = nn.Conv2d(4, 6, (3, 1), stride=2, padding="valid", dilation=2, groups=2, bias=False).eval()
    made = public.Conv2d.from_module(layer, deterministic=True)
    assert made.weight is layer.weight and made.bias is None and not made.training
    assert list(made.state_dict()) == list(layer.state_dict())
    same = ("stride", "padding", "dilation", "groups", "kernel_size", "padding_mode")
    assert [getattr(made, name) for name in same] == [getattr(layer, name) for name in same]
    assert made.requirements.deterministic and made.requirements.any_pass


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "padding": "same"},
        {"kernel_size": (4, 3), "padding": "same", "dilation": (1, 2)},
        {"kernel_size": 5, "padding": (1, 2), "stride": (2, 1), "groups": 2},
        {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
        {"kernel_size": (2, 3), "padding": "valid", "dilation": 2},
    ],
)
def test_a_layers_problem_is_what_torch_computes(options):
    layer, x = nn.Conv2d(4, 6, **options, bias=False), torch.randn(3, 4, 11, 13)
    problem = public.problem(layer, x)
    padded, pad = public._padded(layer, x)
    assert problem.pad == pad and (problem.h, problem.w) == padded.shape[2:]
    y = torch.nn.functional.conv2d(padded, layer.weight, None, layer.stride, pad, layer.dilation, layer.groups)
    assert torch.equal(y, layer(x))
    assert (problem.n, problem.k, problem.p, problem.q) == y.shape


def test_the_passes_of_a_convolution():
    problem = parse("conv2d_wgrad n=2 h=9 w=8 c=4 k=6 r=3 s=3 stride=2 pad=1 dtype=bf16 epilogue=mul_scalar")
    found = passes(problem)
    assert list(found) == ["forward", "backward-data", "backward-filter"]
    assert [type(p) for p in found.values()][1:] == [Conv2dDgrad, Conv2dWgrad]
    assert {str(p).split(" ", 1)[1] for p in found.values()} == {
        "n=2 h=9 w=8 c=4 k=6 r=3 s=3 stride=2,2 pad=1,1 dilation=1,1 groups=1 dtype=bf16 epilogue=none"
    }
    with pytest.raises(ProblemError, match="convolutions"):
        passes(parse("gemm m=1 n=2 k=3 dtype=f16"))
