"""The tuner's side of the process that touches the device: it may crash, hang or ruin its context without hurting us.

We send a request and read one answer for each candidate in it. A process that does not answer by the deadline is
killed; one that died, or that says its device context is ruined, is replaced before the next request. autotune/serve.py
is the other side.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from autotune.device import DeviceFacts
from autotune.errors import WorkerError
from autotune.network import Pick
from autotune.problem import Problem
from autotune.result import Result
from autotune.timing import Timing
from autotune.vendor import cudnn
from fused_resnet.binding import Candidate
from fused_resnet.graph import Network

START_SECONDS = 180.0
"""Importing torch and making a CUDA context, on a slow disk."""


_ENDS = ("crashed", "timed_out", "leaks")
"""What costs the process: it may be gone, its device's context ruined, or its memory."""


@dataclass(frozen=True)
class Request:
    """candidates on one problem. rounds = 0: verify and time each by itself; else time all in that many rounds."""

    problem: Problem
    candidates: tuple[Candidate, ...]
    timing: Timing
    rounds: int = 0


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

    def trial(self, problem: Problem, candidates: Sequence[Candidate]) -> Iterator[Result]:
        """Verify and time each candidate by itself; yields one result for each, in order."""
        left = list(candidates)
        try:
            while left:
                answer = self._ask(Request(problem, tuple(left), self.timing), self.deadline)
                while True:
                    left.pop(0)
                    yield answer
                    if not left or answer.status in _ENDS:
                        break
                    answer = self._answer(self.deadline)
        finally:
            if left:  # the caller went away: answers to come would be taken for those of the next request
                self.stop()

    def finals(self, problem: Problem, candidates: Sequence[Candidate], rounds: int) -> list[Result]:
        """Time verified candidates in interleaved rounds; a failure of one is a failure of all."""
        deadline = self.deadline + rounds * len(candidates) * 0.1
        first = self._ask(Request(problem, tuple(candidates), self.timing, rounds), deadline)
        return first if isinstance(first, list) else [first] * len(candidates)

    def plans(self, network: Network, plans: Sequence[Sequence[Pick]], rounds: int) -> list[Result]:
        """Time whole networks in interleaved rounds; a failure of one is a failure of all."""
        request = NetworkRequest(network, tuple(map(tuple, plans)), rounds)
        answer = self._ask(request, self.deadline)
        return answer if isinstance(answer, list) else [answer] * len(plans)

    def vendor(self, problem: Problem | None, deadline: float) -> cudnn.Offers:
        """All of cuDNN's plans for a problem, built but not run; without a problem, only what would make them."""
        answer = self._ask(VendorRequest(problem), deadline)
        if isinstance(answer, Result):
            return cudnn.Offers("", reason=f"cuDNN's plans cannot be listed: {answer.error}")
        return answer

    def _ask(self, request: object, deadline: float) -> Any:
        self._ensure()
        assert self._connection
        self._connection.send(request)
        return self._answer(deadline)

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
            command = [sys.executable, "-m", "autotune.serve", str(theirs.fileno()), self.device]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._connection = Connection(ours.detach())
        ready = self._answer(START_SECONDS)
        if ready != "ready":
            raise WorkerError(f"the measuring process for {self.device} does not start: {ready.error}")
