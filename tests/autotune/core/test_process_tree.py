"""Process trees, which end with the process above them, and the supervisor of child processes: messages and deaths."""

import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest
from processes import HANG, wait_until
from repository import ROOT

from autotune.core import ProcessTree, process_tree
from autotune.measure import ChildProcess, Ended

pytestmark = [pytest.mark.process, pytest.mark.process]

# Groups and sessions of their own, an orphan, and a process that ignores what can be ignored.
FOREST = """
trap '' TERM HUP INT
timeout 600 sh -c 'sleep 601 & sleep 602' &
setsid sh -c 'sleep 603 & exec sleep 604' &
(sleep 605 &)
"""
SLEEPS = {f"sleep {seconds}" for seconds in range(601, 606)}
STARTER = f"""
import runpy, sys, threading
ProcessTree = runpy.run_path({process_tree.__file__!r})["ProcessTree"]  # without the import of torch
start = lambda: ProcessTree(["sh", "-c", {FOREST + "wait"!r}])
starting = threading.Thread(target=lambda: trees.append(start()))
trees = []
starting.start()
starting.join()
sys.stdin.read()
"""


def sleeping(tag):
    """The sleeping processes with a tag in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TREE") == tag and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return {words for words in found if words.startswith("sleep")}


@pytest.fixture
def tag(request, monkeypatch):
    name = f"{os.getpid()} {request.node.name}"
    monkeypatch.setenv("TREE", name)
    return name


def test_all_end_with_the_process_that_started_them_but_not_with_its_thread(tag):
    starter = subprocess.Popen([sys.executable, "-c", STARTER], cwd=ROOT, stdin=subprocess.PIPE)
    wait_until(lambda: sleeping(tag) == SLEEPS)
    starter.kill()
    starter.communicate()
    wait_until(lambda: not sleeping(tag))


def test_all_end_when_the_command_ends(tag):
    tree = ProcessTree(["sh", "-c", f"{FOREST} sleep 0.5; exit 3"])
    assert tree.wait() == 3 and tree.poll() == 3 and tree.pid is None
    assert not sleeping(tag)


def test_stopping_ends_all_at_once_also_from_another_thread(tag):
    tree = ProcessTree(["sh", "-c", f"{FOREST} wait"])
    wait_until(lambda: sleeping(tag) == SLEEPS)
    stopping = threading.Thread(target=tree.stop)
    stopping.start()
    assert tree.wait() == -signal.SIGKILL
    assert not sleeping(tag)
    stopping.join()
    tree.stop()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -SEGV $$"], -signal.SIGSEGV),
        (["sh", "-c", "kill -USR1 $$"], -signal.SIGUSR1),
        (["sh", "-c", "kill -KILL $$"], -signal.SIGKILL),
        (["/nonexistent"], 127),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_the_exit_code_is_that_of_the_command(command, code):
    assert ProcessTree(command).wait() == code


def test_a_command_has_the_descriptors_it_is_given_and_their_other_end_is_told_when_it_ends():
    reads, writes = os.pipe()
    tree = ProcessTree(
        ["sh", "-c", f"cat; echo here > /dev/fd/{writes}"], pass_fds=[writes]
    )  # its standard input is empty
    os.close(writes)
    with open(reads) as file:
        assert file.read() == "here\n"
    assert tree.wait() == 0


def test_a_command_runs_on_the_cores_it_is_given():
    core = max(os.sched_getaffinity(0))
    code = f"import os, sys; sys.exit(os.sched_getaffinity(0) != {{{core}}})"
    assert ProcessTree([sys.executable, "-c", code], cores=[core]).wait() == 0


CHILD = """
import os, sys, time
from autotune.core.process_tree import accept
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
