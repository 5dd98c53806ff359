"""Which kernels of a database compute the passes of a training step."""

import shutil
import sqlite3
from contextlib import closing

import pytest
import torch
from databases import renew_digests
from training_networks import Small, images

from fused_resnet.training import Winners, step_problems
from tuning_db.pack import pack

pytestmark = pytest.mark.compile


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


def test_a_packed_database_has_the_same_winners(step_db, tmp_path, monkeypatch):
    monkeypatch.setattr("tuning_db.pack.KEPT", 1)
    pack([step_db], tmp_path / "packed.db")
    found, packed, cpu = Winners(step_db), Winners(str(tmp_path / "packed.db")), torch.device("cpu")
    for name, problem in step_problems(Small(), [images()]).named.items():
        best = found.solutions(problem, cpu)[:1]
        assert best and packed.solutions(problem, cpu)[:1] == best, name
