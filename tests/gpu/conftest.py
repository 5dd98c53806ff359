"""Fixtures of the tests that need a GPU."""

import pytest
from gpu_network import BATCH
from processes import process


@pytest.fixture(scope="session")
def gpu_db(folders):
    """One config a family for each layer: a handful of kernels."""
    path = folders / "gpu.db"
    done = process("tune", "--batch", BATCH, "--trials", 1, "--budget", "120s", "--db", path)
    assert done.returncode == 0, done.stderr
    return path
