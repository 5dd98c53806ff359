"""The measuring process against kernels that crash, hang, lie and write where they must not."""

import os
import signal
import subprocess
import time
from dataclasses import replace

import faults
import pytest
import torch
from faults import PROBLEM
from kernels import tried

from autotune.core import DeviceFacts, WorkerError, device_name
from autotune.core.errors import Fault, fault_counts, forget_faults
from autotune.ir import parse
from autotune.libraries import aten
from autotune.measure import CandidateBench, ChildProcess, Worker, worker_client
from autotune.measure.protocol import NO_MEMORY
from autotune.runtime import Binary, Candidate, engine

OTHER = parse("avg_pool2d n=1 h=6 w=6 c=3 r=2 s=2 stride=2 dtype=f32")
FAULTS = {
    **faults.FAULTS,
    "aborts": ("crashed", "SIGABRT"),
    "loops": ("timed_out", f"no answer within {faults.DEADLINE:g} s"),
    "unpadded_mean": ("wrong", "relative error"),
    "infinite": ("wrong", "not finite"),
    "writes_far": ("crashed", "SIGSEGV"),
    "throws": ("crashed", "RuntimeError: the kernel has given up"),
    "leaks": ("leaks", "memory grew by"),
    "refuses": ("refused", "c=7 is not what this kernel likes"),
    "fails_to_launch": ("crashed", "the launch went wrong"),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return faults.library(tmp_path_factory.mktemp("faulty"))


@pytest.fixture(scope="module")
def faulty(library):
    return faults.on_cpu(library)


@pytest.fixture(scope="module")
def results(worker, faulty):
    return faults.answers(worker, faulty, FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_named_for_what_it_is(name, results):
    faults.assert_told(results[name][0], *FAULTS[name])


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
    forget_faults()
    answers = worker.finals(PROBLEM, [faulty("good"), faulty("segfault")], rounds=2)
    assert [answer.status for answer in answers] == ["crashed", "crashed"]
    assert fault_counts() == {Fault.CANDIDATE_CRASHED: 1}
    assert tried(worker, PROBLEM, [faulty("good")])[0].status == "ok"


def test_an_abandoned_trial_does_not_answer_the_next_request(worker, faulty):
    for name in ("good", "good", "scaled"):
        worker.send(PROBLEM, faulty(name))
    assert worker.receive().status == "ok"
    assert isinstance(worker.facts(), DeviceFacts)
    assert [answer.status for answer in tried(worker, OTHER, [faulty("scaled"), faulty("good")])] == ["wrong", "ok"]


def test_a_trial_whose_process_was_killed_is_measured_by_the_next_with_all_behind_it(worker, faulty):
    assert [answer.status for answer in tried(worker, OTHER, [faulty("good")])] == ["ok"]
    forget_faults()
    kill_amid_a_trial(worker, faulty)
    worker.send(OTHER, faulty("scaled"))
    worker.send(OTHER, faulty("good"))
    answers = [worker.receive() for _ in range(3)]
    assert fault_counts() == {Fault.MEASURING_PROCESS_KILLED: 1}
    assert [answer.status for answer in answers] == ["ok", "wrong", "ok"]
    assert all(sum(answer.details["seconds"].values()) >= 0 for answer in answers)


def test_a_trial_whose_process_is_killed_twice_has_crashed(worker, faulty):
    worker.send(OTHER, faulty("kills"))
    worker.send(OTHER, faulty("good"))
    answers = [worker.receive() for _ in range(2)]
    assert [answer.status for answer in answers] == ["crashed", "ok"] and "SIGKILL" in answers[0].error


def kill_amid_a_trial(worker, faulty):
    os.kill(worker.pid, signal.SIGSTOP)
    worker.send(OTHER, faulty("good"))
    os.kill(worker.pid, signal.SIGKILL)
    while worker.pid is not None:
        time.sleep(0.01)


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


def test_an_exit_is_told_with_its_code_and_stopping_ends_the_process(worker, faulty):
    failed, good = tried(worker, OTHER, [faulty("exits"), faulty("good")])
    assert failed.status == "crashed" and "exit code 3" in failed.error and good.status == "ok"
    pid = worker.pid
    worker.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert worker.pid is None


@pytest.mark.compile
def test_libraries_and_kernels_that_are_none_are_refused_in_words(library, faulty, tmp_path):
    path = tmp_path / "empty.so"
    subprocess.run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", str(path)], check=True)
    text, empty = (Binary.of("shared_library", data) for data in (b"not a library", path.read_bytes()))
    case = CandidateBench(PROBLEM, torch.device("cpu"))
    for chosen, said in [
        (replace(faulty("good"), binary=text), "does not load"),
        (replace(faulty("good"), binary=empty), "not a kernel library"),
        (faulty("absent"), "no kernel named absent"),
        (faulty("fails_to_prepare"), "c=7 is not what this kernel likes"),
    ]:
        with pytest.raises(engine.EngineError, match=said):
            case.bind(chosen)


@pytest.mark.process
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_an_error_of_one_sentence():
    with Worker("cuda:0") as worker, pytest.raises(WorkerError, match="measuring process for cuda:0 does not start"):
        worker.facts()


def test_a_request_that_is_none_is_answered_by_an_error(worker):
    answer = worker._ask("facts", 60.0)
    assert answer.status == "crashed" and "'facts'" in answer.error
    assert isinstance(worker.facts(), DeviceFacts), "the next process answers again"


@pytest.mark.process
@pytest.mark.parametrize("starts", [2, 99])
def test_a_process_without_memory_on_its_gpu_is_started_again(starts, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_client, "_MEMORY_SECONDS", 0.01)
    counter = tmp_path / "starts"

    def child(_, arguments):
        return ChildProcess("full_gpu", [str(counter), str(starts), str(NO_MEMORY), *arguments])

    with Worker("cpu", child=child) as worker:
        if starts == 2:
            worker.start()
            assert counter.stat().st_size == 3
        else:
            with pytest.raises(WorkerError, match="other processes use all memory of the GPU"):
                worker.start()
