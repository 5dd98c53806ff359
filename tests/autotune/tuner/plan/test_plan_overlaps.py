"""Which kernels of a plan overlap the one before them, on a device for which a table gives the time of each choice."""

import json

import pytest
from databases import LIBRARY, identity, put_device, put_time
from two_layer_network import LAYERS, NETWORK, PROBLEM

from autotune.ir import parse
from autotune.measure import Result
from autotune.tuner.plan.network_tuner import tune_network_plan

NONE, FIRST, SECOND, BOTH = (False, False), (True, False), (False, True), (True, True)


class OverlapDevice:
    """Stands for the worker: us says how long the network takes, by which layers overlap the one before them."""

    def __init__(self, us):
        self.us, self.timed = us, []

    def time_networks(self, network, plans, rounds):
        ways = [tuple(one.overlap for one in plan) for plan in plans]
        self.timed += ways
        return [Result("ok", median_us=self.us[way], spread_us=0.1, samples_us=[self.us[way]]) for way in ways]


@pytest.fixture
def native(store):
    """A device, and the ids of a kernel of our own for each layer."""
    device, library = put_device(store), store.put_library(b"image", compiler="c", **LIBRARY)
    made = {}
    for name, c in LAYERS.items():
        made[name] = store.put_kernel(identity(json.dumps({"c": c})), symbol=name, library_id=library.id).id
        put_time(store, device, parse(PROBLEM.format(c=c)), made[name], 1.0, final=True)
    return device, made


def save(store, device, made, overlaps):
    choices = [
        {"layer": name, "kernel": made[name], "launch": {}, "us": 1.0, "overlap": overlap}
        for name, overlap in zip(LAYERS, overlaps, strict=True)
    ]
    store.put_plan(device_id=device.id, network=NETWORK.key, median_us=10.0, spread_us=0.1, choices=choices, details={})


def overlaps_of(row):
    return tuple(choice["overlap"] for choice in row.choices)


@pytest.mark.parametrize("saved", [None, NONE])
def test_a_search_begins_with_all_overlaps(store, native, saved):
    """From none no single overlap helps."""
    device, made = native
    if saved:
        save(store, device, made, saved)
    row = tune_network_plan(store, device, OverlapDevice({NONE: 10.0, FIRST: 11.0, SECOND: 11.0, BOTH: 8.0}), NETWORK)
    assert overlaps_of(row) == BOTH and row.median_us == 8.0


def test_an_overlap_that_costs_time_is_given_up(store, native):
    device, _ = native
    row = tune_network_plan(store, device, OverlapDevice({NONE: 9.0, FIRST: 7.0, SECOND: 9.5, BOTH: 8.0}), NETWORK)
    assert overlaps_of(row) == FIRST


def test_the_plan_in_use_keeps_its_own_overlaps_if_it_is_faster_so(store, native):
    """From all overlaps no single change helps."""
    device, made = native
    save(store, device, made, NONE)
    row = tune_network_plan(store, device, OverlapDevice({NONE: 7.0, FIRST: 11.0, SECOND: 11.0, BOTH: 8.0}), NETWORK)
    assert overlaps_of(row) == NONE and row.median_us == 7.0


def test_without_a_search_nothing_overlaps(store, native):
    device, _ = native
    worker = OverlapDevice(dict.fromkeys((NONE, FIRST, SECOND, BOTH), 1.0))
    assert overlaps_of(tune_network_plan(store, device, worker, NETWORK, descend=False)) == NONE
    assert set(worker.timed) == {NONE}
