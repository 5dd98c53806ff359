"""The tuner's side of the measuring process, which owns the device.

Trials may be sent ahead of the answers, so that the device works while the tuner stores the last result. A process that
misses its deadline is killed. A process that died, or whose device context is ruined, is replaced, and the new one gets
all trials that were not answered. A process that was killed from outside says nothing about the trial on which it
worked, which is sent once more. autotune/measure/worker_main.py is the other side.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, Protocol

from autotune.core import NEVER, Deadline, DeviceFacts, OutOfTimeError, WorkerError, timeline
from autotune.core.errors import Fault, record_fault
from autotune.core.process_tree import ChildProcess, Ended
from autotune.ir import Network, Problem
from autotune.libraries import cudnn, inductor
from autotune.measure.protocol import (
    NO_MEMORY,
    READY,
    Answer,
    DeviceRequest,
    FinalsRequest,
    LayerAssignment,
    LibraryRequest,
    NetworkRequest,
    Reply,
    Request,
    Result,
    TrialRequest,
    show,
)
from autotune.measure.timers import Timing
from autotune.runtime import Candidate

START_SECONDS = 180.0
"""Deadline for the start of the process: importing torch and making a CUDA context, from a slow disk."""

_ENDS_PROCESS = ("crashed", "timed_out", "leaks")
"""Statuses after which the process is replaced: its device context may be ruined, or its memory used up."""

_STARTS = 7
"""Times that the process is started when it is killed from outside before it is ready, or gets no memory on its GPU."""
_MEMORY_SECONDS = 5.0
"""Pause before the next start of a process that got no memory: another one of the run works on a large network."""

BACKGROUND_NICENESS = 5
"""Niceness of processes that work beside a search, whose measuring process must not wait for a core."""
_SECONDS_PER_SAMPLE = 0.1
"""Deadline of one sample of the finals; a sample takes about 1 ms."""


class Child(Protocol):
    """A process that exchanges messages with this one; process.ChildProcess is one on this machine."""

    @property
    def pid(self) -> int | None:
        """Process id; None while no child runs."""

    @property
    def running(self) -> bool:
        """True while a child runs."""

    @property
    def started(self) -> bool:
        """True if a child was started and not stopped since. It may have died meanwhile."""

    @property
    def has_message(self) -> bool:
        """True if `receive` would return at once."""

    def start(self) -> None:
        """Start the child; end one that runs already."""

    def send(self, message: object) -> None:
        """Send a message."""

    def receive(self, deadline: float) -> Any | Ended:
        """Wait for the next message, at most `deadline` seconds; after that the child is killed."""

    def stop(self) -> None:
        """Kill the child, if there is one. Another thread may call this."""


StartChild = Callable[[str, Sequence[str]], Child]
"""(module, arguments) -> a child process that can be started."""


class Worker:
    """The measuring process of one device. Use it as a context manager; several GPUs have one worker each.

    Args:
        device: "cpu" or "cuda:0".
        deadline: Seconds for one request. A candidate that takes longer is recorded as "timed_out".
        timing: How candidates are timed.
        until: The end of the run. Every method that waits for an answer raises OutOfTimeError at this deadline and
            kills the process; nothing is known then about the candidates that were not answered.
        compilers: Processes in which Inductor compiles; they take cores while a candidate is timed.
        niceness: Niceness of the process above that of this one.
        lane: Lane of its requests in the trace of a run.
        child: Makes the process; one on this machine, unless the device is elsewhere.
        cores: The cores that the process may run on; none for all.
    """

    def __init__(
        self,
        device: str,
        deadline: float = 30.0,
        timing: Timing = Timing(),  # noqa: B008 (frozen)
        until: Deadline = NEVER,
        compilers: int = 1,
        niceness: int = 0,
        lane: timeline.Lane = timeline.Lane.DEVICE,
        child: StartChild = ChildProcess,
        cores: Sequence[int] = (),
    ) -> None:
        self._lane, self._child = lane, child
        self.device, self.deadline, self.timing, self.until = device, deadline, timing, until
        arguments = [device, str(compilers), str(niceness), ",".join(map(str, cores))]
        self._process = child("autotune.measure.worker_main", arguments)
        self._sent: deque[TrialRequest] = deque()
        self._starting = Lock()
        self._was_killed = False  # the process, from outside, instead of the last answer

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """Process id; None while no process runs."""
        return self._process.pid

    def beside(self, lane: timeline.Lane, compilers: int = 1, niceness: int = BACKGROUND_NICENESS) -> Worker:
        """Return another measuring process of the same device, which works beside this one.

        Args:
            lane: Lane of its requests in the trace of a run.
            compilers: Processes in which Inductor compiles.
            niceness: Its niceness above that of this process.
        """
        return Worker(self.device, self.deadline, self.timing, self.until, compilers, niceness, lane, self._child)

    def start(self) -> None:
        """Start the process if none runs, or wait for a thread that starts it.

        Raises:
            OutOfTimeError: The run is over.
            WorkerError: The process does not get ready.
        """
        with self._starting:
            self._start()

    def _start(self) -> None:
        if self._process.running:
            return
        with timeline.span(self._lane, "start the process"):
            for _ in range(_STARTS):
                self._process.start()
                ready = self._receive(START_SECONDS)
                if not (isinstance(ready, Ended) and (ready.killed or ready.code == NO_MEMORY)):
                    break
                if ready.code == NO_MEMORY:
                    time.sleep(min(_MEMORY_SECONDS, self.until.left))
        if ready != READY:
            self.stop()
            reason = f"{ready.reason if isinstance(ready, Ended) else f'it sent {ready!r}'}; its own message is above"
            if isinstance(ready, Ended) and ready.code == NO_MEMORY:
                reason = "other processes use all memory of the GPU; end them, or tune fewer batch sizes at once"
            raise WorkerError(f"the measuring process for {self.device} does not start: {reason}")

    def stop(self) -> None:
        """Kill the process."""
        self._process.stop()

    def facts(self) -> DeviceFacts:
        """Measure the device's limits.

        Raises:
            WorkerError: If the process does not start, or fails while it measures.
        """
        answer = self._ask(DeviceRequest(), START_SECONDS)
        if not isinstance(answer, DeviceFacts):
            raise WorkerError(f"the measuring process for {self.device} cannot measure the device: {_error(answer)}")
        return answer

    def send(self, problem: Problem, candidate: Candidate, best_us: float | None = None) -> None:
        """Queue a candidate to be verified and timed; `receive` returns its result.

        Args:
            problem: What the candidate must compute.
            candidate: The kernel with its launch values.
            best_us: Shortest time of the problem so far; a much slower candidate gets fewer samples.
        """
        if not self._sent:
            self.start()
        self._sent.append(TrialRequest(problem, candidate, self.timing, best_us))
        self._process.send(self._sent[-1])

    @property
    def has_answer(self) -> bool:
        """True if `receive` returns without waiting for the candidate that was sent first."""
        return self._process.has_message

    def receive(self) -> Result:
        """Wait for the result of the oldest trial that was sent and not yet received."""
        started = time.perf_counter()
        deadline = self.deadline + _compile_seconds([self._sent[0].candidate])
        answer = self._answer(self._sent[0], deadline)
        if self._was_killed:
            self._send_again()
            answer = self._answer(self._sent[0], deadline)
        assert isinstance(answer, Result), f"a trial was answered by {answer!r}"
        if "seconds" not in answer.details:  # the process ended: only the time until then is known
            waited = {"verify": round(time.perf_counter() - started, 5)}
            answer = replace(answer, details={**answer.details, "seconds": waited})
        self._sent.popleft()
        if not self._process.started and self._sent:
            self._send_again()
        return answer

    def _send_again(self) -> None:
        """Send all trials that were not answered to a new process."""
        self.start()
        for request in self._sent:
            self._process.send(request)

    def finals(self, problem: Problem, candidates: Sequence[Candidate], rounds: int) -> list[Result]:
        """Time verified candidates in interleaved rounds; if one fails, all have its result."""
        deadline = self.deadline + rounds * len(candidates) * _SECONDS_PER_SAMPLE + _compile_seconds(candidates)
        answer = self._ask(FinalsRequest(problem, tuple(candidates), self.timing, rounds), deadline)
        return _results(answer, len(candidates))

    def time_networks(self, network: Network, plans: Sequence[Sequence[LayerAssignment]], rounds: int) -> list[Result]:
        """Time whole networks, one for each plan, in interleaved rounds; if one fails, all have its result."""
        compiled = {f"{one}": one.candidate for plan in plans for one in plan}
        deadline = self.deadline + rounds * len(plans) * _SECONDS_PER_SAMPLE + _compile_seconds(compiled.values())
        answer = self._ask(NetworkRequest(network, tuple(map(tuple, plans)), rounds), deadline)
        return _results(answer, len(plans))

    def library_plans(self, problem: Problem | None, deadline: float) -> cudnn.SerializedPlans:
        """Build all of cuDNN's plans for a problem, without running them.

        Args:
            problem: None asks only for cuDNN's version.
            deadline: Seconds to wait.

        Returns:
            The plans; if they cannot be built, no plans and the reason.
        """
        answer = self._ask(LibraryRequest(problem), deadline)
        if isinstance(answer, cudnn.SerializedPlans):
            return answer
        return cudnn.SerializedPlans("", reason=f"cuDNN's plans cannot be listed: {_error(answer)}")

    def _ask(self, request: Request, deadline: float) -> Answer:
        if self._sent:  # the caller gave these trials up; their answers must not be taken for the answer to `request`
            self.stop()
            self._sent.clear()
        self.start()
        self._process.send(request)
        answer = self._answer(request, deadline)
        if self._was_killed:
            self.start()
            self._process.send(request)
            answer = self._answer(request, deadline)
        return answer

    def _answer(self, request: Request, deadline: float) -> Answer:
        started = time.monotonic()
        message = self._receive(deadline)
        self._was_killed = isinstance(message, Ended) and message.killed
        if isinstance(message, Ended):  # only the time since this process waits for it is known
            _record_fault(request, message)
            reply = Reply(Result(message.status, message.reason), started, time.monotonic())
        else:
            reply = message
            if isinstance(reply.answer, Result) and reply.answer.status in _ENDS_PROCESS:
                self.stop()
        show(self._lane, request, reply)
        return reply.answer

    def _receive(self, seconds: float) -> Any:
        """Return the next message of the process, or how it ended; raises OutOfTimeError at the end of the run."""
        wait = min(seconds, self.until.left)
        message = self._process.receive(wait)
        if wait < seconds and isinstance(message, Ended) and message.status == "timed_out":
            self._sent.clear()
            raise OutOfTimeError(f"the run ended before the measuring process for {self.device} answered")
        return message


def _record_fault(request: Request, ended: Ended) -> None:
    """Count how a process ended, unless this process ended it because the run is over."""
    if ended.killed:
        record_fault(Fault.MEASURING_PROCESS_KILLED)
    elif isinstance(request, TrialRequest | FinalsRequest | NetworkRequest):
        if ended.status == "timed_out":
            record_fault(Fault.CANDIDATE_HUNG)
        elif ended.code not in (None, -signal.SIGKILL):
            record_fault(Fault.CANDIDATE_CRASHED)


def _compile_seconds(candidates: Iterable[Candidate]) -> float:
    """Return the deadline of compiling candidates."""
    return sum(inductor.compile_seconds(candidate.family, candidate.config) for candidate in candidates)


def _results(answer: Answer, count: int) -> list[Result]:
    """Return one result for each of `count` items; a single failure counts for all of them."""
    if isinstance(answer, Result):
        return [answer] * count
    assert isinstance(answer, list), f"finals were answered by {answer!r}"
    return answer


def _error(answer: Answer) -> str:
    return f"{answer.error}" if isinstance(answer, Result) else f"it sent {answer!r}"
