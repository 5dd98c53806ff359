"""The choice between the layers of a network and torch's operators for the whole network."""

import itertools
import json
from dataclasses import replace

import pytest
import torch
from databases import put_time, put_torch_kernel
from two_layer_network import LAYERS, NETWORK, VALLEYS, TableDevice, torch_relu

from autotune.core import Deadline, OutOfTimeError
from autotune.ir import INPUT, OUTPUT, WHOLE, Alternative, Layer, Network, NetworkKey
from autotune.measure import THROTTLED, Result
from autotune.runtime.selection import select
from autotune.tuner import SLOWED, Searched, TuningTarget, missing, outcome_text
from autotune.tuner.plan.network_tuner import Rivals, tune_network_plan
from autotune_cli.tune_summary import plan_text

CALL = torch_relu((2, 8, 4, 4))
WITH_TORCH = replace(
    NETWORK,
    alternatives=(Alternative(WHOLE, tuple(LAYERS), (Layer("the network", CALL, {"x": INPUT, "y": OUTPUT}),)),),
)
MODES = {"aten": '{"memory_format":"channels_last"}', "inductor": '{"mode":"default"}'}


class DeviceWithTorch(TableDevice):
    """us: also the times of torch's operators, by family; None if it fails. `asked` holds the plans of each request."""

    def __init__(self, us):
        super().__init__(us)
        self.asked = []

    def time_networks(self, network, plans, rounds):
        self.asked.append([tuple(pick.layer for pick in plan) for plan in plans])
        own = [plan for plan in plans if plan[0].layer != "the network"]
        results = dict(zip(map(id, own), super().time_networks(network, own, rounds), strict=True))
        times = {id(plan): self.us[plan[0].candidate.family] for plan in plans if id(plan) not in results}
        if None in times.values():
            return [Result("crashed", "a plan failed")] * len(plans)
        results |= {key: Result("ok", median_us=us, spread_us=0.1, samples_us=[us]) for key, us in times.items()}
        return [results[id(plan)] for plan in plans]


@pytest.fixture
def trial_us():
    """Time of torch's operators for the whole network in the process that compiled them."""
    return 9.0


@pytest.fixture
def trial_details():
    """Details of that time, such as THROTTLED."""
    return {}


@pytest.fixture
def torchs(store, kernels, trial_us, trial_details):
    """The ids of torch's candidates for the whole network, by family."""
    device, _ = kernels
    made = {}
    for family, config in MODES.items():
        kernel = put_torch_kernel(store, config, family=family)
        put_time(store, device, CALL, kernel, trial_us, final=True, details=trial_details)
        made[kernel] = family
    return made


def families(layers, chosen):
    return [(layer.name, chosen[layer.name].candidate.family) for layer in layers]


@pytest.mark.parametrize("descend", [True, False])
@pytest.mark.parametrize(
    ("times", "winner", "fallback"),
    [
        ({"aten": 30.0, "inductor": 20.0}, "layers", None),
        ({"aten": 30.0, "inductor": 5.0}, "inductor", "layers"),
        ({"aten": 6.0, "inductor": 5.0}, "inductor", "aten"),
        ({"aten": 6.0, "inductor": 7.0}, "aten", None),
        ({"aten": 6.0, "inductor": None}, "aten", None),
    ],
)
def test_the_fastest_of_the_layers_and_torchs_operators_runs(store, kernels, torchs, descend, times, winner, fallback):
    device, _ = kernels
    worker = DeviceWithTorch(VALLEYS | times)
    row = tune_network_plan(store, device, worker, WITH_TORCH, descend=descend)
    names = {
        "layers": [("first", "torch"), ("second", "torch")],
        **{family: [("the network", family)] for family in MODES},
    }
    assert all(
        ("the network",) not in plans for plans in worker.asked[:-1] if len(plans) > 1
    )  # the last rounds only, and alone before them
    cpu = torch.device("cpu")
    assert families(*select(store, WITH_TORCH, cpu, "present")) == names[winner]
    assert row.details["alternatives"] == ([] if winner == "layers" else [WHOLE])
    assert sorted(row.details["torch_us"].values()) == sorted(us for us in times.values() if us)
    spare = store.plan(device, str(WITH_TORCH.identity.precompiled))
    assert (spare is not None) == (fallback is not None)
    layers, chosen = select(store, WITH_TORCH, cpu, "absent")
    assert families(layers, chosen) == names[fallback or winner]
    assert {choice.source for choice in chosen.values()} == {"tuned without Inductor" if fallback else "tuned"}
    assert families(*select(store, WITH_TORCH, cpu, "off")) == names[fallback or winner]


@pytest.mark.parametrize("trial_us", [900.0])
def test_the_times_of_torch_are_those_of_the_comparison(store, kernels, torchs, trial_us):
    device, _ = kernels
    row = tune_network_plan(store, device, DeviceWithTorch(VALLEYS | {"aten": 30.0, "inductor": 20.0}), WITH_TORCH)
    assert row.details["alternatives"] == [] and sorted(row.details["torch_us"].values()) == [20.0, 30.0]


def test_the_process_that_has_compiled_the_network_compares_it(store, kernels, torchs):
    device, _ = kernels
    worker, beside = DeviceWithTorch(VALLEYS), DeviceWithTorch(VALLEYS | {"aten": 30.0, "inductor": 5.0})
    row = tune_network_plan(store, device, worker, WITH_TORCH, rivals=lambda: Rivals(beside))
    assert row.details["alternatives"] == [WHOLE]
    assert all(plan != ("the network",) for plans in worker.asked for plan in plans)
    assert [len(plans) for plans in beside.asked] == [1, 1, 3]  # each of torch's alone, then all and the plan


def test_a_plan_that_was_timed_does_not_give_way_to_code_that_was_not_timed_beside_it(store, kernels, torchs):
    device, _ = kernels
    rivals = Rivals(DeviceWithTorch(VALLEYS | {"aten": 30.0, "inductor": 5.0}), has_compiled=False)
    row = tune_network_plan(store, device, DeviceWithTorch(VALLEYS), WITH_TORCH, rivals=lambda: rivals)
    assert row.details["alternatives"] == [] and list(row.details["torch_us"].values()) == [30.0]
    said = outcome_text(row)
    assert said == "10.0 us, 3.00x faster than eager PyTorch (30.0 us), not compared with torch.compile"


def test_inductors_code_that_was_faster_stays_where_it_is_not_compared_again(store, kernels, torchs):
    device, _ = kernels
    first = tune_network_plan(
        store, device, DeviceWithTorch(VALLEYS | {"aten": 30.0, "inductor": 5.0}), WITH_TORCH, descend=False
    )
    worker = DeviceWithTorch(VALLEYS | {"aten": 30.0})
    tune_network_plan(store, device, worker, WITH_TORCH, rivals=lambda: Rivals(worker, has_compiled=False))
    assert store.plan(device, WITH_TORCH.key).id == first.id


class Failing(DeviceWithTorch):
    """Plans with a candidate that fails: (layer, number of its config)."""

    def __init__(self, us, failing):
        super().__init__(us)
        self.failing = failing

    def time_networks(self, network, plans, rounds):
        numbers = [{pick.layer: json.loads(pick.candidate.config).get("number") for pick in plan} for plan in plans]
        for layer, number in self.failing:
            if any(one.get(layer, -1) == number for one in numbers):
                self.asked.append("failed")
                return [Result("crashed", f"the layer '{layer}' fails", details={"layer": layer})] * len(plans)
        return super().time_networks(network, plans, rounds)


@pytest.mark.parametrize("failing", [[("first", 0)], [("second", 0), ("first", 0)]])
def test_a_candidate_that_fails_in_the_network_gives_way_to_the_next_one(store, kernels, failing):
    device, _ = kernels
    told = []
    row = tune_network_plan(store, device, Failing(VALLEYS, failing), NETWORK, tell=told.append)
    assert row.median_us == min(us for (a, b), us in VALLEYS.items() if (("first", a) not in failing and b != 0) or a)
    assert len(told) == len(failing) and all("its next candidate is taken" in one for one in told)
    assert "the layer 'first' fails" in told[-1] or "the layer 'second' fails" in told[-1]


def test_a_network_of_which_a_layer_has_no_candidate_runs_on_torchs_operators(store, kernels, torchs):
    device, _ = kernels
    worker = Failing(VALLEYS | {"aten": 30.0, "inductor": 40.0}, [("first", 0), ("first", 1)])
    row = tune_network_plan(store, device, worker, WITH_TORCH)
    assert row.details["alternatives"] == [WHOLE] and row.median_us == 30.0
    cpu = torch.device("cpu")
    assert families(*select(store, WITH_TORCH, cpu, "present")) == [("the network", "aten")]


def test_the_outcome_names_torch_once_by_its_fastest_candidates(store, kernels, torchs):
    device, _ = kernels
    row = tune_network_plan(store, device, DeviceWithTorch(VALLEYS | {"aten": 30.0, "inductor": 15.0}), WITH_TORCH)
    said = outcome_text(row)
    assert said == "10.0 us, 3.00x faster than eager PyTorch (30.0 us), 1.50x faster than torch.compile (15.0 us)"


@pytest.mark.parametrize("descend", [True, False])
def test_without_time_for_the_last_rounds_the_times_of_trials_decide(store, kernels, torchs, descend):
    device, _ = kernels
    worker = DeviceWithTorch(VALLEYS | {"aten": 30.0, "inductor": 5.0})
    over = Deadline(0.0, 0.0, itertools.count(1.0).__next__)
    row = tune_network_plan(store, device, worker, WITH_TORCH, over, descend=descend)
    assert row.median_us == 9.0 and row.details["alternatives"] == [WHOLE]  # 9.0: of the trial


class Ended:
    def time_networks(self, network, plans, rounds):
        raise OutOfTimeError("the end")


@pytest.mark.parametrize("trial_details", [{THROTTLED: 5}])
def test_a_plan_whose_time_is_that_of_a_trial_beside_other_processes_is_to_be_timed_again(store, kernels, torchs):
    device, _ = kernels
    with pytest.raises(OutOfTimeError):
        tune_network_plan(store, device, Ended(), WITH_TORCH)
    row = store.plan(device, WITH_TORCH.key)
    assert row.median_us == 9.0 and row.details[THROTTLED] == 5
    assert SLOWED in outcome_text(row) and SLOWED in plan_text(row, None, is_cuda=False)
    target = replace(TuningTarget.of_device(torch.device("cpu")), name=device.name)
    for layer in WITH_TORCH.layers:
        kernel = store.ranking(device, str(layer.problem))[0].kernel_id
        put_time(store, device, layer.problem, kernel, final=True)
    assert missing(store, target, WITH_TORCH, Searched())
    now = tune_network_plan(store, device, DeviceWithTorch(VALLEYS | {"aten": 30.0, "inductor": 20.0}), WITH_TORCH)
    assert THROTTLED not in now.details and SLOWED not in outcome_text(now)
    assert missing(store, target, WITH_TORCH, Searched()) is None


@pytest.mark.parametrize("descend", [True, False])
def test_a_run_that_ends_before_it_times_a_plan_leaves_torchs_fastest_trial(store, kernels, torchs, descend):
    device, _ = kernels
    with pytest.raises(OutOfTimeError):
        tune_network_plan(store, device, Ended(), WITH_TORCH, descend=descend)
    row = store.plan(device, WITH_TORCH.key)
    assert (row.median_us, row.details["alternatives"]) == (9.0, [WHOLE])
    said = plan_text(row, None, is_cuda=False)
    assert "9.0 us" in said and "is fastest and runs it" in said


def test_a_region_compiled_by_inductor_has_a_spare_without_it(store, kernels, torchs):
    device, _ = kernels
    layer = Layer("region", CALL, {"x": INPUT, "y": OUTPUT})
    network = Network(NetworkKey("region"), (layer,), NETWORK.inputs, NETWORK.results)

    class Regions:
        def time_networks(self, network, plans, rounds):
            times = [{"aten": 4.0, "inductor": 2.0}[plan[0].candidate.family] for plan in plans]
            return [Result("ok", median_us=us, spread_us=0.1, samples_us=[us]) for us in times]

    assert torchs[tune_network_plan(store, device, Regions(), network).choices[0]["kernel"]] == "inductor"
    assert families(*select(store, network, torch.device("cpu"), "present")) == [("region", "inductor")]
    assert families(*select(store, network, torch.device("cpu"), "off")) == [("region", "aten")]
