"""Trials in simulated time: the device does not wait for what is recorded."""

from collections import deque
from types import SimpleNamespace

import pytest

from autotune.ir import parse
from autotune.measure import Result
from autotune.tuner import Progress, TimeBreakdown
from autotune.tuner.trials.trial_queue import TrialQueue, WantedTrial
from tuning_db.store import CLAIMS

PROBLEM = parse("gemm m=64 n=64 k=64 dtype=f16")
TRIAL = 10.0
ROW = SimpleNamespace(id=1, library=None, family="f", config="{}", symbol="s")


class Device:
    """A worker whose trials take TRIAL each, and a store whose writes take `recording`, by one clock.

    waited: how long it had nothing to do since it got the first.
    """

    id = 1

    def __init__(self, recording):
        self.recording, self.clock, self.free, self.waited = recording, 0.0, None, 0.0
        self.sent, self.recorded, self.told, self.most = deque(), [], [], 0

    def send(self, problem, candidate, best_us):
        self.told.append(best_us)
        if self.free is None:
            self.free = self.clock
        self.waited += max(0.0, self.clock - self.free)
        self.free = max(self.free, self.clock) + TRIAL
        self.sent.append((candidate.launch["i"], self.free))
        self.most = max(self.most, len(self.sent))

    def receive(self):
        number, ends = self.sent.popleft()
        self.clock = max(self.clock, ends)
        return Result("ok", median_us=1.0 + number, details={"seconds": {"time": TRIAL}})

    def put_problem(self, text):
        return SimpleNamespace(id=1)

    def claim(self, device, problem, row, launches):
        return list(launches)

    def put_measurement(self, launch, **_):
        self.clock += self.recording
        self.recorded.append(launch["i"])


@pytest.fixture
def slow(monkeypatch):
    """A device whose results take nearly as long to record as they took to measure, and its trials."""
    made = lambda store, row, launch: SimpleNamespace(launch=launch)  # noqa: E731
    monkeypatch.setattr("autotune.tuner.trials.trial_queue.candidate", made)
    device = Device(0.9 * TRIAL)
    return device, TrialQueue(device, device, device, TimeBreakdown(), Progress(), {})


def test_the_device_does_not_wait_for_what_is_recorded(slow):
    device, trials = slow
    for i in range(100):
        trials.submit(WantedTrial(PROBLEM, ROW, [{"i": i}]))
    assert trials.drain() and not trials.drain()
    assert device.recorded == list(range(100))
    assert device.told == [None] * CLAIMS + [1.0] * (100 - CLAIMS), "of the first no result was back"
    assert device.waited == 0 and device.most == CLAIMS
    assert device.clock == pytest.approx(101 * TRIAL, rel=0.01)


def test_nor_for_what_takes_as_long_as_the_trials_that_are_at_it(slow):
    device, trials = slow
    device.recording = 0.1 * TRIAL
    for i in range(100):
        trials.submit(WantedTrial(PROBLEM, ROW, [{"i": i}]))
        device.clock += (CLAIMS - 2) * TRIAL if i % 20 == 19 else 0.0  # the studies are asked, say
    trials.drain()
    assert device.recorded == list(range(100)) and device.waited == 0


def test_the_device_waits_for_compilers_while_only_they_have_work(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("autotune.tuner.time_shares.time.perf_counter", lambda: now[0])
    breakdown = TimeBreakdown()
    for seconds, changes in [
        (1, {"compilers": True}),  # until then nobody has work
        (2, {"compilers": True}),
        (4, {"device": True}),
        (8, {"compilers": False}),
        (16, {"compilers": True}),
        (32, {"device": False}),
        (64, {"compilers": False}),
        (128, {}),
    ]:
        now[0] += seconds
        breakdown.set_busy(**changes)
    assert breakdown.seconds["wait for compilers"] == 2 + 4 + 64
    breakdown.add({"verify": 8 + 16, "time": 32})
    assert breakdown.total == 255 and breakdown.overhead == 1 + 128
