"""Several devices of a run, each with its problems; and trials in simulated time, for whose records no device waits."""

import os
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from processes import HANG

from autotune.core import WorkerError, cpu_targets, device_name
from autotune.core.errors import Fault, fault_counts, forget_faults
from autotune.ir import parse
from autotune.measure import ChildProcess, Result, Worker
from autotune.tuner import Progress, TimeBreakdown
from autotune.tuner.time_shares import IDLE
from autotune.tuner.trials.device_queues import DeviceQueues, TrialQueue, WantedTrial
from autotune.tuner.trials.library_trials import operator_rows
from tuning_db.store import CLAIMS

CONV = "conv2d n=1 h={h} w=6 c=8 k=8 r=3 s=3 stride=1,1 pad=1,1 dilation=1,1 groups=1 dtype=f32 epilogue=relu"
PROBLEMS = [parse(CONV.format(h=h)) for h in (6, 7, 8, 9)]


class StartsOnce(ChildProcess):
    """A process whose device is gone when it is started once more."""

    starts = 0

    def start(self):
        self.starts += 1
        if self.starts > 1:
            raise WorkerError("the GPU has fallen off the bus")
        super().start()


class Notes(Progress):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@dataclass(frozen=True)
class Told(WantedTrial):
    """A trial that passes its results on."""

    on_done: Callable = None

    def done(self, results):
        self.on_done(results)


def queues(store, workers, progress):
    device = store.put_device(device_name(torch.device("cpu")), cpu_targets()[0], flops_per_us=1.0, bytes_per_us=1.0)
    return device, DeviceQueues(store, workers, device, TimeBreakdown(), progress, dict.fromkeys(PROBLEMS, 1.0), {})


def submit_all(store, trials):
    told = []
    for problem in PROBLEMS:
        store.put_problem(str(problem))
        for row in operator_rows(store, problem, cpu_targets()[0], torch.__version__):
            trials.submit(Told(problem, row, on_done=lambda results, at=problem: told.append((at, results))))
    return told


@pytest.mark.process
def test_two_devices_measure_all_problems(store):
    with Worker("cpu") as first, Worker("cpu") as second:
        device, trials = queues(store, [first, second], Progress())
        assert {trials.worker(problem) for problem in PROBLEMS} == {first, second}
        told = submit_all(store, trials)
        trials.drain()
        assert first.pid and second.pid and first.pid != second.pid
    assert len(told) == 2 * len(PROBLEMS) and all(result.status == "ok" for _, results in told for result in results)
    waits = [row.details["seconds"][IDLE] for text in map(str, PROBLEMS) for row in store.measurements(device, text)]
    assert min(waits) == 0 and max(waits) > 0.1, "the first trials wait for their processes, and the others for nothing"
    for problem in PROBLEMS:
        assert len(store.measurements(device, str(problem), "ok")) == 2


@pytest.mark.process
def test_the_other_device_takes_over_what_a_lost_one_had(store):
    progress = Notes()
    forget_faults()
    with Worker("cpu") as first, Worker("cpu", child=StartsOnce) as second:
        for worker in (first, second):
            worker.start()
        device, trials = queues(store, [first, second], progress)
        os.kill(second.pid, signal.SIGKILL)
        told = submit_all(store, trials)
        trials.drain()
        assert trials.workers == [first]
    assert len(told) == 2 * len(PROBLEMS) and all(result.status == "ok" for _, results in told for result in results)
    assert fault_counts()[Fault.DEVICE_LOST] == 1
    assert len(progress.notes) == 1 and "fallen off the bus" in progress.notes[0]
    assert all(len(store.measurements(device, str(problem), "ok")) == 2 for problem in PROBLEMS)


@pytest.mark.process
def test_the_last_device_that_is_lost_ends_the_run(store):
    with Worker("cpu", child=StartsOnce) as only:
        only.start()
        _, trials = queues(store, [only], Progress())
        os.kill(only.pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match="fallen off the bus"):
            submit_all(store, trials)
            trials.drain()


@pytest.mark.process
def test_a_device_that_is_slow_does_not_hold_up_the_others(store):
    with Worker("cpu") as first, Worker("cpu") as second:
        for worker in (first, second):
            worker.start()
        _, trials = queues(store, [first, second], Progress())
        slow, fast = (next(one for one in PROBLEMS if trials.worker(one) is worker) for worker in (first, second))
        (row, *_) = operator_rows(store, slow, cpu_targets()[0], torch.__version__)
        ended = []
        os.kill(first.pid, signal.SIGSTOP)
        for number in range(6):  # more than its queue holds
            trials.submit(Told(slow, row, [{"i": number}], on_done=lambda _: ended.append(slow)))
        trials.submit(Told(fast, row, on_done=lambda _: ended.append(fast)))
        until = time.monotonic() + HANG
        while not ended and time.monotonic() < until:
            rooms = trials.rooms()
        assert ended == [fast] and rooms[trials.places[slow]] == 0 < rooms[trials.places[fast]]
        os.kill(first.pid, signal.SIGCONT)
        trials.drain()
        assert ended == [fast] + 6 * [slow]


@pytest.mark.process
def test_a_trial_that_was_made_before_may_ask_for_others(store):
    problem, told = PROBLEMS[0], []
    with Worker("cpu") as first, Worker("cpu") as second:
        device, trials = queues(store, [first, second], Progress())
        store.put_problem(str(problem))
        made, other = operator_rows(store, problem, cpu_targets()[0], torch.__version__)
        trials.submit(WantedTrial(problem, made))
        trials.drain()
        next_one = Told(problem, other, on_done=told.append)
        trials.submit(Told(problem, made, on_done=lambda _: trials.submit(next_one)))
        trials.drain()
    assert len(told) == 1 and len(store.measurements(device, str(problem))) == 2


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
    monkeypatch.setattr("autotune.tuner.trials.device_queues.candidate", made)
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
