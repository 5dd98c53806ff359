"""The tuner's side of the process that touches the device: it may crash, hang or ruin its context without hurting us.

We send requests and read an answer to each. Candidates may be sent before those ahead of them are answered, so that the
device goes on while we write down what came of the last. A process that does not answer by the deadline is killed; one
that died, or that says its device context is ruined, is replaced, and gets what it has not answered once more.
autotune/measure/worker_main.py is the other side.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from autotune.core import DeviceFacts, WorkerError
from autotune.ir import Network, Problem
from autotune.libraries import cudnn
from autotune.measure.network_bench import Pick
from autotune.measure.result import Result
from autotune.measure.timers import Timing
from autotune.runtime import Candidate

START_SECONDS = 180.0
"""Importing torch and making a CUDA context, on a slow disk."""


_ENDS = ("crashed", "timed_out", "leaks")
"""What costs the process: it may be gone, its device's context ruined, or its memory."""


@dataclass(frozen=True)
class TrialRequest:
    """A candidate on a problem, to be verified and timed. best_us: the problem's best time so far, if one is known."""

    problem: Problem
    candidate: Candidate
    timing: Timing
    best_us: float | None = None


@dataclass(frozen=True)
class FinalsRequest:
    """Verified candidates on one problem, to be timed in interleaved rounds."""

    problem: Problem
    candidates: tuple[Candidate, ...]
    timing: Timing
    rounds: int


@dataclass(frozen=True)
class NetworkRequest:
    """Whole networks, a pick for each layer, to be timed in interleaved rounds."""

    network: Network
    plans: tuple[tuple[Pick, ...], ...]
    rounds: int


@dataclass(frozen=True)
class VendorRequest:
    """All of cuDNN's plans for a problem; without one, only what would make them."""

    problem: Problem | None


class Worker:
    """Owns the measuring process of one device ("cpu", "cuda:0"). Use it as a context manager.

    deadline: seconds for one candidate; several GPUs have a worker each. timing: how candidates are timed.
    """

    def __init__(self, device: str, deadline: float = 30.0, timing: Timing = Timing()) -> None:  # noqa: B008 (frozen)
        self.device, self.deadline, self.timing = device, deadline, timing
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._sent: deque[TrialRequest] = deque()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The process's number; None while there is none."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def stop(self) -> None:
        """End the process, by force."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def facts(self) -> DeviceFacts:
        """The device and its measured limits."""
        answer = self._ask("facts", START_SECONDS)
        if not isinstance(answer, DeviceFacts):
            raise WorkerError(f"the measuring process for {self.device} failed: {answer.error}")
        return answer

    def send(self, problem: Problem, candidate: Candidate, best_us: float | None = None) -> None:
        """Have a candidate verified and timed, briefly if far behind the best; receive() tells what came of it."""
        if not self._sent:
            self._ensure()
        self._sent.append(TrialRequest(problem, candidate, self.timing, best_us))
        self._write(self._sent[-1])

    def receive(self) -> Result:
        """What came of the first that was sent of those that were not told of; waits for it."""
        started = time.perf_counter()
        answer: Result = self._answer(self.deadline)
        if "seconds" not in answer.details:  # the process ended: what that took is all that is known
            waited = {"verify": round(time.perf_counter() - started, 5)}
            answer = replace(answer, details={**answer.details, "seconds": waited})
        self._sent.popleft()
        if self._process is None and self._sent:
            self._ensure()
            for request in self._sent:
                self._write(request)
        return answer

    def finals(self, problem: Problem, candidates: Sequence[Candidate], rounds: int) -> list[Result]:
        """Time verified candidates in interleaved rounds; a failure of one is a failure of all."""
        deadline = self.deadline + rounds * len(candidates) * 0.1
        first = self._ask(FinalsRequest(problem, tuple(candidates), self.timing, rounds), deadline)
        return first if isinstance(first, list) else [first] * len(candidates)

    def plans(self, network: Network, plans: Sequence[Sequence[Pick]], rounds: int) -> list[Result]:
        """Time whole networks in interleaved rounds; a failure of one is a failure of all."""
        request = NetworkRequest(network, tuple(map(tuple, plans)), rounds)
        answer = self._ask(request, self.deadline)
        return answer if isinstance(answer, list) else [answer] * len(plans)

    def vendor(self, problem: Problem | None, deadline: float) -> cudnn.SerializedPlans:
        """All of cuDNN's plans for a problem, built but not run; without a problem, only what would make them."""
        answer = self._ask(VendorRequest(problem), deadline)
        if isinstance(answer, Result):
            return cudnn.SerializedPlans("", reason=f"cuDNN's plans cannot be listed: {answer.error}")
        return answer

    def _ask(self, request: object, deadline: float) -> Any:
        if self._sent:  # whoever sent them went away: what came of them would be taken for the answer to this
            self.stop()
            self._sent.clear()
        self._ensure()
        self._write(request)
        return self._answer(deadline)

    def _write(self, request: object) -> None:
        assert self._connection
        with suppress(BrokenPipeError, ConnectionResetError):  # it died: reading its answer tells how
            self._connection.send(request)

    def _answer(self, deadline: float) -> Any:
        assert self._connection
        try:
            if not self._connection.poll(deadline):
                self.stop()
                return Result("timed_out", f"no answer within {deadline:g} s")
            answer = self._connection.recv()
        except (EOFError, ConnectionResetError):
            assert self._process
            code = self._process.wait()
            self.stop()
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return Result("crashed", f"the process died: {name}")
        if isinstance(answer, Result) and answer.status in _ENDS:
            self.stop()
        return answer

    def _ensure(self) -> None:
        """Start the process if there is none; raises WorkerError if it does not come up."""
        if self.pid is not None:
            return
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "autotune.measure.worker_main", str(theirs.fileno()), self.device]
            with _interrupts_held():
                self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._connection = Connection(ours.detach())
        ready = self._answer(START_SECONDS)
        if ready != "ready":
            raise WorkerError(f"the measuring process for {self.device} does not start: {ready.error}")


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """A process started meanwhile never gets Ctrl-C, which is ours to handle: not even while its Python comes up."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
