"""How the CUTLASS kernels deal steps to blocks: the device's own headers, run on the host."""

import subprocess
from pathlib import Path

import pytest

from autotune.core import paths

KERNELS = Path(__file__).parent


@pytest.mark.compile
def test_every_step_is_dealt_once_and_every_part_is_found_again(tmp_path):
    binary, source = tmp_path / "schedule", KERNELS / "schedule.cpp"
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Werror", f"-I{paths.templates()}", str(source), "-o", str(binary)]
    subprocess.run(command, check=True)
    said = subprocess.run([str(binary)], capture_output=True, text=True, check=False).stdout
    assert said == "ok\n"
