"""The size of files: a production file has one idea, and at most 400 lines."""

import subprocess

import pytest
from repository import ROOT

MOST_LINES = 400
FOLDERS = ("autotune", "fused_resnet", "tuning_db", "scripts", "templates", "benchmarks/programs")
ENDINGS = (".py", ".cpp", ".h", ".cuh", ".j2")


@pytest.mark.process
def test_no_production_file_is_longer_than_400_lines():
    listed = subprocess.run(["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [name for name in listed.stdout.splitlines() if name.endswith(ENDINGS)]
    lines = {name: len((ROOT / name).read_text().splitlines()) for name in files}
    assert len(lines) > 400
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}
