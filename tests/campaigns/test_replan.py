"""tests/campaigns/replan.py on the CPU: a faster plan takes the place of one, and nothing else changes."""

import re
import shutil
from dataclasses import replace

import pytest
from databases import rows
from processes import TUNED_BATCH, script
from seed_network import images, plain

from autotune.measure import Worker
from autotune.tuner.plan.network_tuner import tune_network_plan
from fused_resnet.capture import capture
from tuning_db import Store


@pytest.fixture
def planned(tuned_db, tmp_path):
    """A database with the plan of a network, and the plan's name."""
    path = tmp_path / "planned.db"
    shutil.copy(tuned_db, path)
    network = replace(capture(plain(), tuple(images(TUNED_BATCH).shape), "f32"), label="a name")
    with Store.create(path) as store, Worker("cpu") as worker:
        (device,) = store.devices()
        tune_network_plan(store, device, worker, network.without_whole, descend=False)
    return path, network.key


def plan_of(path, key):
    with Store.create(path) as store:
        (device,) = store.devices()
        return store.plan(device, key)


def searched(path, *options):
    done = script("tests/campaigns/replan.py", "--db", path, "--device", "cpu", "--seconds", "2", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_only_a_faster_plan_replaces_another(planned):
    path, key = planned
    before = plan_of(path, key)
    tables = ("kernel", "measurement", "network", "plan")
    counts = [rows(path, f"SELECT count(*) FROM {table}") for table in tables]
    assert re.search(rf"^{re.escape(key)}: stays; recorded", searched(path, "--most", "0%"), re.M)
    after = plan_of(path, key)
    assert (after.choices, after.details, after.digest) == (before.choices, before.details, before.digest)
    assert searched(path, "--batch", f"{TUNED_BATCH + 1}") == ""
    found = searched(path, "--most", "100%", "--batch", f"{TUNED_BATCH}")
    assert re.search(rf"^{re.escape(key)}: (0\.\d+ of its time|stays); recorded", found, re.M)
    assert plan_of(path, key).details["label"] == "a name"
    assert counts == [rows(path, f"SELECT count(*) FROM {table}") for table in tables]


def test_a_signed_database_is_left_alone(planned):
    path, _ = planned
    with Store.create(path) as store:
        store.put_signature("key", "value")
    done = script("tests/campaigns/replan.py", "--db", path, "--device", "cpu")
    assert done.returncode != 0 and "is signed" in done.stderr


@pytest.mark.process
def test_a_database_that_is_missing_is_an_error_and_not_made(tmp_path):
    path = tmp_path / "missing.db"
    done = script("tests/campaigns/replan.py", "--db", path, "--device", "cpu")
    assert done.returncode != 0 and "missing.db" in done.stderr and not path.exists()
