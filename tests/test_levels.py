"""The levels of tests: the level of a test without a mark, and the check that a unit test starts no process."""

import os

import pytest
from processes import python
from repository import ROOT

pytestmark = pytest.mark.process
TESTS = """
import subprocess
import sys
import pytest

def start():
    subprocess.run([sys.executable, "-c", ""], check=True)

@pytest.fixture
def started():
    start()

def test_plain(): pass
def test_starts(): start()
def test_hides():
    try: start()
    except BaseException: pass
def test_fixture(started): pass
@pytest.mark.process
def test_process(started): start()
@pytest.mark.compile
def test_compile(): start()
def test_server(tuned_db): pass
"""


def run_tests(folder, *arguments):
    """Run TESTS with the hooks of tests/conftest.py; return the exit code and the output."""
    folder.joinpath("test_it.py").write_text(TESTS + "@pytest.fixture\ndef tuned_db(): start()\n")
    own = os.pathsep.join(str(ROOT / name) for name in ("tests", "tests/support", "scripts", "."))
    command = ["-q", "-p", "conftest", "-p", "no:cacheprovider", "-n0", "-o", "addopts=", "-rA", str(folder)]
    code = f"import sys, pytest; sys.exit(pytest.main({[*command, *arguments]!r}))"
    done = python(code, env={**os.environ, "PYTHONPATH": own}, cwd=folder)
    return done.returncode, done.stdout


def test_a_unit_test_that_starts_a_process_fails(tmp_path):
    code, out = run_tests(tmp_path)
    assert code == 1
    for name in ("test_plain", "test_process", "test_compile", "test_server"):
        assert f"PASSED test_it.py::{name}" in out, out
    for outcome, name in (("FAILED", "test_starts"), ("FAILED", "test_hides"), ("ERROR", "test_fixture")):
        assert f"{outcome} test_it.py::{name}" in out, out
    assert "a unit test starts a process (subprocess.Popen" in out


@pytest.mark.parametrize(
    ("level", "names"),
    [
        ("unit", ["test_fixture", "test_hides", "test_plain", "test_starts"]),
        ("process", ["test_process", "test_server"]),
        ("compile", ["test_compile"]),
    ],
)
def test_a_test_has_the_level_of_its_mark_or_fixture(level, names, tmp_path):
    _, out = run_tests(tmp_path, "-m", level, "--co")
    assert sorted(line.partition("::")[2] for line in out.splitlines() if "::" in line) == names
