"""The choice inside the network, on a device of which a table says how long each plan takes."""

import itertools
import json
import math
import random
import shutil
from dataclasses import replace

import pytest
import torch
from crossed_network import crossed_network
from databases import with_wrong_kernel
from processes import TUNED_BATCH
from sqlalchemy import text

from autotune.core import Deadline, OutOfTimeError, device_name, device_target
from autotune.ir import (
    INPUT,
    OUTPUT,
    WHOLE,
    Alternative,
    CallerTensor,
    Layer,
    Network,
    NetworkKey,
    Operand,
    OperatorCall,
    TorchCall,
    ValueRef,
    parse,
    with_batch,
)
from autotune.measure import Result, Worker
from autotune.runtime.selection import select
from autotune.tuner.copied_plans import CopiedPlan
from autotune.tuner.network_tuner import tune_network_plan
from autotune.tuner.plan_descent import MAX_TIME_RATIO
from autotune.tuner.untimed_inductor import prefer_untimed
from autotune_cli.tune_summary import outcome_text, plan_text
from fused_resnet.networks.se_resnet9_fixup_layers import network as seed_network
from tuning_db import Store

PROBLEM = "conv2d n=2 h=4 w=4 c={c} k=8 dtype=f32"
LAYERS = {"first": 8, "second": 16}
"""Name -> channels, so that each has a problem of its own."""
NETWORK = Network(
    NetworkKey("net"),
    tuple(
        Layer(name, parse(PROBLEM.format(c=c)), {"x": x, "y": y}, {"weight": f"{name}.weight"})
        for (name, c), (x, y) in zip(LAYERS.items(), [(INPUT, "between"), ("between", OUTPUT)], strict=True)
    ),
    (CallerTensor((2, 8, 4, 4), "f32"),),
    (CallerTensor((2, 8, 4, 4), "f32"),),
)


class Device:
    """Stands for the worker: us says how long a plan takes, by the numbers of its layers' configs."""

    def __init__(self, us):
        self.us = us

    def time_networks(self, network, plans, rounds):
        times = [self.us[tuple(json.loads(pick.candidate.config)["number"] for pick in plan)] for plan in plans]
        return [Result("ok", median_us=us, spread_us=0.1, samples_us=[us]) for us in times]


@pytest.fixture
def store(tmp_path):
    with Store.create(tmp_path / "t.db") as store:
        yield store


@pytest.fixture
def kernels(store):
    """A device, and kernels by (layer, number): two for each layer, of which number 0 is faster alone."""
    device = store.put_device(device_name(torch.device("cpu")), "cpu", flops_per_us=1.0, bytes_per_us=1.0)
    made = {}
    for name, c in LAYERS.items():
        for number in (0, 1):
            identity = {"family": "torch", "config": json.dumps({"number": number, "c": c}), "dtype": "f32"}
            row = store.put_kernel(identity | {"epilogue": "none", "target": "any", "source": ""}, symbol="")
            store.put_measurement(
                device_id=device.id,
                problem_id=store.put_problem(str(parse(PROBLEM.format(c=c)))).id,
                kernel_id=row.id,
                status="ok",
                median_us=1.0 + number,
                final=True,
            )
            made[name, number] = row.id
    return device, made


def plan_of(row, kernels):
    names = {number: key for key, number in kernels.items()}
    return tuple(names[choice["kernel"]][1] for choice in row.choices)


def choices_of(kernels, numbers):
    return [
        {"layer": name, "kernel": kernels[name, number], "launch": {}, "us": 1.0, "overlap": False}
        for name, number in zip(LAYERS, numbers, strict=True)
    ]


def save(store, device, kernels, numbers, network=NETWORK):
    choices = choices_of(kernels, numbers)
    store.put_plan(
        device_id=device.id, network=network.key, median_us=9.0, spread_us=0.1, choices=choices, details={}
    )  # fmt: skip


VALLEYS = {(0, 0): 10.0, (0, 1): 12.0, (1, 0): 11.0, (1, 1): 8.0}
"""From the winners no single change is an improvement, and still there is a faster plan."""


def test_from_the_winners_it_goes_where_no_single_change_helps(store, kernels):
    device, made = kernels
    assert plan_of(tune_network_plan(store, device, Device(VALLEYS), NETWORK), made) == (0, 0)
    hill = VALLEYS | {(0, 1): 9.0}
    assert plan_of(tune_network_plan(store, device, Device(hill), NETWORK), made) == (1, 1)


@pytest.mark.parametrize("saved", [(1, 1), (0, 1)])
def test_and_from_the_plan_that_the_database_has(store, kernels, saved):
    device, made = kernels
    save(store, device, made, saved)
    row = tune_network_plan(store, device, Device(VALLEYS), NETWORK)
    assert plan_of(row, made) == (1, 1) and row.median_us == 8.0
    assert store.plan(device, NETWORK.key).id == row.id


@pytest.mark.parametrize("first", [0, 1])
def test_or_else_from_a_plan_that_was_copied_as_far_as_its_kernels_are_known(store, kernels, first):
    device, made = kernels
    copied = CopiedPlan(choices_of(made, (1, 1))[first:], {})
    row = tune_network_plan(store, device, Device(VALLEYS), NETWORK, copied=copied)
    assert plan_of(row, made) == (1, 1) and row.median_us == 8.0


def test_or_else_from_the_plan_for_other_batch_batch_size(store, kernels):
    device, made = kernels
    network = replace(NETWORK, identity=NetworkKey("net", 2, (("dtype", "f32"),)))
    save(store, device, made, (1, 1), network.with_batch(8))
    row = tune_network_plan(store, device, Device(VALLEYS), network)
    assert plan_of(row, made) == (1, 1) and row.network == network.key
    assert [choice["us"] for choice in row.choices] == [2.0, 2.0]  # as they were measured for this batch size


def test_a_kernel_of_the_plan_in_use_is_tried_in_all_layers_of_its_problem(store, kernels):
    """Also one that is not among the fastest kernels alone, or was not timed alone at all."""
    device, made = kernels
    first, _ = NETWORK.layers
    layers = (first, replace(first, name="again", buffers={"x": "between", "y": OUTPUT}))
    twins = replace(NETWORK, identity=NetworkKey("twins"), layers=layers)
    identity = {"family": "torch", "config": json.dumps({"number": 7, "c": 8}), "dtype": "f32"}
    other = store.put_kernel(identity | {"epilogue": "none", "target": "any", "source": ""}, symbol="").id
    choices = [
        {"layer": layer.name, "kernel": kernel, "launch": {}, "us": 1.0, "overlap": False}
        for layer, kernel in zip(layers, (other, made["first", 0]), strict=True)
    ]
    store.put_plan(device_id=device.id, network=twins.key, median_us=9.0, spread_us=0.1, choices=choices, details={})
    us = dict.fromkeys(itertools.product((0, 1, 7), repeat=2), 10.0) | {(7, 0): 9.0, (7, 7): 8.0}
    row = tune_network_plan(store, device, Device(us), twins)
    assert row.median_us == 8.0 and [choice["kernel"] for choice in row.choices] == [other, other]


def test_a_kernel_that_is_wrong_at_this_batch_size_is_left_out(tuned_db, tmp_path):
    """The plan of another batch size names it; it was right there, or so the database says."""
    path, wrong, _ = with_wrong_kernel(tuned_db, tmp_path)
    with Store.create(path) as store, Worker("cpu") as worker:
        device = store.device(device_name(torch.device("cpu")))
        there, here = (seed_network("se_resnet9_fixup", n, 3, "f32") for n in (TUNED_BATCH, TUNED_BATCH + 1))
        fastest = {layer.name: store.ranking(device, str(layer.problem))[0] for layer in there.layers}
        assert wrong in [row.kernel_id for row in fastest.values()]
        choices = [
            {"layer": name, "kernel": row.kernel_id, "launch": row.launch, "us": 1.0, "overlap": False}
            for name, row in fastest.items()
        ]
        store.put_plan(device_id=device.id, network=there.key, median_us=9.0, spread_us=0.1, choices=choices)
        row = tune_network_plan(store, device, worker, here, descend=False)
        kernels = [choice["kernel"] for choice in row.choices]
        assert wrong not in kernels and any(one.kernel_id in kernels for one in fastest.values())
        tried = [one for layer in here.layers for one in store.measurements(device, str(layer.problem))]
        assert {one.status for one in tried if one.kernel_id == wrong} == {"wrong"}
        assert {one.status for one in tried if one.kernel_id in kernels} == {"ok"}


BRANCHES = Network(
    NetworkKey("branches"),
    tuple(replace(layer, buffers={"x": INPUT, "y": layer.name}) for layer in NETWORK.layers),
    NETWORK.inputs,
    NETWORK.results,
)
"""The same layers, of which neither waits for the other."""


class Branches(Device):
    """us: how long a plan takes by the order of its layers."""

    def time_networks(self, network, plans, rounds):
        times = [self.us[" ".join(pick.layer for pick in plan)] for plan in plans]
        return [Result("ok", median_us=us, spread_us=0.1, samples_us=[us]) for us in times]


@pytest.mark.parametrize("faster", ["first second", "second first"])
def test_neighbours_that_do_not_wait_for_each_other_are_in_the_faster_order(store, kernels, faster):
    device, _ = kernels
    times = {"first second": 10.0, "second first": 10.0} | {faster: 9.0}
    row = tune_network_plan(store, device, Branches(times), BRANCHES)
    assert " ".join(choice["layer"] for choice in row.choices) == faster and row.median_us == 9.0
    layers, chosen = select(store, BRANCHES, torch.device("cpu"))
    assert [layer.name for layer in layers] == list(chosen) == faster.split()


def test_a_plan_that_is_slower_by_now_is_left(store, kernels):
    device, made = kernels
    save(store, device, made, (1, 1))
    slower = VALLEYS | {(1, 1): 13.0, (0, 1): 14.0, (1, 0): 14.0}
    assert plan_of(tune_network_plan(store, device, Device(slower), NETWORK), made) == (0, 0)


def test_a_plan_of_layers_that_are_no_more_is_left_too(store, kernels):
    device, made = kernels
    choices = [{"layer": "gone", "kernel": made["first", 1], "launch": {}, "us": 1.0, "overlap": False}]
    store.put_plan(device_id=device.id, network="net", median_us=1.0, spread_us=0.1, choices=choices, details={})
    assert plan_of(tune_network_plan(store, device, Device(VALLEYS), NETWORK), made) == (0, 0)


SIZED = {2: 9.0, 8: 20.0}
"""Batch size -> the time of its plan."""


def sized(n):
    """The same layers for a batch of n, with a key that tells it."""
    layers = [replace(layer, problem=with_batch(layer.problem, n)) for layer in NETWORK.layers]
    return Network(
        NetworkKey("net", n, (("dtype", "f32"),)),
        tuple(layers),
        (CallerTensor((n, 8, 4, 4), "f32"),),
        (CallerTensor((n, 8, 4, 4), "f32"),),
    )


@pytest.mark.parametrize(("n", "nearest"), [(1, 2), (2, 2), (3, 2), (4, 2), (5, 8), (8, 8), (9, 8), (100, 8)])
def test_other_batch_sizes_run_as_the_plan_that_bounds_their_time_best(store, kernels, n, nearest):
    """Three images take at most twice the plan for two, 18 us; five at most thrice that, or the other, 20."""
    device, made = kernels
    for number, (size, us) in enumerate(SIZED.items()):
        choices = [
            {"layer": name, "kernel": made[name, number], "launch": {}, "us": us / 2, "overlap": True}
            for name in LAYERS
        ]
        plan = {"network": sized(size).key, "median_us": us, "spread_us": 0.1, "choices": choices, "details": {}}
        store.put_plan(device_id=device.id, **plan)
        store.put_plan(device_id=device.id, **plan | {"network": f"other n={size} dtype=f32", "median_us": 1.0})
    layers, chosen = select(store, sized(n), torch.device("cpu"))
    assert [layer.problem.batch for layer in layers] == [n, n]
    numbers = {json.loads(choice.candidate.config)["number"] for choice in chosen.values()}
    assert [list(SIZED)[number] for number in numbers] == [nearest]
    tuned = n == nearest
    assert {(choice.source, choice.tuned_batch, choice.overlap) for choice in chosen.values()} == {
        ("tuned" if tuned else f"batch {nearest}", None if tuned else nearest, True)
    }


def test_layers_tuned_for_a_batch_go_before_the_plan_for_another(store, kernels):
    device, made = kernels
    choices = [{"layer": name, "kernel": made[name, 1], "launch": {}, "us": 1.0, "overlap": False} for name in LAYERS]
    store.put_plan(device_id=device.id, network=sized(8).key, median_us=1.0, spread_us=0.1, choices=choices, details={})
    assert select(store, sized(2), torch.device("cpu"))[1] == {}
    assert len(select(store, sized(3), torch.device("cpu"))[1]) == 2


@pytest.mark.parametrize(("n", "source"), [(2, "tuned on another"), (5, "batch 2 on another")])
def test_where_nothing_was_tuned_here_it_runs_as_on_another_device_with_the_same_code(store, n, source):
    target = device_target(torch.device("cpu"))
    kernel = store.put_kernel(
        {"family": "torch", "config": "{}", "dtype": "f32", "epilogue": "none", "target": "any", "source": ""},
        symbol="",
    )
    choices = [{"layer": name, "kernel": kernel.id, "launch": {}, "us": 1.0, "overlap": True} for name in LAYERS]
    for name, its in (("far", "sm_90"), ("another", target)):
        row = store.put_device(name, its, flops_per_us=1.0, bytes_per_us=1.0)
        plan = {"network": sized(2).key, "median_us": 9.0, "spread_us": 0.1, "choices": choices, "details": {}}
        store.put_plan(device_id=row.id, **plan)
    _, chosen = select(store, sized(n), torch.device("cpu"))
    assert {name: (choice.source, choice.overlap) for name, choice in chosen.items()} == dict.fromkeys(
        LAYERS, (source, True)
    )


class CountedDevice:
    """A device on which a plan takes 1 us for each layer."""

    def time_networks(self, network, plans, rounds):
        return [Result("ok", median_us=float(len(plan)), spread_us=0.1, samples_us=[1.0]) for plan in plans]


def test_alternatives_that_wait_for_each_other_are_not_taken_together(store):
    """Neither in a search, nor where no plan was tuned; each alone is faster than the layers that it replaces."""
    network = crossed_network()
    device = store.put_device(device_name(torch.device("cpu")), "cpu", flops_per_us=1.0, bytes_per_us=1.0)
    for problem in {layer.problem for layer in network.all_layers}:
        identity = {"family": "torch", "config": "{}", "dtype": "f16", "epilogue": str(problem.epilogue)}
        kernel = store.put_kernel(identity | {"target": "any", "source": ""}, symbol="")
        problem_id = store.put_problem(str(problem)).id
        store.put_measurement(
            device_id=device.id, problem_id=problem_id, kernel_id=kernel.id, status="ok", median_us=1.0, final=True
        )
    layers, chosen = select(store, network, torch.device("cpu"))
    assert len(layers) == 3 and not chosen
    row = tune_network_plan(store, device, CountedDevice(), network)
    assert row.median_us == 3.0 and len(row.details["alternatives"]) == 1


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


class DeviceWithTorch(Device):
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


def test_winners_that_do_not_run_together_are_reported(store, kernels):
    class Failing:
        def time_networks(self, network, plans, rounds):
            return [Result("crashed", "no memory")] * len(plans)

    said = []
    device, _ = kernels
    tune_network_plan(store, device, Failing(), NETWORK, tell=said.append)
    assert len(said) == 1 and said[0].endswith("do not run together: crashed: no memory")


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


# -- within a time limit -----------------------------------------------------------------------------------------------

DEEP, KINDS, KERNELS = 250, 40, 4
"""Layers of a deep network, the problems among them, and the kernels of each problem."""
SECONDS_PER_PLAN, SECONDS_PER_ROUND = 0.02, 0.002
"""Simulated seconds of binding and capturing a plan, and of one of its rounds."""


class SlowDevice:
    """A device with a clock: a layer takes the microseconds of its problem times the factor of its kernel."""

    def __init__(self, us, factors, ends=math.inf):
        self.us, self.factors, self.now, self.ends, self.requests = us, factors, 0.0, ends, []

    def clock(self):
        return self.now

    def time(self, plan):
        picks = [(pick.layer, json.loads(pick.candidate.config)["number"]) for pick in plan]
        return sum(self.us[int(name) % KINDS] * self.factors[int(name) % KINDS][number] for name, number in picks)

    def time_networks(self, network, plans, rounds):
        self.now += len(plans) * (SECONDS_PER_PLAN + rounds * SECONDS_PER_ROUND)
        if self.now > self.ends:
            raise OutOfTimeError("the end")
        self.requests.append(len(plans))
        return [Result("ok", median_us=us, spread_us=0.1, samples_us=[us]) for us in map(self.time, plans)]


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """A database with a network of DEEP layers, whose kernels are all equally fast alone; and a function that makes a
    device on which they are not."""
    draw = random.Random(1)
    problems = [parse(f"conv2d n=2 h=4 w=4 c={8 * (i + 1)} k=8 dtype=f32") for i in range(KINDS)]
    layers = tuple(
        Layer(
            f"{i}",
            problems[i % KINDS],
            {"x": f"b{i}" if i else INPUT, "y": f"b{i + 1}" if i < DEEP - 1 else OUTPUT},
            {"weight": f"{i}.weight"},
        )
        for i in range(DEEP)
    )
    us = [10.0 / (1 + i) for i in range(KINDS)]  # few problems take most of the time, as in a real network
    factors = [[1.0, *(draw.uniform(0.7, 1.3) for _ in range(KERNELS - 1))] for _ in range(KINDS)]
    path = tmp_path_factory.mktemp("deep") / "t.db"
    with Store.create(path) as store:
        device = store.put_device(device_name(torch.device("cpu")), "cpu", flops_per_us=1.0, bytes_per_us=1.0)
        for i, problem in enumerate(problems):
            for number in range(KERNELS):
                identity = {"family": "torch", "config": json.dumps({"number": number, "of": i}), "dtype": "f32"}
                row = store.put_kernel(identity | {"epilogue": "none", "target": "any", "source": ""}, symbol="")
                store.put_measurement(
                    device_id=device.id,
                    problem_id=store.put_problem(str(problem)).id,
                    kernel_id=row.id,
                    status="ok",
                    median_us=us[i] + number * 1e-6,
                )
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
