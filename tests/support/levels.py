"""Levels of tests: `unit`, `fuzz`, `compile`, `process` and `gpu`, and the check that a unit test starts no process.

A test without a mark of another level is a unit test. A test that uses a fixture of PROCESS_FIXTURES is a process test.
While a unit test runs, every start of a process (a compiler is one) fails the test, also where the code under test
handles the error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

OTHERS = ("fuzz", "compile", "process", "gpu")
PROCESS_FIXTURES = {"gpu_db", "server", "tuned_db", "worker"}
"""Fixtures that start a process."""
STARTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"}
"""Audit events (see sys.addaudithook) of a process start."""

_started: list[str] | None = None  # messages of this unit test; None while no unit test runs


def mark_level(item: pytest.Item) -> None:
    """Add the marks `process` and `unit` to a test that has the level without the mark."""
    if PROCESS_FIXTURES.intersection(getattr(item, "fixturenames", ())):
        item.add_marker("process")
    levels = [name for name in OTHERS if item.get_closest_marker(name)]
    if not levels:
        item.add_marker("unit")
    elif item.get_closest_marker("unit"):
        raise pytest.UsageError(f"{item.nodeid} is marked both unit and {levels[0]}; remove one of the marks")


@contextmanager
def no_process_in_unit_tests(item: pytest.Item) -> Iterator[None]:
    """Fail a unit test that starts a process in this phase (its setup or its call)."""
    global _started  # noqa: PLW0603 -- an audit hook cannot be removed, so it needs a switch
    if not item.get_closest_marker("unit"):
        yield
        return
    _started = []
    try:
        yield
        if _started:
            pytest.fail(_started[0])
    finally:
        _started = None


def _forbid(event: str, arguments: tuple[object, ...]) -> None:
    if _started is not None and event in STARTS:
        message = f"a unit test starts a process ({event}: {arguments[:2]}); mark it `compile` or `process`"
        _started.append(message)
        pytest.fail(message)


sys.addaudithook(_forbid)
