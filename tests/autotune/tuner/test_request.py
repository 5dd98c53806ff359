"""The device, objectives and limits of a tuning run, and the layers that a database lacks."""

from dataclasses import replace

import pytest
import torch
from databases import put_cpu, put_time, put_torch_kernel
from two_layer_network import torch_relu

from autotune.core import NEVER, DeviceKind, architecture, cpu_targets, device_name
from autotune.ir import WHOLE, Alternative, CallerTensor, Layer, Network, NetworkKey, parse
from autotune.measure import Timing
from autotune.runtime import conversions
from autotune.tuner import Searched, TuningTarget, missing, refuse_other_timing
from autotune.tuner.request import objective_values
from autotune.tuner.trials.device_queues import WantedTrial, record_unfinished
from tuning_db import DatabaseError, Store

CONV = "conv2d n=1 h=6 w=6 c=8 k={k} r=3 s=3 stride=1,1 pad=1,1 dilation=1,1 groups=1 dtype=f32 epilogue=relu"


@pytest.fixture
def network():
    layers = tuple(
        Layer(name, parse(CONV.format(k=k)), {"x": "input", "y": f"%{name}"}) for name, k in (("a", 8), ("b", 16))
    )
    image = CallerTensor((1, 8, 6, 6), "f32")
    return Network(NetworkKey("Net", 1), layers, (image,), (CallerTensor((1, 16, 6, 6), "f32"),))


def measured(store, problem, final, status="ok", family="aten", **details):
    device = put_cpu(store, cpu_targets()[0])
    kernel = put_torch_kernel(store, "{}", family=family, epilogue="relu", target="t", source="s")
    us = 1.0 if status == "ok" else None
    put_time(
        store, device, problem, kernel, us, launch={}, status=status, samples_us=[1.0], final=final, details=details
    )


def test_a_layer_is_missing_until_its_finalists_were_timed(network, tmp_path):
    target = TuningTarget.of_device(torch.device("cpu"))
    with Store.create(tmp_path / "x.db") as store:
        assert missing(store, target, network, Searched()).problems == [layer.problem for layer in network.layers]
        measured(store, network.layers[0].problem, final=True)
        measured(store, network.layers[1].problem, final=False)
        request = missing(store, target, network, Searched())
        assert request.named == [("b", network.layers[1].problem)] and request.network is network
        measured(store, network.layers[1].problem, final=True)
        assert missing(store, target, network, Searched()) is None


def test_a_limited_search_leaves_a_layer_missing_for_a_wider_one(network, tmp_path):
    target = TuningTarget.of_device(torch.device("cpu"))
    with Store.create(tmp_path / "x.db") as store:
        for layer in network.layers:
            measured(store, layer.problem, final=True, only=["cpu_conv2d"], trials=8)
        assert missing(store, target, network, Searched(only=("cpu_conv2d",), trials=4)) is None
        for wider in (Searched(), Searched(("cpu_conv2d", "cpu_dense"), 4), Searched(("cpu_conv2d",), 16)):
            assert missing(store, target, network, wider).named
        for layer in network.layers:
            measured(store, layer.problem, final=True)
        assert missing(store, target, network, Searched(trials=1000)) is None


CALL = torch_relu((1, 8, 6, 6), (1, 16, 6, 6))


@pytest.fixture
def with_torch(network):
    """The network with torch's operators for all of it as an alternative."""
    whole = Alternative(WHOLE, ("a", "b"), (Layer("whole", CALL, {"x": "input", "y": "%b"}),))
    return replace(network, alternatives=(whole,))


def put_plan(store, network, torch_us):
    """Add a plan of a network whose layers were all timed; return the device."""
    for layer in network.layers:
        measured(store, layer.problem, final=True)
    [device] = store.devices()
    values = {"median_us": 1.0, "spread_us": 0.0, "choices": [], "details": {"torch_us": torch_us}}
    store.put_plan(device_id=device.id, network=network.key, **values)
    return device


@pytest.mark.parametrize(
    ("tried", "torch_us", "seconds", "is_missing"),
    [
        (None, {}, 60.0, True),
        (None, {"aten memory_format=channels_last": 3.0}, 60.0, True),
        (None, {"inductor mode=default": 3.0}, 60.0, False),
        ({"status": "crashed"}, {}, 60.0, False),
        ({"status": "timed_out", "run_seconds": 60.0}, {}, 60.0, False),
        ({"status": "timed_out", "run_seconds": 60.0}, {}, 300.0, True),
    ],
)
def test_a_plan_is_missing_until_it_was_compared_with_inductor(
    with_torch, tmp_path, tried, torch_us, seconds, is_missing
):
    target, compiles = TuningTarget.of_device(torch.device("cpu")), Searched(seconds=seconds, compiles=True)
    with Store.create(tmp_path / "x.db") as store:
        for layer in with_torch.layers:
            measured(store, layer.problem, final=True)
        assert missing(store, target, with_torch, Searched()).problems == [CALL], "it has no plan"
        put_plan(store, with_torch, torch_us)
        if tried:
            measured(store, CALL, final=False, family="inductor", **tried)
        assert missing(store, target, with_torch, Searched()) is None, "Inductor is switched off"
        request = missing(store, target, with_torch, compiles)
        assert (request is not None) == is_missing
        if request:
            assert request.problems == [CALL]


def test_a_trial_that_a_run_without_a_deadline_left_is_no_reason_to_compile_again(with_torch, tmp_path):
    target, compiles = TuningTarget.of_device(torch.device("cpu")), Searched(seconds=60.0, compiles=True)
    with Store.create(tmp_path / "x.db") as store:
        device = put_plan(store, with_torch, {})
        identity = {"family": "inductor", "config": "{}", "dtype": "f32", "epilogue": "none", "target": "t"}
        row = store.put_kernel({**identity, "source": ""}, symbol="")
        assert missing(store, target, with_torch, compiles) is not None
        record_unfinished(store, device, WantedTrial(CALL, row), NEVER)
        assert missing(store, target, with_torch, compiles) is None


def test_times_of_another_timer_are_refused(network, tmp_path):
    problem = network.layers[0].problem
    with Store.create(tmp_path / "x.db") as store:
        measured(store, problem, final=True)
        refuse_other_timing(store, device_name(torch.device("cpu")), [problem], Timing())
        with pytest.raises(DatabaseError, match="--buffers resident"):
            refuse_other_timing(store, device_name(torch.device("cpu")), [problem], Timing(buffers="rotating"))


def test_the_target_of_this_machine():
    cpu = TuningTarget.of(architecture("cpu"), None)
    assert (cpu.device, cpu.target, cpu.trials, cpu.budget) == ("cpu", cpu_targets()[0], 32, 90.0)
    absent = TuningTarget.of(architecture("sm90"), None)
    assert (absent.device, absent.target, absent.budget) == (None, "sm_90", 360.0) and absent.trials < 32
    older = TuningTarget.of(architecture("sm90"), DeviceKind("an A100", 80, 108))
    assert older.device is None and older.name is None
    newer = TuningTarget.of(architecture("sm80"), DeviceKind("a GPU elsewhere", 90, 132), "cuda:3")
    assert (newer.device, newer.target, newer.name) == ("cuda:3", "sm_90", "a GPU elsewhere")
    assert newer.arch.processors == 132


PROBLEM = parse("gemm m=256 n=128 k=64 dtype=f16")
OPERANDS = 2 * (256 * 64 + 128 * 64 + 256 * 128)  # bytes of x, weight and y


def test_time_is_the_median():
    assert objective_values(("time",), PROBLEM, 12.5, {}) == (12.5,)


def test_memory_counts_operands_and_workspace():
    found = objective_values(("time-workspace",), PROBLEM, 2.0, {"workspace_bytes": 1000})
    assert found == pytest.approx((2.0 * (OPERANDS + 1000) / 2**20,))
    [without] = objective_values(("time-workspace",), PROBLEM, 2.0, {"workspace_bytes": 0})
    assert without > 0, "no workspace is no free lunch"


def test_several_objectives_are_several_values():
    details = {"energy_uj": 30.0, "workspace_bytes": 0}
    assert objective_values(("time", "energy"), PROBLEM, 2.0, details) == (2.0, 30.0)


@pytest.mark.parametrize("names", [("energy",), ("time-workspace",), ("time", "energy")])
def test_what_was_not_measured_has_no_value(names):
    assert objective_values(names, PROBLEM, 2.0, {}) is None
    assert objective_values(names, PROBLEM, None, {"energy_uj": 1.0, "workspace_bytes": 1}) is None


def test_what_converts_results_is_missing_like_a_layer(network, tmp_path):
    target = TuningTarget.of_device(torch.device("cpu"))
    (converting,) = conversions(network, [0]).values()
    with Store.create(tmp_path / "x.db") as store:
        for layer in network.layers:
            measured(store, layer.problem, final=True)
        assert missing(store, target, network, Searched()) is None
        request = missing(store, target, network, Searched(), [converting])
        assert request.named == [(converting.name, converting.problem)]
        measured(store, converting.problem, final=True)
        assert missing(store, target, network, Searched(), [converting]) is None
