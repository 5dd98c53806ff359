"""The kernels of a network for which no plan was tuned: at another batch size, or on another device."""

import json
from dataclasses import replace

import pytest
import torch
from two_layer_network import LAYERS, NETWORK

from autotune.core import device_target
from autotune.ir import CallerTensor, Network, NetworkKey, with_batch
from autotune.runtime.selection import choices, rankings, select

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
    assert {(choice.source, choice.tuned_for.batch, choice.overlap) for choice in chosen.values()} == {
        ("tuned" if tuned else f"batch {nearest}", nearest, True)
    }


def test_layers_tuned_for_a_batch_go_before_the_plan_for_another(store, kernels):
    device, made = kernels
    choices = [{"layer": name, "kernel": made[name, 1], "launch": {}, "us": 1.0, "overlap": False} for name in LAYERS]
    store.put_plan(device_id=device.id, network=sized(8).key, median_us=1.0, spread_us=0.1, choices=choices, details={})
    assert select(store, sized(2), torch.device("cpu"))[1] == {}
    assert len(select(store, sized(3), torch.device("cpu"))[1]) == 2


def test_a_ranking_has_the_candidates_that_a_network_tries(store, kernels):
    problem, cpu = NETWORK.layers[0].problem, torch.device("cpu")
    (ranking,) = rankings(store, problem, cpu)
    tuned = [one for one in choices(store, problem, cpu) if one.source == "tuned"]
    assert list(ranking.choices) == tuned and 1 < len(tuned) <= len(ranking.timed)
    assert ranking.best_us == min(row.median_us for row in ranking.timed)
    assert [list(one.timed) for one in rankings(store, with_batch(problem, 77), cpu)] == [[]]


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
