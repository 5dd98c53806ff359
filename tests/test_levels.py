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


LEVELS = {
    "unit": ["test_fixture", "test_hides", "test_plain", "test_starts"],
    "process": ["test_process", "test_server"],
    "compile": ["test_compile"],
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Run TESTS with the hooks of tests/conftest.py, and collect those of each level; return what pytest wrote."""
    folder = tmp_path_factory.mktemp("levels")
    folder.joinpath("test_it.py").write_text(TESTS + "@pytest.fixture\ndef tuned_db(): start()\n")
    own = os.pathsep.join(str(ROOT / name) for name in ("tests", "tests/support", "scripts", "."))
    command = ["-q", "-p", "conftest", "-p", "no:cacheprovider", "-n0", "-o", "addopts=", "-rA", str(folder)]
    calls = [command, *([*command, "-m", level, "--co"] for level in LEVELS)]
    code = f"import pytest\nfor call in {calls!r}: print('exit code', int(pytest.main(call)), end='\\f', flush=True)"
    done = python(code, env={**os.environ, "PYTHONPATH": own}, cwd=folder)
    *written, _ = done.stdout.split("\f")
    return dict(zip(["all", *LEVELS], written, strict=True))


def test_a_unit_test_that_starts_a_process_fails(outputs):
    out = outputs["all"]
    assert out.endswith("exit code 1")
    for name in ("test_plain", "test_process", "test_compile", "test_server"):
        assert f"PASSED test_it.py::{name}" in out, out
    for outcome, name in (("FAILED", "test_starts"), ("FAILED", "test_hides"), ("ERROR", "test_fixture")):
        assert f"{outcome} test_it.py::{name}" in out, out
    assert "a unit test starts a process (subprocess.Popen" in out


@pytest.mark.parametrize("level", LEVELS)
def test_a_test_has_the_level_of_its_mark_or_fixture(level, outputs):
    listed = [line.partition("::")[2] for line in outputs[level].splitlines() if "::" in line]
    assert sorted(listed) == LEVELS[level]
