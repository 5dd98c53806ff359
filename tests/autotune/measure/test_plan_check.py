"""Checks of whole plans: right ones, overlapping activations, and layers that read what nobody wrote."""

import math
from dataclasses import replace

import pytest
import torch
from architectures import ARCHITECTURES, images, random_model
from comparison import relative_error as independent_error
from torch import nn

from autotune.ir import CallerTensor, Layer, Network, NetworkKey, digest, parse
from autotune.measure import (
    Reference,
    Result,
    check_plan,
    relative_error,
    seeded_inputs,
    seeded_state,
    time_plan,
    why_not_comparable,
)
from autotune.runtime import ExecutionContext, NetworkPlan
from fused_resnet.call import module_state
from fused_resnet.capture import capture
from tuning_db import open_reader

CPU = torch.device("cpu")
SHAPE = "n=2 h=4 w=4 c=8 dtype=f32"


def crossed():
    """y = relu(x) + tanh(sigmoid(x)): two activations are alive at the same time."""
    problems = {
        "relu": ("relu", {"x": "input", "y": "a"}),
        "sigmoid": ("sigmoid", {"x": "input", "y": "b"}),
        "tanh": ("tanh", {"x": "b", "y": "c"}),
        "sum": ("add", {"x": "a", "add0": "c", "y": "output"}),
    }
    layers = tuple(
        Layer(name, parse(f"elementwise {SHAPE} epilogue={step}"), buffers)
        for name, (step, buffers) in problems.items()
    )
    tensor = CallerTensor((2, 8, 4, 4), "f32")
    return Network(NetworkKey("crossed", 2, (("dtype", "f32"),), digest(layers)), layers, (tensor,), (tensor,))


def bound(network, database, state):
    with open_reader(database) as store:
        return NetworkPlan(network, state, store, CPU, graph=True)


@pytest.fixture
def plan(empty_db):
    return bound(crossed(), empty_db, {})


def checked(plan, state=None, given=None):
    network = plan.network
    state = seeded_state(network, CPU, 0) if state is None else state
    return check_plan(plan, state, seeded_inputs(network, CPU, 1), given)


def test_a_right_plan(plan):
    found = checked(plan)
    assert (found.status, found.reason, found.faults) == ("right", "", ())
    assert 0 <= found.error < 1e-6 and 0 <= found.eager_error < 1e-6


def test_activations_that_overlap_are_found_and_no_layer_is_blamed(plan):
    assert len(plan.arena.offsets) == 3
    plan.arena = replace(plan.arena, offsets=dict.fromkeys(plan.arena.offsets, 0))
    found = checked(plan)
    assert found.status == "wrong" and not found.faults and found.error > 0.1
    assert "each layer alone is right: order or memory plan" in found.reason


def test_so_is_a_wrong_order(plan):
    plan.bound = [plan.bound[i] for i in (0, 2, 1, 3)]
    found = check_plan(plan, {}, seeded_inputs(plan.network, CPU, 1), Reference([torch.ones(2, 8, 4, 4)], 0.0))
    assert found.status in ("wrong", "failed")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_random_values_of_any_network_are_finite_and_depend_on_the_input(name, empty_db):
    network = capture(ARCHITECTURES[name]().eval(), (2, 3, 32, 32), "f32").without_whole
    state = seeded_state(network, CPU, 0)
    plan = bound(network, empty_db, state)
    found = checked(plan, state)
    assert found.status == "right", found.reason
    assert 0 < found.eager_error < 1e-4
    assert all(bool(torch.isfinite(value).all()) for value in state.values())
    other = check_plan(plan, state, seeded_inputs(network, CPU, 2))
    assert other.status == "right" and other.error != found.error


class Residuals(nn.Module):
    """60 blocks of two convolutions, whose sum with the input of the block goes through a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)) for _ in range(60)
        )

    def forward(self, x):
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return x


def test_random_values_of_a_deep_residual_network_stay_in_the_range_of_float16(empty_db):
    network = capture(Residuals().eval(), (2, 8, 16, 16), "f32").without_whole
    state = seeded_state(network, CPU, 0)
    x = seeded_inputs(network, CPU, 1)[0]
    y = torch.empty(2, 8, 16, 16).contiguous(memory_format=torch.channels_last)
    plan = bound(network, empty_db, state)
    ExecutionContext(plan, graph=False).run([x], [y], 0)
    assert 0.5 < y.square().mean().sqrt() / x.square().mean().sqrt() < 20


def test_a_models_own_result_is_the_reference(empty_db):
    model, x = random_model(ARCHITECTURES["basic"]()), images(2)
    network = capture(model, tuple(x.shape), "f32").without_whole
    plan = bound(network, empty_db, module_state(model))
    with torch.no_grad():
        exact = model.double()(x.double())
    right = check_plan(plan, module_state(model.float()), [x], Reference([exact], 1e-6))
    assert right.status == "right" and right.error < 1e-5
    far = check_plan(plan, module_state(model), [x], Reference([exact * 1.01], 1e-6))
    assert far.status == "wrong" and far.error == pytest.approx(0.0099, rel=0.01)
    nothing = check_plan(plan, module_state(model), [x], Reference([exact * math.nan], 1e-6))
    assert nothing.status == "not checked" and "not finite" in nothing.reason


def test_the_relative_error_is_that_of_float64():
    a, b = torch.randn(2, 50, generator=torch.Generator().manual_seed(0)).double()
    assert relative_error([a, b], [b, b]) == pytest.approx(independent_error(a, b))
    assert relative_error([a * math.nan], [a]) == math.inf


def test_time_is_comparable_only_where_nothing_slowed_the_device(plan):
    result = time_plan(plan, 3)
    assert result.status == "ok" and result.median_us > 0 and len(result.samples_us) == 3
    clean = Result("ok", median_us=1.0, samples_us=[1.0] * 3)
    assert why_not_comparable(clean, {}, CPU) == ""
    assert "when the plan was recorded" in why_not_comparable(clean, {"throttled": 4}, CPU)
    slow = replace(clean, details={"throttled": 2})
    assert "slowed down in 2 of 3 rounds" in why_not_comparable(slow, {}, CPU)
