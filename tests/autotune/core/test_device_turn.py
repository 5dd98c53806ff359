"""Turns on a GPU: a lock on a file, which a process that hangs does not keep for ever."""

import threading
import time
from contextlib import nullcontext

import torch

from autotune.core.device_turn import file_turn, turn


def test_a_turn_is_waited_for(tmp_path):
    path, order, held = tmp_path / "turn", [], threading.Event()

    def hold():
        with file_turn(path):
            held.set()
            time.sleep(0.1)
            order.append("first")

    first = threading.Thread(target=hold)
    first.start()
    held.wait()
    with file_turn(path):
        order.append("second")
    first.join()
    assert order == ["first", "second"]


def test_a_turn_that_does_not_end_is_not_waited_for_longer_than_allowed(tmp_path):
    with file_turn(tmp_path / "turn"):
        started = time.monotonic()
        with file_turn(tmp_path / "turn", most_seconds=0.05):
            assert 0.05 <= time.monotonic() - started < 60
    with file_turn(tmp_path / "turn"):
        assert time.monotonic() - started < 60


def test_no_file_means_no_turns(tmp_path):
    with file_turn(tmp_path / "no folder" / "turn"):
        pass


def test_a_cpu_has_no_turns():
    assert isinstance(turn(torch.device("cpu")), nullcontext)
