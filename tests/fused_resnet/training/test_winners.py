"""Which kernels of a database compute the passes of a training step."""

import shutil
import sqlite3
from contextlib import closing

import pytest
import torch
from databases import renew_digests
from training_networks import Small, images

from autotune.libraries import inductor
from fused_resnet import FusedResNet
from fused_resnet.training import Winners, known_faster_way, step_problems
from fused_resnet.training.kernels import bound_problem
from tuning_db import Reader
from tuning_db.share.pack import pack

pytestmark = pytest.mark.compile


@pytest.fixture
def opened(monkeypatch):
    """Return the files that were opened for reading."""
    paths, init = [], Reader.__init__

    def noted(reader, path, *others):
        paths.append(str(path))
        init(reader, path, *others)

    monkeypatch.setattr(Reader, "__init__", noted)
    return paths


def torch_compile(path):
    return torch.compile(Small().train(), backend="autotune", options={"tuning_db": path})


def planned_module(path):
    return FusedResNet.from_model(Small().eval(), tuning_db=path).train()


@pytest.mark.filterwarnings("ignore:a training step runs on torch's operators")
@pytest.mark.parametrize("make", [torch_compile, planned_module])
def test_a_database_is_opened_once_for_both_passes_of_a_step(make, step_db, opened, solved, monkeypatch):
    monkeypatch.setenv(inductor.SWITCH, "0")
    monkeypatch.setattr(bound_problem, "_bound", {})  # what other tests have bound needs no database
    step = make(step_db)
    opened.clear()  # a FusedResNet checks its database when it is made
    for _ in range(2):
        step(images()).square().sum().backward()
    assert any(text.startswith("conv2d_wgrad ") for text in solved) and opened == [step_db]


def test_one_reader_answers_what_compiled_code_asks_for_too(step_db, opened, monkeypatch):
    """Inductor may have stored the code of a step, so that no graph is rewritten before kernels are bound."""
    monkeypatch.setattr(bound_problem, "_bound", {})
    winners, cpu, found = Winners(step_db), torch.device("cpu"), step_problems(Small(), [images()])
    known_faster_way(found, winners, cpu)
    assert all(winners.solutions(one, cpu) for one in found.named.values())
    bound_problem.use(winners)
    for problem in found.to_tune().values():
        scalars = (1e-5,) if problem.operator == "bn_statistics" else ()
        bound_problem.bound(str(problem), step_db, "", scalars, cpu)
    assert opened == [step_db]
    assert winners.renewed().trains(cpu) and opened == [step_db, step_db]


def test_times_of_a_device_whose_code_does_not_run_here_set_no_limit(step_db, tmp_path):
    path = str(shutil.copy(step_db, tmp_path / "other.db"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO device SELECT 1000, 'a GPU', 'sm_90', 1, 1, '{}'")
        connection.execute(
            "UPDATE measurement SET device_id = 1000 WHERE kernel_id IN (SELECT id FROM kernel WHERE family = 'aten')"
        )
        connection.commit()
    renew_digests(path)
    problem = step_problems(Small(), [images()]).named["shared"]
    assert Winners(step_db).solutions(problem, torch.device("cpu"))
    assert not Winners(path).solutions(problem, torch.device("cpu"))


@pytest.mark.parametrize("operator", ["conv2d", "conv2d_dgrad"])
def test_a_packed_database_has_the_same_winners(operator, step_db, tmp_path):
    """One of two operators that compute an input gradient has short times that no finals have checked."""
    path = str(shutil.copy(step_db, tmp_path / "lucky.db"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "UPDATE measurement SET median_us = 0.001 * id WHERE NOT final AND kernel_id IN "
            "(SELECT id FROM kernel WHERE library_id IS NOT NULL) AND problem_id IN "
            "(SELECT id FROM problem WHERE operator = ?)",
            (operator,),
        )
        connection.commit()
    renew_digests(path)
    pack([path], tmp_path / "packed.db", 1)
    found, packed, cpu = Winners(path), Winners(str(tmp_path / "packed.db")), torch.device("cpu")
    for name, problem in step_problems(Small(), [images()]).named.items():
        best = found.solutions(problem, cpu)[:1]
        assert best and packed.solutions(problem, cpu)[:1] == best, name
