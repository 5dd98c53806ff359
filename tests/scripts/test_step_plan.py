"""The end of a tune of a training step on a CPU: the whole step is compared with torch, and the result is printed."""

import io

import pytest
import torch
from rich.console import Console
from torch import nn

from autotune.core import NEVER, device_name
from autotune.libraries import inductor
from autotune_cli.models import Model
from autotune_cli.step_plan import settle
from autotune_cli.step_request import StepRequest
from fused_resnet.training import Winners, step_problems
from fused_resnet.training.kernels.step_plans import EAGER, step_digest
from fused_resnet.training.step_comparison import compared_text
from tuning_db import Store
from tuning_db.schema import PlanRow

CPU = torch.device("cpu")


def request(module):
    model = Model("two words", (3, 8, 8), module)
    named = list(model.step_problems(2, "f32").items())
    return StepRequest("two words", "a step", named, is_step=True, model=model, batch=2, dtype="f32", precision=None)


@pytest.mark.filterwarnings("ignore:a training step runs on torch's operators")
def test_a_step_is_compared_and_the_line_names_what_runs_it(tmp_path, monkeypatch):
    """The database has no kernels, so that the step runs on torch's operators in both ways."""
    monkeypatch.setenv(inductor.SWITCH, "0")
    torch.manual_seed(0)
    module, path = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval(), tmp_path / "a.db"
    printed = io.StringIO()
    with Store.create(path) as store:
        row = store.put_device(device_name(CPU), "x86-64-v3", flops_per_us=1e6, bytes_per_us=1e5)
        settle(Console(file=printed, width=300), store, str(path), request(module), CPU, NEVER)
        (plan,) = store.plans()
        assert plan.device_id == row.id and not module.training
    (line,) = printed.getvalue().splitlines()
    assert line == f"a step: {compared_text(plan)}"
    assert f"{plan.median_us:.1f} us" in line and f"({plan.details['torch_us'][EAGER]:.1f} us)" in line
    runs_eagerly = line.endswith("eager torch runs the step")
    assert runs_eagerly or line.endswith("these kernels run the step")
    digest = step_digest(step_problems(module.train(), [torch.empty(2, 3, 8, 8)]).of_layers)
    assert (digest in Winners(str(path)).faster_ways(CPU, is_compiled=False)) == runs_eagerly


@pytest.mark.parametrize(
    ("ours", "torch_us", "text"),
    [
        (
            100.0,
            {"eager": 50.0, "inductor": 80.0},
            "100.0 us on the kernels of the database, 2.00x slower than eager torch (50.0 us), 1.25x slower than "
            "torch.compile (80.0 us); eager torch runs the step",
        ),
        (
            100.0,
            {"eager": 150.0, "inductor": 90.0},
            "100.0 us on the kernels of the database, 1.50x faster than eager torch (150.0 us), 1.11x slower than "
            "torch.compile (90.0 us); torch.compile runs the step",
        ),
        (
            100.0,
            {"eager": 99.0},
            "100.0 us on the kernels of the database, 1.01x slower than eager torch (99.0 us), not compared with "
            "torch.compile; these kernels run the step",
        ),
    ],
)
def test_the_line_of_a_step(ours, torch_us, text):
    assert compared_text(PlanRow(median_us=ours, details={"torch_us": torch_us})) == text
