"""A training step on the GPU's kernels: all gradients against float32, and the same bits in each step."""

import copy

import pytest
import torch
from training_networks import Gated, Normed, Small, images, relative_error

from autotune.core import device_name
from fused_resnet.compile_backend import autotune
from fused_resnet.training import step_problems
from fused_resnet.training.kernels import bound_problem
from fused_resnet.training.kernels.step_plans import StepPlans, step_key
from fused_resnet.training.step_tuner import tune_step_plan
from fused_resnet.training.trained_step import TrainedModule
from fused_resnet.tuning import TuneLimits, create, tune_step
from tuning_db import Store

pytestmark = [pytest.mark.gpu, pytest.mark.compile, pytest.mark.filterwarnings("ignore:of the")]
DTYPE = torch.float16


def batch():
    return images(8).cuda().contiguous(memory_format=torch.channels_last)


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("step") / "step.db")
    create(path)
    for kind in (Small, Normed, Gated):
        found = step_problems(kind().cuda(), [batch()], DTYPE).to_tune()
        assert tune_step(kind.__name__, found, torch.device("cuda"), path, TuneLimits(trials=4, budget="5m"))
    return path


def gradients(model, call, dtype):
    """Return the gradients of a step; dtype: that of autocast, None for float64."""
    x = batch().to(torch.float64 if dtype is None else torch.float32)
    with torch.autocast("cuda", dtype or DTYPE, enabled=dtype is not None):
        y = call(x)
    model.zero_grad()
    y.square().sum().backward()
    torch.cuda.synchronize()
    return {name: one.grad.clone() for name, one in model.named_parameters() if name != "stem.bias"}


def assert_as_exact_as_torch(ours, theirs, expected):
    for name, gradient in ours.items():
        limit = max(1.5 * relative_error(theirs[name], expected[name]), 1e-3)
        assert relative_error(gradient, expected[name]) < limit, name


@pytest.mark.parametrize("kind", [Small, Normed, Gated])
@pytest.mark.parametrize("inductor", ["0", "1"])
def test_gradients_are_as_exact_as_those_of_torch(database, monkeypatch, inductor, kind):
    monkeypatch.setenv("AUTOTUNE_INDUCTOR", inductor)
    torch._dynamo.reset()
    solved, run = [], bound_problem.BoundProblem.run
    monkeypatch.setattr(bound_problem.BoundProblem, "run", lambda *given: (solved.append(given[0]), run(*given))[1])
    torch.manual_seed(0)
    network = kind().cuda().to(memory_format=torch.channels_last)
    plain, exact = copy.deepcopy(network), copy.deepcopy(network).double()
    compiled = torch.compile(network, backend=autotune, dynamic=False, options={"tuning_db": database})

    expected, theirs = gradients(exact, exact, None), gradients(plain, plain, DTYPE)
    for _ in range(3):  # Inductor records CUDA graphs in the second step, and replays them in the third
        ours = gradients(network, compiled, DTYPE)
    assert_as_exact_as_torch(ours, theirs, expected)
    assert solved
    again = gradients(network, compiled, DTYPE)
    assert all(torch.equal(gradient, again[name]) for name, gradient in ours.items())


def test_a_steps_plan_runs_and_is_as_exact(database):
    torch._dynamo.reset()
    torch.manual_seed(0)
    network = Small().cuda().to(memory_format=torch.channels_last).train()
    plain, exact, x = copy.deepcopy(network), copy.deepcopy(network).double(), batch()
    key = step_key("Small", len(x), "f16", step_problems(network, [x], DTYPE).to_tune().values())
    with Store.create(database) as store:
        row = store.device(device_name(x.device))
        plan = tune_step_plan(store, database, row, TrainedModule(copy.deepcopy(network), (x,), DTYPE), key)
        assert plan.choices and set(StepPlans.read(store, row).kernels) == {one["layer"] for one in plan.choices}
    torch._dynamo.reset()
    compiled = torch.compile(network, backend=autotune, dynamic=False, options={"tuning_db": database})
    expected, theirs = gradients(exact, exact, None), gradients(plain, plain, DTYPE)
    assert_as_exact_as_torch(gradients(network, compiled, DTYPE), theirs, expected)
