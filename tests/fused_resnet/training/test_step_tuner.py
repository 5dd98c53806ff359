"""The kernels of a training step, chosen inside the whole step. The times of steps are given: what is tested is what
follows from them."""

import copy
import shutil
import sqlite3
import statistics
from contextlib import closing

import pytest
import torch
from databases import renew_digests
from step_databases import tuned_step
from torch import nn
from training_networks import relative_error

from autotune.core import Deadline
from autotune.ir import NetworkKey, parse
from autotune.runtime import candidate
from fused_resnet.training import Winners, step_problems
from fused_resnet.training.kernels.bound_problem import bound, counted_calls
from fused_resnet.training.kernels.step_plans import StepPlans, step_key
from fused_resnet.training.kernels.winners import layout_of
from fused_resnet.training.step_tuner import tune_step_plan
from fused_resnet.training.trained_step import TrainedModule
from tuning_db import Store
from tuning_db.share.pack import pack

pytestmark = [
    pytest.mark.compile,
    pytest.mark.filterwarnings("ignore:a training step runs on torch's operators", "ignore:.*is not tuned"),
]
CPU = torch.device("cpu")
FORWARD = parse("conv2d n=2 h=9 w=9 c=8 k=16 r=3 s=3 pad=1 dtype=f32")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.Flatten()).train()


def images():
    return torch.randn(2, 8, 9, 9, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def several_db(tmp_path_factory):
    """Return a database with several kernels for each pass, which take the same time alone.

    Those for FORWARD that read the weight in a rarer layout take a longer time, and torch's operators the longest. No
    kernel counts as a finalist: which ones do depends on their measured times, and finalists rank first.
    """
    problems = step_problems(network(), [images()]).to_tune()
    path = tuned_step(tmp_path_factory.mktemp("several") / "several.db", problems, trials=6)
    with Store.create(path) as store:
        (device,) = store.devices()
        layouts = {
            row.kernel_id: layout_of(candidate(store, row.kernel, row.launch))
            for row in store.ranking(device, str(FORWARD))
            if row.kernel.family.startswith("cpu_")
        }
    common = statistics.mode(layouts.values())
    rarer = [(number,) for number, layout in layouts.items() if layout != common]
    with closing(sqlite3.connect(path)) as connection:
        ours = "kernel_id IN (SELECT id FROM kernel WHERE family LIKE 'cpu_%')"
        connection.execute(f"UPDATE measurement SET final = 0, median_us = CASE WHEN {ours} THEN 10 ELSE 1000 END")
        connection.executemany("UPDATE measurement SET median_us = 100 WHERE kernel_id = ?", rarer)
        connection.commit()
    renew_digests(path)
    return path


@pytest.fixture
def database(several_db, tmp_path):
    return str(shutil.copy(several_db, tmp_path / "step.db"))


def another_kernel(path):
    """Return a kernel for FORWARD that is not the first, and reads the weight in the same layout."""
    first, *others = [one.candidate for one in Winners(path).kernels(FORWARD, CPU)]
    return next(one for one in others if layout_of(one) == layout_of(first))


class GivenTimes:
    """Makes samplers whose time is the sum of the kernels' times; `faster` takes 1 us, and any other kernel 2 us."""

    def __init__(self, faster=None):
        self.faster, self.steps = faster, 0

    def __call__(self, step, kernels):
        step()
        self.steps += 1
        us = float(sum(1 if one.candidate == self.faster else 2 for one in kernels))
        return lambda: us


def tuned(path, sampling, until=None):
    problems = step_problems(network(), [images()]).to_tune().values()
    key = step_key("network", 2, "f32", problems)
    with Store.create(path) as store:
        (row,) = store.devices()
        given = {} if until is None else {"until": until}
        return tune_step_plan(store, path, row, TrainedModule(network(), (images(),)), key, sampling=sampling, **given)


def test_a_kernel_that_makes_the_step_faster_is_the_one_that_runs(database, tmp_path):
    wanted = another_kernel(database)
    plan = tuned(database, GivenTimes(wanted))
    assert plan.median_us < plan.details["alone_us"]
    assert Winners(database).kernels(FORWARD, CPU)[0].candidate == wanted

    packed = tmp_path / "packed.db"
    pack([database], packed, 3)
    torch._dynamo.reset()
    trained, x = network(), images()
    exact = copy.deepcopy(trained).double()
    step = torch.compile(trained, backend="autotune", options={"tuning_db": str(packed)})
    with counted_calls() as calls:
        step(x).square().sum().backward()
    exact(x.double()).square().sum().backward()
    (forward,) = [at for at in calls if at[0] == str(FORWARD)]
    assert bound(*forward).candidate == wanted
    for ours, theirs in zip(trained.parameters(), exact.parameters(), strict=True):
        assert relative_error(ours.grad, theirs.grad) < 1e-5


def test_without_a_faster_kernel_the_plan_has_those_that_are_the_fastest_alone(database):
    first = Winners(database).kernels(FORWARD, CPU)[0].candidate
    timer = GivenTimes()
    plan = tuned(database, timer)
    assert timer.steps > 2 and plan.median_us == plan.details["alone_us"]
    tuned(database, timer)
    with Store.create(database) as store:
        (row,) = store.devices()
        assert len(store.plans()) == 1, "a plan takes the place of the one before"
        assert StepPlans.read(store, row).kernels[str(FORWARD)] == first


def test_a_planned_kernel_that_is_far_slower_alone_by_now_does_not_run(database):
    wanted = another_kernel(database)
    tuned(database, GivenTimes(wanted))
    with closing(sqlite3.connect(database)) as connection:
        names = "SELECT id FROM kernel WHERE config = ? AND family LIKE 'cpu_%'"
        connection.execute("UPDATE measurement SET median_us = 1")
        connection.execute(f"UPDATE measurement SET median_us = 20 WHERE kernel_id IN ({names})", [wanted.config])
        connection.commit()
    renew_digests(database)
    assert Winners(database).kernels(FORWARD, CPU)[0].candidate != wanted


def test_kernels_that_were_tried_do_not_stay(database):
    class Ending(GivenTimes):
        def __call__(self, step, kernels):
            if self.steps:
                raise torch.OutOfMemoryError("out of memory")
            return super().__call__(step, kernels)

    with counted_calls() as calls, pytest.raises(torch.OutOfMemoryError):
        tuned(database, Ending())
    (forward,) = [at for at in calls if at[0] == str(FORWARD)]
    assert bound(*forward).candidate == Winners(database).kernels(FORWARD, CPU)[0].candidate


def test_a_model_may_have_a_name_of_several_words():
    key = step_key("my net", 2, "f32", [FORWARD])
    assert NetworkKey.parse(str(key)) == key


def test_an_ended_deadline_keeps_the_kernels(database):
    wanted = another_kernel(database)
    timer = GivenTimes(wanted)
    plan = tuned(database, timer, Deadline.after(-1))
    assert timer.steps == 1 and plan.median_us == plan.details["alone_us"]


def test_a_step_without_kernels_has_no_plan(database):
    with Store.create(database) as store:
        (row,) = store.devices()
        other = TrainedModule(nn.Sequential(nn.Linear(8, 4)).train(), (torch.randn(2, 8),))
        assert (
            tune_step_plan(store, database, row, other, step_key("other", 2, "f32", []), sampling=GivenTimes()) is None
        )
        assert not store.plans()
