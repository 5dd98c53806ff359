"""The process that touches the device: it may crash, hang or ruin its context without hurting the tuner.

The parent sends a request and reads one answer for each candidate in it. A worker that does not answer by the
deadline is killed; one that died, or that says its device context is ruined, is replaced before the next request.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from autotune.device import DeviceFacts, measure_device
from autotune.errors import WorkerError
from autotune.measure import Case, Result
from autotune.network import NetworkCase, Pick
from autotune.problem import Problem
from fused_resnet.binding import Candidate
from fused_resnet.graph import Network

if TYPE_CHECKING:
    import torch

START_SECONDS = 180.0
"""Importing torch and making a CUDA context, on a slow disk."""

_CASES_KEPT = 24


@dataclass(frozen=True)
class Request:
    """candidates on one problem. rounds = 0: verify and time each by itself; else time all in that many rounds."""

    problem: Problem
    candidates: tuple[Candidate, ...]
    rounds: int = 0


@dataclass(frozen=True)
class NetworkRequest:
    """Whole networks, a pick for each layer, to be timed in interleaved rounds."""

    network: Network
    plans: tuple[tuple[Pick, ...], ...]
    rounds: int


class Worker:
    """Owns the measuring process of one device ("cpu", "cuda:0"). Use it as a context manager."""

    def __init__(self, device: str, deadline: float = 30.0) -> None:
        self.device, self.deadline = device, deadline
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._connection: Connection | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process, by force."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
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
                answer = self._ask(Request(problem, tuple(left)), self.deadline)
                while True:
                    left.pop(0)
                    yield answer
                    if not left or answer.status in ("crashed", "timed_out"):
                        break
                    answer = self._answer(self.deadline)
        finally:
            if left:  # the caller went away: answers to come would be taken for those of the next request
                self.stop()

    def finals(self, problem: Problem, candidates: Sequence[Candidate], rounds: int) -> list[Result]:
        """Time verified candidates in interleaved rounds; a failure of one is a failure of all."""
        deadline = self.deadline + rounds * len(candidates) * 0.1
        first = self._ask(Request(problem, tuple(candidates), rounds), deadline)
        return first if isinstance(first, list) else [first] * len(candidates)

    def plans(self, network: Network, plans: Sequence[Sequence[Pick]], rounds: int) -> list[Result]:
        """Time whole networks in interleaved rounds; a failure of one is a failure of all."""
        request = NetworkRequest(network, tuple(map(tuple, plans)), rounds)
        answer = self._ask(request, self.deadline)
        return answer if isinstance(answer, list) else [answer] * len(plans)

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
            self._process.join()
            code = self._process.exitcode
            self.stop()
            name = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
            return Result("crashed", f"the process died: {name}")
        if isinstance(answer, Result) and answer.status == "crashed":
            self.stop()  # its device context may be ruined
        return answer

    def _ensure(self) -> None:
        """Start the process if there is none; raises WorkerError if it does not come up."""
        if self._process is not None and self._process.is_alive():
            return
        self._connection, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self.device), daemon=True)
        process.start()
        self._process = process
        theirs.close()
        ready = self._answer(START_SECONDS)
        if ready != "ready":
            raise WorkerError(f"the measuring process for {self.device} does not start: {ready.error}")


def _serve(connection: Connection, device_name: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    import torch

    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.set_device(device)
    server = _Server(device)
    connection.send("ready")
    with torch.inference_mode():
        while True:
            try:
                request = connection.recv()
            except EOFError:
                return
            try:
                for answer in server.answers(request):
                    connection.send(answer)
            except Exception as error:  # no memory, a failed launch, an illegal address: the context may be ruined
                lines = str(error).splitlines() or [""]
                connection.send(Result("crashed", f"{type(error).__name__}: {lines[0]}"))
                return


class _Server:
    """Answers requests; keeps the operands and references of the last problems, and the last network."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cases: OrderedDict[str, Case] = OrderedDict()
        self._network: NetworkCase | None = None

    def answers(self, request: object) -> Iterator[object]:
        """One answer for each candidate of a trial; one for all of anything else."""
        if isinstance(request, NetworkRequest):
            if self._network is None or self._network.network.key != request.network.key:
                self._network = NetworkCase(request.network, self._device)
            yield self._network.compare(request.plans, request.rounds)
        elif isinstance(request, Request):
            case = self._case(request.problem)
            if request.rounds:
                yield case.finals(request.candidates, request.rounds)
            else:
                yield from map(case.run, request.candidates)
        else:
            yield measure_device(self._device)

    def _case(self, problem: Problem) -> Case:
        key = str(problem)
        if key not in self._cases:
            self._cases[key] = Case(problem, self._device)
        self._cases.move_to_end(key)
        while len(self._cases) > _CASES_KEPT:
            self._cases.popitem(last=False)
        return self._cases[key]
