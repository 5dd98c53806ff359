"""Where the records of benchmarks go."""

import json
import sys

import pytest

from autotune_cli import main


@pytest.mark.process
def test_bench_writes_into_the_users_folder_and_says_where(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text("from torch import nn\nmake = lambda: nn.Conv2d(2, 4, 3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ["--model", "mine.py:make", "--input", "2,8,8", "--batch", "1", "--device", "cpu", "--only", "eager"]
    assert main.main(["bench", *words, "--seconds", "0.01", "--out", "mine.json"]) == 0
    assert {"mine.json", "mine.png", "mine.py"} >= {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert json.loads((tmp_path / "mine.json").read_text())["batches"]
    assert "wrote mine.json" in capsys.readouterr().out
