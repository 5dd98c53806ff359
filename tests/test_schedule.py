"""How the CUTLASS 2.x kernels deal steps to blocks: the device's own header, run on the host."""

import subprocess
from pathlib import Path

from autotune import paths

SOURCE = Path(__file__).parent / "kernels" / "schedule.cpp"


def test_every_step_is_dealt_once_and_every_part_is_found_again(tmp_path):
    binary = tmp_path / "schedule"
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Werror", f"-I{paths.templates()}", str(SOURCE), "-o", str(binary)]
    subprocess.run(command, check=True)
    said = subprocess.run([str(binary)], capture_output=True, text=True, check=False).stdout
    assert said == "ok\n"
