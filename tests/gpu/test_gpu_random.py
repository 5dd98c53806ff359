"""Every CUDA family that compiles in seconds: random kernels on hundreds of random problems, and under memcheck."""

import os
import shutil
import subprocess
import sys

import pytest
from processes import HANG
from random_kernels import SIZES, wrong
from repository import ROOT

pytestmark = pytest.mark.gpu

KERNELS = {"cuda_conv2d": 24, "sm90_conv2d": 24}
"""Of a family, where eight do not show all its ways to load."""
FOUND = 9
MEMCHECK = f"compute-sanitizer --tool memcheck --target-processes application-only --error-exitcode {FOUND}".split()


@pytest.mark.parametrize("name", SIZES)
def test_random_kernels_solve_random_problems(name):
    count, complaints = wrong([name], seed=0, kernels=KERNELS.get(name, 8), problems=5)
    assert not complaints, "\n".join(complaints)
    assert count >= 30  # in all, more than 500


def watched(*command):
    """Run Python under memcheck, each tensor in memory of its own."""
    if not shutil.which(MEMCHECK[0]):
        pytest.skip("compute-sanitizer is not on the PATH")
    variables = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command = [*MEMCHECK, sys.executable, *command]
    done = subprocess.run(command, check=False, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=HANG)
    if "Device not supported" in done.stdout:
        pytest.skip("compute-sanitizer cannot watch this GPU")
    return done


def test_memcheck_finds_nothing_in_a_sample_of_all_families():
    done = watched("tests/support/random_kernels.py")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "ERROR SUMMARY: 0 errors" in done.stdout and " problems, 0 wrong" in done.stdout


def test_memcheck_finds_a_read_beyond_a_tensor():
    """So that a clean report of the sample means something."""
    code = "import torch; x = torch.ones(1024, device='cuda'); x.untyped_storage().resize_(2048); print((x + 1).sum())"
    done = watched("-c", code)
    assert done.returncode == FOUND and "Invalid __global__ read" in done.stdout, done.stdout[-2000:]
