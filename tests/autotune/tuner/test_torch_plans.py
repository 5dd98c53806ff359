"""The choice between the layers of a network and torch's operators for the whole network."""

import itertools
from dataclasses import replace

import pytest
import torch
from sqlalchemy import text
from two_layer_network import LAYERS, NETWORK, VALLEYS, TableDevice

from autotune.core import Deadline, OutOfTimeError
from autotune.ir import (
    INPUT,
    OUTPUT,
    WHOLE,
    Alternative,
    Layer,
    Network,
    NetworkKey,
    Operand,
    OperatorCall,
    TorchCall,
    ValueRef,
)
from autotune.measure import Result
from autotune.runtime.selection import select
from autotune.tuner.network_tuner import tune_network_plan
from autotune.tuner.untimed_inductor import prefer_untimed
from autotune_cli.tune_summary import outcome_text, plan_text

CALL = TorchCall(
    n=2,
    calls=(OperatorCall("aten.relu.default", (ValueRef(0),)),),
    inputs=(Operand("x", "input", (2, 8, 4, 4), "f32"),),
    shape=(2, 8, 4, 4),
    in_torch_order=("x",),
    dtype="f32",
)
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
def torchs(store, kernels, trial_us):
    """The ids of torch's candidates for the whole network, by family."""
    device, _ = kernels
    made = {}
    for family, config in MODES.items():
        identity = {"family": family, "config": config, "dtype": "f32", "epilogue": "none", "target": "any"}
        row = store.put_kernel(identity | {"source": ""}, symbol="")
        problem = store.put_problem(str(CALL))
        store.put_measurement(
            device_id=device.id, problem_id=problem.id, kernel_id=row.id, status="ok", median_us=trial_us, final=True
        )
        made[row.id] = family
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
def test_torchs_operators_that_are_far_slower_are_not_compiled_once_more(store, kernels, torchs, trial_us):
    device, _ = kernels
    worker = DeviceWithTorch(VALLEYS | {"aten": None, "inductor": None})
    row = tune_network_plan(store, device, worker, WITH_TORCH)
    assert all(("the network",) not in plans for plans in worker.asked)
    assert row.details["alternatives"] == [] and set(row.details["torch_us"].values()) == {trial_us}


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


@pytest.mark.parametrize("descend", [True, False])
def test_a_run_that_ends_before_it_times_a_plan_leaves_torchs_fastest_trial(store, kernels, torchs, descend):
    class Ended:
        def time_networks(self, network, plans, rounds):
            raise OutOfTimeError("the end")

    device, _ = kernels
    with pytest.raises(OutOfTimeError):
        tune_network_plan(store, device, Ended(), WITH_TORCH, descend=descend)
    row = store.plan(device, WITH_TORCH.key)
    assert (row.median_us, row.details["alternatives"]) == (9.0, [WHOLE])
    said = plan_text(row, None, is_cuda=False)
    assert "9.0 us" in said and "is fastest and runs it" in said


@pytest.mark.parametrize(
    ("eager_us", "searched", "left_to_inductor"), [(34.0, True, True), (36.0, True, False), (36.0, False, True)]
)
def test_a_plan_that_was_not_compared_with_inductor_must_be_complete_and_far_faster_than_eager(
    store, kernels, torchs, eager_us, searched, left_to_inductor
):
    device, _ = kernels
    compiled = next(number for number, family in torchs.items() if family == "inductor")
    with store.writing() as session:
        session.execute(text("DELETE FROM measurement WHERE kernel_id = :kernel"), {"kernel": compiled})
        session.execute(text("UPDATE measurement SET median_us = :us WHERE median_us = 9.0"), {"us": eager_us})
    row = tune_network_plan(store, device, DeviceWithTorch(VALLEYS | {"aten": eager_us}), WITH_TORCH)
    assert row.median_us == 10.0
    if not searched:
        times = {"median_us": row.median_us, "spread_us": row.spread_us, "details": row.details}
        choices = [{**choice, "us": None} for choice in row.choices]
        store.replace_plan(row, device_id=device.id, network=row.network, choices=choices, **times)
    assert prefer_untimed(store, device, WITH_TORCH, store.kernel(compiled)) is left_to_inductor
    if not searched:
        return
    layers = [("first", "torch"), ("second", "torch")]
    cpu = torch.device("cpu")
    assert families(*select(store, WITH_TORCH, cpu, "absent")) == layers
    if left_to_inductor:
        assert families(*select(store, WITH_TORCH, cpu, "present")) == [("the network", "inductor")]
        said = plan_text(store.plan(device, WITH_TORCH.key), None, is_cuda=True)
        assert "not timed" in said and "10.0 us" in said
    else:
        assert families(*select(store, WITH_TORCH, cpu, "present")) == layers
    assert not prefer_untimed(store, device, NETWORK, store.kernel(compiled))  # it has no plan


@pytest.mark.parametrize("torch_us", [20.0, 5.0])
def test_a_plan_that_was_compared_with_inductor_stays(store, kernels, torchs, torch_us):
    device, _ = kernels
    row = tune_network_plan(store, device, DeviceWithTorch(VALLEYS | {"aten": 9.0, "inductor": torch_us}), WITH_TORCH)
    compiled = next(number for number, family in torchs.items() if family == "inductor")
    assert not prefer_untimed(store, device, WITH_TORCH, store.kernel(compiled))
    assert store.plan(device, WITH_TORCH.key).id == row.id


def test_a_region_compiled_by_inductor_has_a_spare_without_it(store, kernels, torchs):
    device, _ = kernels
    network = Network(
        NetworkKey("region"),
        (Layer("region", CALL, {"x": INPUT, "y": OUTPUT}),),
        NETWORK.inputs,
        NETWORK.results,
    )

    class Regions:
        def time_networks(self, network, plans, rounds):
            times = [{"aten": 4.0, "inductor": 2.0}[plan[0].candidate.family] for plan in plans]
            return [Result("ok", median_us=us, spread_us=0.1, samples_us=[us]) for us in times]

    assert torchs[tune_network_plan(store, device, Regions(), network).choices[0]["kernel"]] == "inductor"
    assert families(*select(store, network, torch.device("cpu"), "present")) == [("region", "inductor")]
    assert families(*select(store, network, torch.device("cpu"), "off")) == [("region", "aten")]
