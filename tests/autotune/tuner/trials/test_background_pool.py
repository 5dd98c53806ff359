"""Trials beside a search: each network has a process of its own."""

import time

import pytest
import torch
from processes import HANG

from autotune.core import Deadline, architecture
from autotune.measure import Worker
from autotune.tuner import Progress, TunerOptions
from autotune.tuner.trials.background_pool import BackgroundPool, is_whole, num_cores, workers_beside
from fused_resnet.capture import capture
from tuning_db import Store

pytestmark = pytest.mark.process


def test_the_trials_of_all_networks_run_at_the_same_time(tmp_path, cpu_target):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU()).eval()
    networks = [capture(model, (batch, 3, 6, 6), "f32") for batch in (1, 2)]
    problems = [layer.problem for network in networks for layer in network.all_layers]
    options = TunerOptions(architecture("sm90"), cpu_target, 1, jobs=2)  # a GPU's: on a CPU nothing is tried beside
    with Store.create(tmp_path / "pool.db") as store:
        device = store.put_device("a CPU", cpu_target, flops_per_us=1.0, bytes_per_us=1.0, details={"torch": "2"})

        def statuses(network):
            (layer,) = network.whole.layers
            return [row.status for row in store.measurements(device, str(layer.problem))]

        besides = workers_beside([Worker("cpu")], networks, options)
        with BackgroundPool(store, device, options, besides, Progress(), problems, networks) as pool:
            first, second = map(pool.trials, networks)
            assert first is not second and pool.trials(networks[0]) is first
            until = Deadline.after(HANG)
            while not ((first.is_done and second.is_done) or until.is_over):
                pool.advance()
                time.sleep(0.01)
            assert first.num_tried == second.num_tried == 1
            first.close()
            pool.advance()  # what was closed is not advanced
        assert [statuses(network) for network in networks] == [["ok"], ["ok"]]


def test_the_whole_network_is_tried_beside_a_search():
    network = capture(torch.nn.Conv2d(3, 8, 3).eval(), (1, 3, 6, 6), "f32")
    assert is_whole(network.whole.layers[0].problem, [network])
    assert not any(is_whole(layer.problem, [network]) for layer in network.layers)
    assert not is_whole(network.whole.layers[0].problem, [])


def test_inductor_has_cores_of_its_own_where_there_are_many(cpu_target):
    network = capture(torch.nn.Conv2d(3, 8, 3).eval(), (1, 3, 6, 6), "f32")
    sm90, cpu = architecture("sm90"), architecture("cpu")
    compiling = {"inductor": ("default",)}
    cores = [num_cores([network], TunerOptions(sm90, "sm_90", 1, jobs, **compiling)) for jobs in (2, 7, 8, 16, 64)]
    assert cores == [0, 0, 4, 8, 8]
    assert num_cores([network] * 3, TunerOptions(sm90, "sm_90", 1, 16, **compiling)) == 8
    assert num_cores([network], TunerOptions(sm90, "sm_90", 1, 16)) == 0
    assert workers_beside([Worker("cpu")], [network], TunerOptions(cpu, cpu_target, 1, 16, **compiling)) == {}
