"""Trials beside a search: they go on while nobody waits, and what has not ended is given up."""

import time
from dataclasses import replace

import pytest
from processes import HANG

from autotune.core import Deadline
from autotune.ir import parse
from autotune.measure import Worker
from autotune.tuner import Progress
from autotune.tuner.request import RUN_SECONDS
from autotune.tuner.trials.background_trials import BackgroundTrials
from autotune.tuner.trials.device_queues import WantedTrial
from autotune.tuner.trials.library_trials import operator_rows
from tuning_db import Store

pytestmark = pytest.mark.process

PROBLEMS = [parse(f"conv2d n=1 h=6 w=6 c=8 k={k} r=3 s=3 pad=1 dtype=f32 epilogue=relu") for k in (8, 16, 24, 32)]


class Log(Progress):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def database(tmp_path, cpu_target):
    with Store.create(tmp_path / "trials.db") as store:
        device = store.put_device("a CPU", cpu_target, flops_per_us=1.0, bytes_per_us=1.0, details={})
        rows = [(problem, row) for problem in PROBLEMS for row in operator_rows(store, problem, cpu_target, "2")]
        work = [WantedTrial(*one) for one in rows]
        yield store, device, work


def num_timed(store, device):
    return sum(len(store.measurements(device, str(problem), "ok")) for problem in PROBLEMS)


def test_trials_end_while_nobody_waits(database):
    store, device, work = database
    with BackgroundTrials(store, device, Worker("cpu"), work, Progress()) as trials:
        trials.advance()  # the process has not started: this returns at once
        assert not trials.is_done and not num_timed(store, device)
        until = Deadline.after(HANG)
        while not (trials.is_done or until.is_over):
            trials.advance()
            time.sleep(0.01)
    assert num_timed(store, device) == len(work) >= len(PROBLEMS)


def test_what_has_not_ended_is_given_up(database):
    store, device, work = database
    worker = Worker("cpu", until=Deadline.after(300.0))
    with BackgroundTrials(store, device, worker, work, Progress()) as trials:
        trials.wait(Deadline.after(0.01))
        assert not trials.is_done
    assert worker.pid is None and num_timed(store, device) < len(work)
    tried = [row for problem in PROBLEMS for row in store.measurements(device, str(problem))]
    unfinished = [row for row in tried if row.status == "timed_out"]
    assert len(tried) == len(work) and unfinished
    assert all(row.details[RUN_SECONDS] == pytest.approx(300.0, abs=30.0) for row in unfinished)


def test_a_candidate_is_tried_again_if_the_process_needs_it(database):
    store, device, work = database
    for again, expected in ((False, 1), (False, 1), (True, 2)):
        with BackgroundTrials(store, device, Worker("cpu"), [replace(work[0], again=again)], Progress()) as trials:
            trials.wait(Deadline.after(HANG))
        assert len(store.measurements(device, str(PROBLEMS[0]), "ok")) == expected


def test_a_process_that_does_not_start_ends_no_run(database):
    store, device, work = database
    worker, log = Worker("cuda:99"), Log()
    with BackgroundTrials(store, device, worker, work, log) as trials:
        trials.wait(Deadline.after(HANG))
        assert trials.is_done
    assert num_timed(store, device) == 0
    (said,) = log.notes
    assert said.startswith("nothing is compiled by Inductor: the measuring process for cuda:99 does not start")
