"""Where the records of benchmarks go."""

import argparse
import json
import sys
from pathlib import Path

import pytest
from repository import ROOT, SCRIPTS

from autotune_cli import main
from autotune_cli.command_line import add_record
from autotune_cli.record import record_folder


def test_records_go_to_benchmarks_in_the_checkouts_folder_alone(tmp_path, monkeypatch):
    parser = argparse.ArgumentParser()
    add_record(parser, "device")
    for words, here, there in ((["--out", "a/b"], "a/b", "a/b"), ([], "benchmarks", ".")):
        chosen = parser.parse_args(words).out
        monkeypatch.chdir(ROOT)
        assert record_folder(chosen) == Path(here)
        monkeypatch.chdir(SCRIPTS)
        assert record_folder(chosen) == Path(there)
        monkeypatch.chdir(tmp_path)
        assert record_folder(chosen) == Path(there)


@pytest.mark.process
def test_bench_writes_into_the_users_folder_and_says_where(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text("from torch import nn\nmake = lambda: nn.Conv2d(2, 4, 3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ["--model", "mine.py:make", "--input", "2,8,8", "--batch", "1", "--device", "cpu", "--only", "eager"]
    assert main.main(["bench", *words, "--seconds", "0.01", "--name", "mine"]) == 0
    assert {"mine.json", "mine.png", "mine.py"} >= {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert json.loads((tmp_path / "mine.json").read_text())["batches"]
    assert "wrote mine.json" in capsys.readouterr().out
