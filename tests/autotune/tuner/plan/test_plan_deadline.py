"""The choice of a plan within a time limit, for a deep network on a device with a simulated clock."""

import json
import math
import random
import shutil
from dataclasses import replace

import pytest
from databases import put_cpu, put_time, put_torch_kernel
from two_layer_network import NETWORK, torch_relu

from autotune.core import Deadline, OutOfTimeError
from autotune.ir import INPUT, OUTPUT, WHOLE, Alternative, Layer, Network, NetworkKey, parse
from autotune.measure import Result
from autotune.tuner.plan.network_tuner import tune_network_plan
from autotune.tuner.plan.plan_descent import MAX_TIME_RATIO
from tuning_db import Store

DEEP, KINDS, KERNELS = 250, 40, 4
"""Layers of a deep network, the problems among them, and the kernels of each problem."""
TORCH_US = 1e6
SECONDS_PER_PLAN, SECONDS_PER_ROUND = 0.02, 0.002
"""Simulated seconds of binding and capturing a plan, and of one of its rounds; TORCH_US is the time of torch."""


class SlowDevice:
    """A device with a clock: a layer takes the microseconds of its problem times the factor of its kernel."""

    def __init__(self, us, factors, ends=math.inf):
        self.us, self.factors, self.now, self.ends = us, factors, 0.0, ends
        self.requests: list[int] = []
        self.with_torch: list[tuple[int, float]] = []  # requests with torch's operators, and our time in each

    def clock(self):
        return self.now

    def time(self, plan):
        if plan[0].layer == "the network":
            return TORCH_US
        picks = [(pick.layer, json.loads(pick.candidate.config)["number"]) for pick in plan]
        return sum(self.us[int(name) % KINDS] * self.factors[int(name) % KINDS][number] for name, number in picks)

    def time_networks(self, network, plans, rounds):
        self.now += len(plans) * (SECONDS_PER_PLAN + rounds * SECONDS_PER_ROUND)
        if self.now > self.ends:
            raise OutOfTimeError("the end")
        times = list(map(self.time, plans))
        if TORCH_US in times and len(times) > 1:
            self.with_torch.append((len(self.requests), min(times)))
        self.requests.append(len(plans))
        return [Result("ok", median_us=us, spread_us=0.1, samples_us=[us]) for us in times]


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """A database with a network of DEEP layers, whose kernels are all equally fast alone; and a function that makes a
    device on which they are not."""
    draw = random.Random(1)
    problems = [parse(f"conv2d n=2 h=4 w=4 c={8 * (i + 1)} k=8 dtype=f32") for i in range(KINDS)]
    between = [INPUT, *(f"b{i}" for i in range(1, DEEP)), OUTPUT]
    layers = tuple(
        Layer(f"{i}", problems[i % KINDS], {"x": between[i], "y": between[i + 1]}, {"weight": f"{i}.weight"})
        for i in range(DEEP)
    )
    us = [10.0 / (1 + i) for i in range(KINDS)]  # few problems take most of the time, as in a real network
    factors = [[1.0, *(draw.uniform(0.7, 1.3) for _ in range(KERNELS - 1))] for _ in range(KINDS)]
    path = tmp_path_factory.mktemp("deep") / "t.db"
    with Store.create(path) as store:
        device = put_cpu(store)
        for i, problem in enumerate(problems):
            for number in range(KERNELS):
                kernel = put_torch_kernel(store, json.dumps({"number": number, "of": i}))
                put_time(store, device, problem, kernel, us[i] + number * 1e-6)
    return (
        path,
        Network(NetworkKey("deep"), layers, NETWORK.inputs, NETWORK.results),
        lambda **options: SlowDevice(us, factors, **options),
    )


@pytest.mark.parametrize("seconds", [3.0, 30.0, 120.0])
def test_a_deep_network_is_settled_within_its_time_where_it_counts_most(deep, seconds, tmp_path):
    path, network, make_device = deep
    device = make_device()
    with Store.create(shutil.copy(path, tmp_path / "t.db")) as store:
        [row] = store.devices()
        plan = tune_network_plan(store, row, device, network, Deadline(seconds, 0.0, device.clock))
    assert device.now <= seconds
    alone = sum(device.us[i % KINDS] for i in range(DEEP))
    gains = [device.us[k] * (1 - min(device.factors[k])) * len(range(k, DEEP, KINDS)) for k in range(KINDS)]
    seen = sum(gain for gain in gains if gain > (1 - MAX_TIME_RATIO) * alone)  # smaller ones may be noise
    assert (alone - plan.median_us) / seen > {3.0: 0.4, 30.0: 0.95, 120.0: 0.95}[seconds]
    if seconds == 120.0:  # all groups, and then single layers: no time is left unused for want of moves
        assert len(device.requests) > KINDS


def test_the_search_goes_on_in_the_time_that_the_comparison_with_torch_leaves(deep, tmp_path):
    path, network, make_device = deep
    whole = torch_relu((2, 8, 4, 4))
    layer = Layer("the network", whole, {"x": INPUT, "y": OUTPUT})
    network = replace(network, alternatives=(Alternative(WHOLE, tuple(map(str, range(DEEP))), (layer,)),))
    device, seconds = make_device(), 4.0
    with Store.create(shutil.copy(path, tmp_path / "t.db")) as store:
        [row] = store.devices()
        put_time(store, row, whole, put_torch_kernel(store, "{}", family="aten"), TORCH_US)
        plan = tune_network_plan(store, row, device, network, Deadline(seconds, 0.0, device.clock))
    [(compared, before_us)] = device.with_torch
    assert len(device.requests) > compared + 5  # the search behind the comparison
    assert device.now <= seconds
    assert list(plan.details["torch_us"].values()) == [TORCH_US] and plan.median_us < before_us


@pytest.mark.parametrize("ends", [0.1, 1.0, 4.0])
def test_a_run_that_is_ended_leaves_the_best_plan_so_far(deep, ends, tmp_path):
    path, network, make_device = deep
    device = make_device(ends=ends)
    with Store.create(shutil.copy(path, tmp_path / "t.db")) as store:
        [row] = store.devices()
        with pytest.raises(OutOfTimeError):
            tune_network_plan(store, row, device, network, Deadline(30.0, 0.0, device.clock))
        assert len(store.plans()) == 1
        first = store.plan(row, network.key)
        alone = sum(device.us[i % KINDS] for i in range(DEEP))
        assert first.median_us <= alone and (ends < 1 or first.median_us < 0.97 * alone)
        # The next run begins with that plan, and ends before it finds a better one.
        again = make_device(ends=ends)
        with pytest.raises(OutOfTimeError):
            tune_network_plan(store, row, again, network, Deadline(30.0, 0.0, again.clock))
        assert store.plan(row, network.key).median_us <= first.median_us
