"""A training step on a CPU runs as the comparison of the whole step says."""

import copy
import os
import shutil
import subprocess
import sys
import time
import warnings

import pytest
import torch
from repository import ROOT
from torch import nn
from training_networks import Normed, Small, images, relative_error

from autotune.core import Deadline, device_name
from autotune.libraries import inductor
from autotune.measure.resources import IGNORE
from fused_resnet import FusedResNet, explain_step
from fused_resnet.training import Winners, graph_problems, known_faster_way, step_problems
from fused_resnet.training.kernels.bound_problem import counted_calls
from fused_resnet.training.kernels.step_plans import EAGER, INDUCTOR, StepPlans, faster_way, step_key
from fused_resnet.training.step_comparison import compare_step, compared_text
from fused_resnet.training.trained_step import TrainedModule
from tuning_db import Store

pytestmark = [
    pytest.mark.compile,
    pytest.mark.filterwarnings("ignore:a training step runs on torch's operators", "ignore:.*is not tuned"),
]
CPU = torch.device("cpu")


@pytest.fixture
def database(step_db, tmp_path, monkeypatch):
    """Return a database of `Small`; Inductor compiles nothing."""
    monkeypatch.setenv(inductor.SWITCH, "0")
    return str(shutil.copy(step_db, tmp_path / "step.db"))


def network():
    torch.manual_seed(0)
    return Small().train()


def key(name="any name"):
    return step_key(name, 2, "f32", step_problems(network(), [images()]).of_layers)


def put_plan(path, ours, device="", **torch_us):
    """Record a step's times; device: the name of another one."""
    with Store.create(path) as store:
        own = store.device(device_name(CPU))
        row = store.put_device(device, own.target, flops_per_us=1.0, bytes_per_us=1.0) if device else own
        details = {"torch_us": torch_us, "alone_us": ours, "alternatives": []}
        store.put_plan(device_id=row.id, network=str(key()), median_us=ours, spread_us=0.0, choices=[], details=details)


def as_backend(trained, path):
    return torch.compile(trained, backend="autotune", options={"tuning_db": path})


def as_fused_resnet(trained, path):
    fused = FusedResNet.from_model(trained.eval(), path)
    return fused.train()


def kernel_calls(path, build=as_backend, x=None):
    """Return how often a step calls kernels; its gradients are compared with those of torch's operators."""
    trained, x = network(), images() if x is None else x
    exact = copy.deepcopy(trained).double()
    step = build(trained, path)
    with counted_calls() as calls:
        step(x).square().sum().backward()
    exact(x.double()).square().sum().backward()
    found = step if isinstance(step, FusedResNet) else trained
    for (name, ours), theirs in zip(found.named_parameters(), exact.parameters(), strict=True):
        if name != "stem.bias":  # batch norm removes it: its gradient is 0
            assert relative_error(ours.grad, theirs.grad) < 1e-5, name
    return sum(calls.values())


@pytest.mark.parametrize("build", [as_backend, as_fused_resnet])
def test_a_step_that_is_faster_on_torch_runs_there(database, build):
    assert kernel_calls(database, build) > 0
    torch._dynamo.reset()
    put_plan(database, ours=100.0, eager=70.0, inductor=90.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernel_calls(database, build) == 0


@pytest.mark.parametrize("build", [as_backend, as_fused_resnet])
def test_a_step_that_is_faster_on_our_kernels_runs_on_them(database, build):
    put_plan(database, ours=100.0, eager=99.0, inductor=120.0)
    assert kernel_calls(database, build) > 0


def test_the_gradients_on_torch_are_those_of_eager_torch(database):
    put_plan(database, ours=100.0, eager=70.0)
    trained = network()
    eager, x = copy.deepcopy(trained), images()
    as_backend(trained, database)(x).square().sum().backward()
    eager(x).square().sum().backward()
    for ours, theirs in zip(trained.parameters(), eager.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_a_step_with_its_loss_is_the_same_step(database):
    put_plan(database, ours=100.0, eager=70.0)
    trained = network()
    step = torch.compile(lambda x: trained(x).square().sum(), backend="autotune", options={"tuning_db": database})
    with counted_calls() as calls:
        step(images()).backward()
    assert not calls


def test_times_of_other_devices_and_batches_say_nothing(database):
    put_plan(database, ours=100.0, device="another CPU", eager=70.0)
    assert kernel_calls(database) > 0
    assert not Winners(database).faster_ways(CPU, is_compiled=True)
    put_plan(database, ours=100.0, eager=70.0)
    winners = Winners(database)
    (digest,) = winners.faster_ways(CPU, is_compiled=True)
    other = step_key("any name", 3, "f32", step_problems(network(), [images(3)]).of_layers)
    assert other.digest != digest == key("another name").digest


def test_inductor_runs_a_step_only_where_it_compiles(database):
    put_plan(database, ours=100.0, eager=90.0, inductor=50.0)
    ways = [Winners(database).faster_ways(CPU, is_compiled=one) for one in (True, False)]
    assert [list(one.values()) for one in ways] == [[INDUCTOR], [EAGER]]
    put_plan(database, ours=100.0, eager=110.0, inductor=50.0)
    assert not Winners(database).faster_ways(CPU, is_compiled=False)


def test_the_newest_plan_counts(database):
    put_plan(database, ours=100.0, eager=50.0)
    put_plan(database, ours=40.0, eager=50.0)
    assert not Winners(database).faster_ways(CPU, is_compiled=True)


@pytest.mark.parametrize("kind", [Small, Normed])
def test_a_graph_has_the_problems_of_the_module(kind):
    module, found = kind().train(), []

    def backend(graph, examples):
        found.append(graph_problems(graph, examples).of_layers)
        return graph.forward

    torch.compile(module, backend=backend)(images())
    assert sorted(map(str, found[0])) == sorted(map(str, step_problems(module, [images()]).of_layers))


def compared(path, until=None):
    with Store.create(path) as store:
        row = store.device(device_name(CPU))
        trained = TrainedModule(network(), (images(),))
        given = {} if until is None else {"until": until}
        plan = compare_step(store, path, row, trained, key(), **given)
        return plan, StepPlans.read(store, row).faster_ways(is_compiled=True)


def test_a_comparison_records_our_time_and_torchs(database):
    plan, ways = compared(database)
    assert plan.median_us > 0 and plan.details["torch_us"].keys() == {EAGER}
    assert len(plan.details["samples_us"]) > 1 and plan.choices
    slower = plan.median_us > 1.02 * plan.details["torch_us"][EAGER]
    assert ways == ({key().digest: EAGER} if slower else {})
    compared(database)
    with Store.create(database) as store:
        assert len(store.plans()) == 1, "a plan takes the place of the one before"


def test_an_ended_deadline_compares_in_few_rounds(database):
    plan, _ = compared(database, Deadline(time.monotonic()))
    assert len(plan.details["samples_us"]) == 5


def test_inductors_time_is_not_lost_to_a_run_that_does_not_compare_it(database):
    put_plan(database, ours=9.0, eager=8.0, inductor=1e-3)
    plan, ways = compared(database)
    assert plan.median_us == 9.0 and ways == {key().digest: INDUCTOR}
    put_plan(database, ours=1e9, eager=1e9, inductor=1e8)
    plan, _ = compared(database)
    assert INDUCTOR not in plan.details["torch_us"]


def test_a_step_without_kernels_is_compared(database):
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Linear(8, 4)).train()
    with Store.create(database) as store:
        row = store.device(device_name(CPU))
        trained = TrainedModule(linear, (torch.randn(2, 8),))
        plan = compare_step(store, database, row, trained, step_key("linear", 2, "f32", []))
    assert not plan.choices and plan.details["torch_us"][EAGER] > 0


def test_the_explanation_of_a_step_that_torch_runs_has_no_kernels(database):
    assert explain_step(network(), images(), tuning_db=database).num_on_kernels > 0
    put_plan(database, ours=100.0, eager=70.0)
    found = explain_step(network(), images(), tuning_db=database)
    assert found.num_on_kernels == 0 and len(found) > 0
    assert "eager torch" in " ".join(str(found).split())


TUNED_BY_THE_BACKEND = """
import sys

import torch
from torch import nn

from fused_resnet.training.kernels.bound_problem import counted_calls

torch.manual_seed(0)
step = torch.compile(
    nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 64, 2)),
    backend="autotune",
    dynamic=False,
    options={"tuning_db": sys.argv[1], "tune": "missing", "budget": "10m"},
)
x = torch.randn(2, 3, 10, 10)
step(x)  # tunes and compares, for which our kernels run, too
with counted_calls() as calls:
    nn.functional.cross_entropy(step(x), torch.tensor([0, 1])).backward()
print(sum(calls.values()), all(one.grad.isfinite().all() for one in step.parameters()))
"""


@pytest.mark.process
def test_the_backend_compares_the_step_that_it_has_tuned_and_other_processes_know(tmp_path):
    """The command line finds the comparison of the backend, too: both know a step by its problems."""
    path = tmp_path / "new.db"
    environment = {
        **os.environ,
        inductor.SWITCH: "0",
        IGNORE: "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    program = [sys.executable, "-c", TUNED_BY_THE_BACKEND, str(path)]
    plans, said = [], []
    for _ in range(2):
        done = subprocess.run(program, check=True, capture_output=True, text=True, cwd=ROOT, env=environment)
        said.append(done.stderr)
        with Store.open(path) as store:
            (plan,) = store.plans()
            plans.append((plan.id, plan.median_us, plan.details["torch_us"]))
            way = faster_way(plan)
        calls, is_finite = done.stdout.split()
        assert is_finite == "True" and (int(calls) == 0 if way == EAGER else way is None)
    assert plans[0] == plans[1] and plans[0][2].keys() == {EAGER}
    assert "autotune: tuning" in said[0] and f"a training step: {compared_text(plan)}" in said[0]
    assert "autotune" not in said[1]
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 64, 2))
    found = step_problems(module, [torch.randn(2, 3, 10, 10)])
    assert known_faster_way(found, Winners(str(path)), CPU) == way
