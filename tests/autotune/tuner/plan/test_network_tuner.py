"""The choice of a plan inside the network, on a device for which a table gives the time of each plan."""

import itertools
import json
from dataclasses import replace

import pytest
import seed_network
import torch
from crossed_network import crossed_network
from databases import put_cpu, put_time, put_torch_kernel, with_wrong_kernel
from processes import TUNED_BATCH
from two_layer_network import LAYERS, NETWORK, VALLEYS, TableDevice

from autotune.core import Deadline, device_name
from autotune.ir import INPUT, OUTPUT, Network, NetworkKey, with_batch
from autotune.libraries.cudnn_names import FAMILY, KIND
from autotune.measure import Result, Worker
from autotune.runtime.selection import select
from autotune.tuner.plan.copied_plans import CopiedPlan
from autotune.tuner.plan.network_tuner import record_copied_plan, tune_network_plan
from tuning_db import Store


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


def test_from_the_winners_it_goes_where_no_single_change_helps(store, kernels):
    device, made = kernels
    assert plan_of(tune_network_plan(store, device, TableDevice(VALLEYS), NETWORK), made) == (0, 0)
    hill = VALLEYS | {(0, 1): 9.0}
    assert plan_of(tune_network_plan(store, device, TableDevice(hill), NETWORK), made) == (1, 1)


@pytest.mark.parametrize("saved", [(1, 1), (0, 1)])
def test_and_from_the_plan_that_the_database_has(store, kernels, saved):
    device, made = kernels
    save(store, device, made, saved)
    row = tune_network_plan(store, device, TableDevice(VALLEYS), NETWORK)
    assert plan_of(row, made) == (1, 1) and row.median_us == 8.0
    assert store.plan(device, NETWORK.key).id == row.id


@pytest.mark.parametrize("first", [0, 1])
def test_or_else_from_a_plan_that_was_copied_as_far_as_its_kernels_are_known(store, kernels, first):
    device, made = kernels
    copied = CopiedPlan(choices_of(made, (1, 1))[first:], {}, 1.0)
    row = tune_network_plan(store, device, TableDevice(VALLEYS), NETWORK, copied=copied)
    assert plan_of(row, made) == (1, 1) and row.median_us == 8.0


class SmallDevice(TableDevice):
    """A device whose memory suffices for one plan at a time."""

    def time_networks(self, network, plans, rounds):
        if len(plans) > 1:
            return [Result("crashed", "out of memory")] * len(plans)
        return super().time_networks(network, plans, rounds)


def test_plans_that_do_not_run_together_are_timed_one_by_one(store, kernels):
    device, made = kernels
    copied = CopiedPlan(choices_of(made, (1, 1)), {}, 1.0)
    row = tune_network_plan(store, device, SmallDevice(VALLEYS), NETWORK, copied=copied)
    assert plan_of(row, made) == (1, 1) and row.details["alone_us"] == VALLEYS[0, 0]


def test_a_copied_plan_that_does_not_run_is_reported(store, kernels):
    device, made = kernels
    copied, told = CopiedPlan(choices_of(made, (1, 1)), {}, 1.0), []

    class Broken(TableDevice):
        def time_networks(self, network, plans, rounds):
            return [Result("crashed", "out of memory")]

    assert record_copied_plan(store, device, Broken(VALLEYS), NETWORK, copied, tell=told.append) is None
    assert len(told) == 1 and "out of memory" in told[0] and store.plan(device, NETWORK.key) is None


@pytest.mark.parametrize("second_us", [2.0, 9.0])
def test_a_copied_plan_is_recorded_before_the_search_and_the_search_begins_there(store, kernels, second_us):
    device, made = kernels
    us = {(0, 0): 3.0, (0, 1): second_us, (1, 0): 11.0, (1, 1): 8.0}
    copied = CopiedPlan(choices_of(made, (1, 1)), {}, 1.0)
    row = record_copied_plan(store, device, TableDevice(us), NETWORK, copied)
    assert plan_of(row, made) == (1, 1) and store.plan(device, NETWORK.key).median_us == 8.0
    row = tune_network_plan(store, device, TableDevice(us), NETWORK, copied=copied)
    assert row.median_us == min(us.values()) and store.plan(device, NETWORK.key).id == row.id


def test_a_copied_plan_for_which_there_is_no_time_is_not_recorded(store, kernels):
    device, made = kernels
    copied = CopiedPlan(choices_of(made, (1, 1)), {}, 1.0)
    assert record_copied_plan(store, device, TableDevice(VALLEYS), NETWORK, copied, Deadline(0.0)) is None
    assert store.plan(device, NETWORK.key) is None


def test_or_else_from_the_plan_for_other_batch_batch_size(store, kernels):
    device, made = kernels
    network = replace(NETWORK, identity=NetworkKey("net", 2, (("dtype", "f32"),)))
    save(store, device, made, (1, 1), network.with_batch(8))
    row = tune_network_plan(store, device, TableDevice(VALLEYS), network)
    assert plan_of(row, made) == (1, 1) and row.network == network.key
    assert [choice["us"] for choice in row.choices] == [2.0, 2.0]  # as they were measured for this batch size


def test_a_plan_of_cudnn_for_another_batch_size_is_left_out(store, kernels):
    device, made = kernels
    network = replace(NETWORK, identity=NetworkKey("net", 2, (("dtype", "f32"),)))
    library = store.put_library(b"a plan", kind=KIND, target="any", compiler="", flags="", cutlass="", abi_version=0)
    identity = {"family": FAMILY, "config": json.dumps({"number": 7}), "dtype": "f32", "epilogue": "none"}
    there = str(with_batch(NETWORK.layers[0].problem, 8))
    plan = store.put_kernel(identity | {"target": "any", "source": ""}, symbol=there, library_id=library.id)
    save(store, device, made | {("first", 7): plan.id}, (7, 1), network.with_batch(8))
    row = tune_network_plan(store, device, TableDevice(VALLEYS | {(0, 1): 7.0}), network)  # which has no number 7
    assert plan_of(row, made) == (0, 1) and row.median_us == 7.0


def test_a_kernel_of_the_plan_in_use_is_tried_in_all_layers_of_its_problem(store, kernels):
    """Also one that is not among the fastest kernels alone, or was not timed alone at all."""
    device, made = kernels
    first, _ = NETWORK.layers
    layers = (first, replace(first, name="again", buffers={"x": "between", "y": OUTPUT}))
    twins = replace(NETWORK, identity=NetworkKey("twins"), layers=layers)
    other = put_torch_kernel(store, json.dumps({"number": 7, "c": 8}))
    choices = [
        {"layer": layer.name, "kernel": kernel, "launch": {}, "us": 1.0, "overlap": False}
        for layer, kernel in zip(layers, (other, made["first", 0]), strict=True)
    ]
    store.put_plan(device_id=device.id, network=twins.key, median_us=9.0, spread_us=0.1, choices=choices, details={})
    us = dict.fromkeys(itertools.product((0, 1, 7), repeat=2), 10.0) | {(7, 0): 9.0, (7, 7): 8.0}
    row = tune_network_plan(store, device, TableDevice(us), twins)
    assert row.median_us == 8.0 and [choice["kernel"] for choice in row.choices] == [other, other]


def test_a_kernel_that_is_wrong_at_this_batch_size_is_left_out(tuned_db, tmp_path):
    """The plan of another batch size names it; it was right there, or so the database says."""
    path, wrong, _ = with_wrong_kernel(tuned_db, tmp_path)
    with Store.create(path) as store, Worker("cpu") as worker:
        device = store.device(device_name(torch.device("cpu")))
        there, here = (seed_network.network(n) for n in (TUNED_BATCH, TUNED_BATCH + 1))
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


class Branches(TableDevice):
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
    assert plan_of(tune_network_plan(store, device, TableDevice(slower), NETWORK), made) == (0, 0)


def test_a_plan_of_layers_that_are_no_more_is_left_too(store, kernels):
    device, made = kernels
    choices = [{"layer": "gone", "kernel": made["first", 1], "launch": {}, "us": 1.0, "overlap": False}]
    store.put_plan(device_id=device.id, network="net", median_us=1.0, spread_us=0.1, choices=choices, details={})
    assert plan_of(tune_network_plan(store, device, TableDevice(VALLEYS), NETWORK), made) == (0, 0)


class CountedDevice:
    """A device on which a plan takes 1 us for each layer."""

    def time_networks(self, network, plans, rounds):
        return [Result("ok", median_us=float(len(plan)), spread_us=0.1, samples_us=[1.0]) for plan in plans]


def test_alternatives_that_wait_for_each_other_are_not_taken_together(store):
    """Neither in a search, nor where no plan was tuned; each alone is faster than the layers that it replaces."""
    network = crossed_network()
    device = put_cpu(store)
    for problem in {layer.problem for layer in network.all_layers}:
        kernel = put_torch_kernel(store, "{}", dtype="f16", epilogue=str(problem.epilogue))
        put_time(store, device, problem, kernel, final=True)
    layers, chosen = select(store, network, torch.device("cpu"))
    assert len(layers) == 3 and not chosen
    row = tune_network_plan(store, device, CountedDevice(), network)
    assert row.median_us == 3.0 and len(row.details["alternatives"]) == 1


def test_winners_that_do_not_run_together_are_reported(store, kernels):
    class Failing:
        def time_networks(self, network, plans, rounds):
            return [Result("crashed", "no memory")] * len(plans)

    said = []
    device, _ = kernels
    tune_network_plan(store, device, Failing(), NETWORK, tell=said.append)
    assert len(said) == 1 and said[0].endswith("do not run together: crashed: no memory")
