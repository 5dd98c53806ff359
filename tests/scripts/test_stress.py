"""scripts/checks/stress.py on the CPU."""

import pytest
from processes import script

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


def test_stress_finds_nothing(tuned_db):
    done = script("checks/stress", "--db", tuned_db, "--device", "cpu", "--calls", 24, "--batches", "1,2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "24 calls from 4 threads, 0 wrong" in done.stdout
