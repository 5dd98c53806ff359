"""The records under benchmarks/: each is quoted by a page or read by a test, and names its commit."""

import json
import re
import subprocess

import pytest
import torch
from record_index import INDEX, index
from repository import ROOT

from autotune.core import AutotuneError
from autotune_cli.record import provenance

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECORDS = sorted(path for path in (ROOT / "benchmarks").iterdir() if path.is_file() and path != INDEX)
JSON = [path for path in RECORDS if path.suffix == ".json"]
COMMIT = re.compile(r"[0-9a-f]{40}")
OF_TESTS = {"layers-resnet-nvidia-h200.json"}
"""Records that tests read (tests/support/cudnn_records.py)."""


@pytest.fixture(scope="module")
def quoted():
    """The names of files of benchmarks/ that pages link to."""
    link = re.compile(r"\]\((?:\.\./)*benchmarks/([\w.-]+)\)")
    return {name for page in PAGES for name in link.findall(page.read_text())}


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_every_record_is_quoted(path, quoted):
    assert path.name in quoted | OF_TESTS, "link it from the page that quotes its figures, or remove it"


def test_the_index_of_the_records_is_up_to_date():
    assert INDEX.read_text() == index(), "run python tests/support/record_index.py"


@pytest.mark.parametrize("path", JSON, ids=lambda path: path.name)
def test_every_record_names_its_commit(path):
    record = json.loads(path.read_text())
    assert COMMIT.fullmatch(record.get("commit") or record.get("recorded_in") or ""), "record it in a checkout"
    if "commit" in record:
        holds_the_changes = COMMIT.fullmatch(record.get("recorded_in", ""))
        assert record["uncommitted_changes"] is False or holds_the_changes, "commit the changes, then record again"


def git(folder, *arguments):
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    done = subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.process
def test_a_new_record_names_the_commit_and_uncommitted_changes(tmp_path, monkeypatch):
    monkeypatch.setattr("autotune_cli.record.ROOT", tmp_path)
    assert provenance(torch.device("cpu"))["commit"] is None, "no checkout"
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "old.json").write_text("{}\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    clean = provenance(torch.device("cpu"))
    assert clean["commit"] == git(tmp_path, "rev-parse", "HEAD") and clean["uncommitted_changes"] is False
    (tmp_path / "benchmarks" / "old.json").write_text("{1}\n")
    assert provenance(torch.device("cpu"))["uncommitted_changes"] is False, "a record is no change of the program"
    (tmp_path / "pyproject.toml").write_text("[other]\n")
    record = tmp_path / "benchmarks" / "new.json"
    with pytest.raises(AutotuneError, match="uncommitted changes"):
        provenance(torch.device("cpu"), record)
    assert clean["commit"] == provenance(torch.device("cpu"), tmp_path / "generated" / "new.json")["commit"]
    changed = provenance(torch.device("cpu"))
    assert changed["uncommitted_changes"] is True and changed["commit"] == clean["commit"]
    assert changed["machine"]["device"] and changed["date"].endswith("Z")
