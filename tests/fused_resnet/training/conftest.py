"""A database of the convolutions of a training step."""

import sqlite3
from contextlib import closing

import pytest
import torch
from databases import renew_digests
from training_networks import Small, images

from fused_resnet.training import step_problems
from fused_resnet.tuning import TuneLimits, create, tune_problems


@pytest.fixture(scope="session")
def step_db(tmp_path_factory):
    """Return a database of `Small` at batch 2 with one config for each problem; torch's times are made long."""
    path = str(tmp_path_factory.mktemp("step") / "step.db")
    create(path)
    found = step_problems(Small(), [images().requires_grad_()])
    assert tune_problems("Small", found.to_tune(), torch.device("cpu"), path, TuneLimits(trials=1, budget="10m"))
    with closing(sqlite3.connect(path)) as connection:
        torchs = "kernel_id IN (SELECT id FROM kernel WHERE family = 'aten')"
        longer = "median_us = 1000 * median_us, details = json_remove(details, '$.interval_us')"
        connection.execute(f"UPDATE measurement SET {longer} WHERE {torchs}")
        connection.commit()
    renew_digests(path)
    return path
