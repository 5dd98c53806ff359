"""A process on another machine: one that another thread stops, and one that does not start."""

import threading
from concurrent.futures import Future

import pytest

from autotune.cluster import remote_child
from autotune.cluster.remote_child import RemoteChild
from autotune.core import WorkerError
from autotune.measure import Ended


def answered(value):
    future = Future()
    future.set_result(value)
    return future


class Machine:
    """Another machine with its relay; it answers a request only when its process is stopped."""

    def __init__(self, *, starts=True):
        self.lost, self.waiting, self.starts = 0, [], starts

    def relay(self):
        return self

    def is_alive(self):
        return True

    def lose(self):
        self.lost += 1

    def start(self, *_):
        return answered(7) if self.starts else Future()

    def receive(self, *_):
        self.waiting.append(Future())
        return self.waiting[-1]

    def stop(self, *_):
        for future in self.waiting:
            future.set_result(Ended("crashed", "the process was stopped"))
        return answered(None)


def test_a_process_that_another_thread_stops_does_not_cost_the_machine():
    machine, found = Machine(), []
    child = RemoteChild(machine, "module")
    child.start()
    waits = threading.Thread(target=lambda: found.append(child.receive(30.0)))
    waits.start()
    child.stop()
    waits.join(20)
    assert [ended.reason for ended in found] == ["the process was stopped"] and machine.lost == 0


def test_a_start_that_is_not_answered_ends(monkeypatch):
    monkeypatch.setattr(remote_child, "START_SECONDS", 0.1)
    with pytest.raises(WorkerError, match=r"no answer within 0\.1 s"):
        RemoteChild(Machine(starts=False), "module").start()
