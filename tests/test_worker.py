"""The measuring process against kernels that crash, hang, lie and write where they must not."""

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import tried

from autotune import paths
from autotune.device import DeviceFacts, device_name
from autotune.errors import WorkerError
from autotune.measure import Case
from autotune.problem import parse
from autotune.vendor import aten
from autotune.worker import Worker
from fused_resnet import engine
from fused_resnet.binding import Candidate

PROBLEM = parse("avg_pool2d n=2 h=9 w=7 c=7 r=3 s=3 stride=2 pad=1 dtype=f32")
OTHER = parse("avg_pool2d n=1 h=6 w=6 c=3 r=2 s=2 stride=2 dtype=f32")

FAULTS = {
    "segfault": ("crashed", "SIGSEGV"),
    "aborts": ("crashed", "SIGABRT"),
    "loops": ("timed_out", "no answer within 5 s"),
    "does_nothing": ("wrong", "never written"),
    "scaled": ("wrong", "relative error of 1.00e-03"),
    "unpadded_mean": ("wrong", "relative error"),
    "one_missing": ("wrong", "never written"),
    "one_wrong": ("wrong", "relative error"),
    "infinite": ("wrong", "not finite"),
    "writes_behind": ("wrong", "bytes around y were overwritten"),
    "writes_before": ("wrong", "bytes around y were overwritten"),
    "writes_input": ("wrong", "x was overwritten"),
    "writes_far": ("crashed", "SIGSEGV"),
    "throws": ("crashed", "RuntimeError: the kernel has given up"),
    "made_up": ("wrong", "relative error"),
    "jitters": ("unstable", "the same input gave other results in another run: y differs in 1 of 280 elements"),
    "tires": ("unstable", "after many launches y differs in 1 of 280 elements"),
    "strays": ("wrong", "after many launches x was overwritten"),
    "keeps_largest": ("wrong", "the result depends on what the output held before: y differs in 140 of 280"),
    "leaks": ("leaks", "memory grew by"),
    "refuses": ("refused", "c=7 is not what this kernel likes"),
    "fails_to_launch": ("crashed", "the launch went wrong"),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("faulty") / "faulty.so"
    source = Path(__file__).parent / "kernels" / "faulty.cpp"
    flags = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"-I{paths.templates()}"]
    subprocess.run(["g++", *flags, str(source), "-o", str(path)], check=True)
    return path


@pytest.fixture(scope="module")
def faulty(library):
    return lambda name: Candidate("faulty", "{}", name, "shared_library", library)


@pytest.fixture(scope="module")
def worker():
    with Worker("cpu", deadline=5) as worker:
        yield worker


@pytest.fixture(scope="module")
def results(worker, faulty):
    """One request: each fault, and the good kernel after it."""
    names = [name for fault in FAULTS for name in (fault, "good")]
    answers = tried(worker, PROBLEM, [faulty(name) for name in names])
    assert len(answers) == len(names)
    return {fault: (answers[2 * i], answers[2 * i + 1]) for i, fault in enumerate(FAULTS)}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_named_for_what_it_is(name, results):
    status, text = FAULTS[name]
    answer = results[name][0]
    assert (answer.status, answer.median_us, answer.samples_us) == (status, None, [])
    assert text in answer.error
    assert "\n" not in answer.error and "Traceback" not in answer.error


@pytest.mark.parametrize("name", FAULTS)
def test_a_good_kernel_after_it_is_still_measured(name, results):
    answer = results[name][1]
    assert answer.status == "ok" and answer.error is None
    assert answer.median_us > 0 and answer.spread_us >= 0 and len(answer.samples_us) > 1
    assert 0 <= answer.relative_error < 1e-6


def test_memory_that_is_taken_once_is_no_leak(worker, faulty):
    assert [answer.status for answer in tried(worker, OTHER, [faulty("grows_once")])] == ["ok"]


def test_finals_time_every_candidate_in_every_round(worker, faulty):
    torch_itself = Candidate(aten.FAMILY, '{"memory_format": "channels_last"}', "")
    answers = worker.finals(PROBLEM, [faulty("good"), torch_itself, faulty("good")], rounds=4)
    assert [answer.status for answer in answers] == ["ok"] * 3
    assert all(len(answer.samples_us) == 4 and answer.details["rounds"] == 4 for answer in answers)


def test_finals_with_a_crash_fail_as_a_whole_and_the_next_request_works(worker, faulty):
    answers = worker.finals(PROBLEM, [faulty("good"), faulty("segfault")], rounds=2)
    assert [answer.status for answer in answers] == ["crashed", "crashed"]
    assert tried(worker, PROBLEM, [faulty("good")])[0].status == "ok"


def test_an_abandoned_trial_does_not_answer_the_next_request(faulty):
    with Worker("cpu") as worker:
        for name in ("good", "good", "scaled"):
            worker.send(PROBLEM, faulty(name))
        assert worker.receive().status == "ok"
        assert isinstance(worker.facts(), DeviceFacts)
        assert [answer.status for answer in tried(worker, OTHER, [faulty("scaled"), faulty("good")])] == ["wrong", "ok"]


def test_what_waits_behind_a_process_that_was_killed_is_measured_by_the_next(faulty):
    with Worker("cpu") as worker:
        assert [answer.status for answer in tried(worker, OTHER, [faulty("good")])] == ["ok"]
        os.kill(worker.pid, signal.SIGSTOP)
        worker.send(OTHER, faulty("good"))
        os.kill(worker.pid, signal.SIGKILL)
        while worker.pid is not None:
            time.sleep(0.01)
        worker.send(OTHER, faulty("scaled"))
        worker.send(OTHER, faulty("good"))
        answers = [worker.receive() for _ in range(3)]
    assert [answer.status for answer in answers] == ["crashed", "wrong", "ok"] and "SIGKILL" in answers[0].error
    assert all(sum(answer.details["seconds"].values()) >= 0 for answer in answers)


def test_a_worker_killed_from_outside_is_replaced(worker, faulty):
    facts = worker.facts()
    assert isinstance(facts, DeviceFacts) and facts.name == device_name(torch.device("cpu"))
    assert facts.flops_per_us > 100 and facts.bytes_per_us > 10
    first = worker.pid
    os.kill(first, signal.SIGKILL)
    while worker.pid is not None:
        time.sleep(0.01)
    assert tried(worker, PROBLEM, [faulty("good")])[0].status == "ok"
    assert worker.pid not in (None, first)


def test_an_exit_is_told_with_its_code_and_stopping_ends_the_process(faulty):
    with Worker("cpu") as worker:
        failed, good = tried(worker, OTHER, [faulty("exits"), faulty("good")])
        assert failed.status == "crashed" and "exit code 3" in failed.error and good.status == "ok"
        pid = worker._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_libraries_and_kernels_that_are_none_are_refused_in_words(library, faulty, tmp_path):
    text = tmp_path / "text.so"
    text.write_text("not a library")
    empty = tmp_path / "empty.so"
    subprocess.run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", str(empty)], check=True)
    case = Case(PROBLEM, torch.device("cpu"))
    for chosen, said in [
        (replace(faulty("good"), path=text), "does not load"),
        (replace(faulty("good"), path=empty), "not a kernel library"),
        (faulty("absent"), "no kernel named absent"),
        (faulty("fails_to_prepare"), "c=7 is not what this kernel likes"),
    ]:
        with pytest.raises(engine.EngineError, match=said):
            case.bind(chosen)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_an_error_of_one_sentence():
    with Worker("cuda:0") as worker, pytest.raises(WorkerError, match="measuring process for cuda:0 does not start"):
        worker.facts()
