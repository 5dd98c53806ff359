"""tests/campaigns/stress.py on the CPU."""

import dataclasses

import pytest
import stress
import torch
from processes import script

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


def test_stress_finds_nothing(tuned_db):
    done = script("tests/campaigns/stress.py", "--db", tuned_db, "--device", "cpu", "--calls", 24, "--batches", "1,2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "24 calls from 4 threads, 0 wrong" in done.stdout


def test_weights_that_change_meanwhile(tuned_db):
    options = ("--device", "cpu", "--calls", 200, "--batches", "1,2", "--threads", 6, "--update", "0.2s")
    # The exit code also judges memory, after many calls.
    done = script("tests/campaigns/stress.py", "--db", tuned_db, *options)
    assert "200 calls from 6 threads, 0 wrong" in done.stdout and " 0 updates" not in done.stdout, done.stdout


def compared(reserved):
    """Return whether usage has grown, of samples that are taken at equal shares of the calls."""
    samples = stress.Samples(torch.device("cpu"))
    usage = stress.Usage(host=10**9, device=0, reserved=0, allocated=0, files=9, threads=5)
    for i, value in enumerate(reserved):
        samples._taken.append((i / len(reserved), dataclasses.replace(usage, **value)))
    before, after = samples.compared()
    return after.grown(before)


MIB = 2**20


def test_growth_is_told_from_pools_that_fill_and_from_single_samples():
    ten = [{"host": 10**9}] * 10
    assert not compared(ten)
    assert not compared([{"reserved": size * MIB} for size in (10, 300, 500, 700, 700, 500, 600, 700, 700, 600)])
    assert not compared([*ten[:8], {"files": 12}, {}])  # a database that is open
    assert not compared([*ten[:8], {"allocated": 900 * MIB}, {}])  # the old weights and the new ones
    assert compared([{"reserved": (100 + 10 * i) * MIB} for i in range(10)])
    assert compared([{"files": 9 + i} for i in range(10)])
    assert compared([*ten[:8], {"threads": 6}, {}])
    assert not compared([{"host": 10**9}, {"host": 2 * 10**9}])  # no sample in the second and third fifth
