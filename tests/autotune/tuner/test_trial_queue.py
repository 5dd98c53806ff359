"""Trials and the schedule in simulated time: the device does not wait while we record and choose."""

from collections import deque
from types import SimpleNamespace

import pytest

from autotune.ir import parse
from autotune.measure import Result
from autotune.search import Schedule, Space, SpaceStudy, create_studies
from autotune.search.legal_sampler import CostModelSampler
from autotune.search.schedule import ASK_BATCH, MEASURE_BATCH, WARM_START_BATCH
from autotune.tuner import Progress, TimeBreakdown
from autotune.tuner.trial_queue import TrialQueue, WantedTrial
from tuning_db.store import CLAIMS

PROBLEM = parse("gemm m=64 n=64 k=64 dtype=f16")
TRIAL = 10.0
NOTHING = "asked for nothing"
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
    monkeypatch.setattr("autotune.tuner.trial_queue.candidate", made)
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
    monkeypatch.setattr("autotune.tuner.time_breakdown.time.perf_counter", lambda: now[0])
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


class Bench:
    """Compiles at once; what is measured is told when it is asked for. said: what it was asked, in order."""

    def __init__(self, study):
        self.study, self.said, self.made, self.under_way = study, [], [], []

    def time_left(self):
        return True

    def devices(self):
        return 1

    def place(self, problem):
        return 0

    def rooms(self):
        return [MEASURE_BATCH]

    def idle_compilers(self):
        return 1

    def compilers(self):
        return 1

    def exists(self, kernel):
        return False

    def trial_seconds(self, kernel):
        return 1.0

    def compile(self, kernels, search_seconds):
        self.said.append(
            " ".join(["asked", *(["beside"] if self.under_way else []), *([] if kernels else ["for nothing"])])
        )
        self.made += kernels

    def ready(self, wait):
        assert not (wait and self.under_way), "it waits for compilers while results can be told"
        made, self.made = self.made, []
        return made

    def measure(self, kernels):
        self.said.append("measured")
        self.under_way += kernels

    def finish(self):
        done, self.under_way = self.under_way, []
        for kernel in done:
            self.study.tell(kernel.values, 1.0)
        return bool(done)


def test_what_to_try_next_is_asked_while_the_device_works():
    configs = [{"a": i} for i in range(4 * MEASURE_BATCH)]
    [study] = create_studies("cost-model", [Space.ranked(PROBLEM, "f", configs, list(range(len(configs))))])
    bench = Bench(study)
    Schedule([study], bench, "sm_90", lambda _: len(configs)).run()
    more = ASK_BATCH // WARM_START_BATCH - 1 + 3  # of the first four it is asked for two at a time
    assert bench.said == [
        "asked",
        "measured",
        *["asked beside", "measured"] * more,
        "asked beside for nothing",
        NOTHING,
    ]
    assert study.num_observed == len(configs) and not study.pending


def test_what_the_last_results_teach_is_asked_for_too():
    class Once(Bench):
        def devices(self):
            return 1

        def idle_compilers(self):
            return 0 if self.under_way else 1  # only what was told leads to more

    configs = [{"a": i} for i in range(3 * MEASURE_BATCH)]
    [study] = create_studies("cost-model", [Space.ranked(PROBLEM, "f", configs, list(range(len(configs))))])
    bench = Once(study)
    Schedule([study], bench, "sm_90", lambda _: len(configs)).run()
    assert bench.said == [
        *["asked", "measured"] * (ASK_BATCH // WARM_START_BATCH + 2),
        NOTHING,
    ] and study.num_observed == len(configs)


def test_studies_that_rest_are_told_all_before_they_are_asked_again():
    class Careful(CostModelSampler):
        def wants_trial(self, study):
            return super().wants_trial(study) and len(self.pending()) < 2 * MEASURE_BATCH

    class Roomy(Bench):
        def devices(self):
            return 1

        def idle_compilers(self):
            return 2 * MEASURE_BATCH

    configs = [{"a": i} for i in range(4 * MEASURE_BATCH)]
    space = Space.ranked(PROBLEM, "f", configs, list(range(len(configs))))
    study = SpaceStudy(space, Careful(space))
    bench = Roomy(study)
    Schedule([study], bench, "sm_90", lambda _: len(configs)).run()
    assert bench.said == ["asked", "measured", "asked beside for nothing", "measured"] * 2 + [NOTHING]
