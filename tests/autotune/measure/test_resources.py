"""Other processes that use the CPU are noticed; this one does not count."""

import subprocess
import sys
import time

import pytest

from autotune.core import ProcessTree
from autotune.measure import resources
from autotune.measure.resources import CpuLoad, run_seconds


@pytest.fixture(autouse=True)
def watched(monkeypatch):
    monkeypatch.delenv(resources.IGNORE, raising=False)  # the tests themselves keep the CPU busy


def stat(tmp_path, monkeypatch):
    """Return a function that writes what Linux tells: busy and idle ticks of a hundredth of a second, on two cores."""
    path = tmp_path / "stat"
    monkeypatch.setattr(resources, "_STAT", path)

    def write(user, nice, system, idle, steal):
        path.write_text(f"cpu  {user} {nice} {system} {idle} 0 0 0 {steal} 0 0\ncpu0 0\ncpu1 0\nintr 5\n")

    return write


@pytest.mark.parametrize(("ticks", "is_slow"), [(0, False), (1, False), (20, True)])
@pytest.mark.parametrize("column", ["user", "nice", "system", "steal"])
def test_the_busy_time_of_others_counts(tmp_path, monkeypatch, column, ticks, is_slow):
    write = stat(tmp_path, monkeypatch)
    now = {"user": 500, "nice": 10, "system": 100, "idle": 9000, "steal": 3}
    write(**now)
    load = CpuLoad()
    time.sleep(0.2)
    write(**now | {column: now[column] + ticks, "idle": 9010})
    assert bool(load.slowed()) == is_slow


def test_the_time_of_this_process_does_not_count(tmp_path, monkeypatch):
    write = stat(tmp_path, monkeypatch)
    write(0, 0, 0, 0, 0)
    load, began = CpuLoad(), time.process_time()
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        pass
    write(round((time.process_time() - began) * 100), 0, 0, 0, 0)
    assert load.slowed() == []


def test_where_linux_does_not_tell_nothing_is_slow(tmp_path, monkeypatch):
    monkeypatch.setattr(resources, "_STAT", tmp_path / "missing")
    load = CpuLoad()
    time.sleep(0.2)
    assert load.slowed() == []


@pytest.mark.process
def test_the_processes_of_the_run_are_its_own_also_when_they_have_ended():
    work = "import time\nwhile time.process_time() < 0.4: pass"
    compiler = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {work!r}])"
    before = run_seconds()
    with subprocess.Popen([sys.executable, "-c", compiler]) as running:
        running.wait()
        assert run_seconds() - before > 0.35
    time.sleep(0.01)
    assert run_seconds() - before > 0.35


READER = """
import sys, time
from autotune.measure.resources import run_seconds
before = run_seconds()
open(sys.argv[1], "w").close()
until = time.monotonic() + 20
while run_seconds() - before < 0.35 and time.monotonic() < until:
    time.sleep(0.2)
open(sys.argv[2], "w").write(str(run_seconds() - before))
"""


@pytest.mark.process
def test_a_measuring_process_counts_the_compilers_of_the_tuner_that_started_it(tmp_path):
    """The measuring process and the compilers are in trees of their own, each below a process that ends it."""
    ready, found = tmp_path / "ready", tmp_path / "found"
    reader = ProcessTree([sys.executable, "-c", READER, str(ready), str(found)])
    while reader.poll() is None and not ready.exists():
        time.sleep(0.01)
    compiler = ProcessTree([sys.executable, "-c", "while True: pass"])
    assert reader.wait() == 0
    compiler.stop()
    assert float(found.read_text()) > 0.35


@pytest.mark.process
def test_a_process_that_works_is_noticed():
    load = CpuLoad()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            time.sleep(1.0)
            said = load.slowed()
        finally:
            busy.kill()
    assert said and said[0].startswith("other processes use")


def test_times_of_a_machine_that_is_always_busy_can_be_taken_as_they_are(tmp_path, monkeypatch):
    write = stat(tmp_path, monkeypatch)
    write(0, 0, 0, 0, 0)
    load = CpuLoad()
    time.sleep(0.2)
    write(100, 0, 0, 0, 0)
    monkeypatch.setenv(resources.IGNORE, "1")
    assert load.slowed() == []
