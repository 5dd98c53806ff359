"""The device and the limits of a tuning run, and the layers that a database lacks."""

import pytest
import torch

from autotune.core import DeviceKind, architecture, cpu_targets, device_name
from autotune.ir import CallerTensor, Layer, Network, NetworkKey, parse
from autotune.measure import Timing
from autotune.tuner import Bench, missing, refuse_other_timing
from tuning_db import DatabaseError, Store

CONV = "conv2d n=1 h=6 w=6 c=8 k={k} r=3 s=3 stride=1,1 pad=1,1 dilation=1,1 groups=1 dtype=f32 epilogue=relu"


@pytest.fixture
def network():
    layers = tuple(
        Layer(name, parse(CONV.format(k=k)), {"x": "input", "y": f"%{name}"}) for name, k in (("a", 8), ("b", 16))
    )
    image = CallerTensor((1, 8, 6, 6), "f32")
    return Network(NetworkKey("Net", 1), layers, (image,), (CallerTensor((1, 16, 6, 6), "f32"),))


def measured(store, problem, final):
    device = store.put_device(device_name(torch.device("cpu")), cpu_targets()[0], flops_per_us=1.0, bytes_per_us=1.0)
    identity = {"family": "aten", "config": "{}", "dtype": "f32", "epilogue": "relu", "target": "t", "source": "s"}
    store.put_measurement(
        device_id=device.id,
        problem_id=store.put_problem(str(problem)).id,
        kernel_id=store.put_kernel(identity, symbol="").id,
        launch={},
        status="ok",
        median_us=1.0,
        samples_us=[1.0],
        final=final,
    )


def test_a_layer_is_missing_until_its_finalists_were_timed(network, tmp_path):
    bench = Bench.of_device(torch.device("cpu"))
    with Store.create(tmp_path / "x.db") as store:
        assert missing(store, bench, network).problems == [layer.problem for layer in network.layers]
        measured(store, network.layers[0].problem, final=True)
        measured(store, network.layers[1].problem, final=False)
        request = missing(store, bench, network)
        assert request.named == [("b", network.layers[1].problem)] and request.network is network
        measured(store, network.layers[1].problem, final=True)
        assert missing(store, bench, network) is None


def test_times_of_another_timer_are_refused(network, tmp_path):
    problem = network.layers[0].problem
    with Store.create(tmp_path / "x.db") as store:
        measured(store, problem, final=True)
        refuse_other_timing(store, device_name(torch.device("cpu")), [problem], Timing())
        with pytest.raises(DatabaseError, match="--buffers resident"):
            refuse_other_timing(store, device_name(torch.device("cpu")), [problem], Timing(buffers="rotating"))


def test_the_bench_of_this_machine():
    cpu = Bench.of(architecture("cpu"), None)
    assert (cpu.device, cpu.target, cpu.trials, cpu.budget) == ("cpu", cpu_targets()[0], 32, 90.0)
    absent = Bench.of(architecture("sm90"), None)
    assert (absent.device, absent.target, absent.budget) == (None, "sm_90", 360.0) and absent.trials < 32
    older = Bench.of(architecture("sm90"), DeviceKind("an A100", 80, 108))
    assert older.device is None and older.name is None
    newer = Bench.of(architecture("sm80"), DeviceKind("a GPU elsewhere", 90, 132), "cuda:3")
    assert (newer.device, newer.target, newer.name) == ("cuda:3", "sm_90", "a GPU elsewhere")
    assert newer.arch.processors == 132
