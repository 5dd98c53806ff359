"""scripts/checks/stress.py on the CPU."""

import pytest
from processes import script

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


def test_stress_finds_nothing(tuned_db):
    done = script("checks/stress", "--db", tuned_db, "--device", "cpu", "--calls", 24, "--batches", "1,2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "24 calls from 4 threads, 0 wrong" in done.stdout


def test_weights_that_change_meanwhile(tuned_db):
    options = ("--device", "cpu", "--calls", 200, "--batches", "1,2", "--threads", 6, "--update", "0.2s")
    done = script("checks/stress", "--db", tuned_db, *options)  # its exit code also judges memory, after many calls
    assert "200 calls from 6 threads, 0 wrong" in done.stdout and " 0 updates" not in done.stdout, done.stdout
