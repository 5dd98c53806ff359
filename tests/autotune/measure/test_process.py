"""The supervisor of child processes: messages, deaths, deadlines, restarts, Ctrl-C."""

import os
import signal
import threading

import pytest
from processes import HANG

from autotune.measure import ChildProcess, Ended

pytestmark = [pytest.mark.process, pytest.mark.process]

CHILD = """
import os, sys, time
from autotune.measure.process import accept
connection = accept(sys.argv[1])
while True:
    message = connection.recv()
    if message == "exit":
        os._exit(3)
    if message == "sleep":
        time.sleep(600)
    connection.send((message, sys.argv[2], sys.path.count(os.path.dirname(__file__)) > 0))
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    (tmp_path / "echoing_child.py").write_text(CHILD)
    monkeypatch.syspath_prepend(tmp_path)
    process = ChildProcess("echoing_child", ["argument"])
    yield process
    process.stop()
    assert process.pid is None


def test_a_child_answers_and_imports_from_the_folders_of_its_parent(child):
    assert child.pid is None and not child.started
    child.start()
    child.send({"a": 1})
    assert child.receive(HANG) == ({"a": 1}, "argument", True)


@pytest.mark.parametrize(
    ("message", "ended"),
    [
        ("exit", Ended("crashed", "the process died: exit code 3")),
        ("sleep", Ended("timed_out", "no answer within 0.2 s")),
    ],
)
def test_a_child_that_ends_is_a_record_and_can_be_started_again(child, message, ended):
    child.start()
    child.send("ready?")
    assert child.receive(HANG)[0] == "ready?"
    first = child.pid
    child.send(message)
    assert child.receive(HANG if message == "exit" else 0.2) == ended
    assert child.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    child.start()
    child.send("again")
    assert child.receive(HANG)[0] == "again" and child.pid != first


def test_a_message_to_a_dead_child_is_told_by_the_next_answer(child):
    child.start()
    os.kill(child.pid, signal.SIGKILL)
    while child.pid is not None:
        pass
    child.send("late")
    assert child.receive(HANG) == Ended("crashed", "the process died: SIGKILL", killed=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_ends_the_parent_in_order_does_not_reach_the_child(child, number):
    child.start()
    os.kill(child.pid, number)
    child.send("still there?")
    assert child.receive(HANG)[0] == "still there?"


def test_another_thread_may_stop_a_child_that_is_waited_for(child):
    child.start()
    child.send("ready?")
    assert child.receive(HANG)[0] == "ready?"
    stopping = threading.Timer(0.2, child.stop)
    stopping.start()
    assert child.receive(HANG) == Ended("crashed", "the process died: SIGKILL")
    stopping.join()
    assert child.receive(HANG) == Ended("crashed", "the process was stopped") and not child.started
