"""A measuring process on another machine, with the interface of measure.ChildProcess."""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Protocol

from autotune.core import WorkerError
from autotune.measure import Ended

START_SECONDS = 60.0
"""Time limit for a relay to start a process, which it does within a second. Then another machine is tried."""
_STARTS = 3
SILENCE_SECONDS = 10.0
"""A machine that does not answer for this long hangs, or has lost its network."""
_POLL_SECONDS = 0.0005
_LOOK_SECONDS = 1.0  # between two looks whether the machine is there
_NO_LIMIT = 1e6  # seconds, on the other machine: the time limit is kept here


class Pending(Protocol):
    """An answer of a relay that may not be there yet."""

    def done(self) -> bool:
        """Return whether `result` returns or raises at once."""

    def result(self, timeout: float | None = None) -> Any:
        """Return the answer; raises TimeoutError, or whatever kept the relay from answering."""


class Host(Protocol):
    """A machine that measures, or another one in its place."""

    def relay(self) -> RelayClient:
        """Return a relay of the machine; raises WorkerError if there is no machine."""

    def is_alive(self) -> bool:
        """Return whether the machine of the last relay is known to be there."""

    def lose(self) -> None:
        """Take another machine from now on: this one does not answer."""


class RelayClient(Protocol):
    """The client's side of a relay: each method of relay.Relay returns an answer that is pending."""

    def ping(self) -> Pending:
        """Ask for the id of the relay's process."""

    def start(self, name: str, module: str, arguments: Sequence[str]) -> Pending:
        """Start a process."""

    def send(self, name: str, number: int, message: object) -> Pending:
        """Send a message to a process."""

    def receive(self, name: str, seconds: float) -> Pending:
        """Ask for the next message of a process."""

    def stop(self, name: str) -> Pending:
        """Kill a process."""


class RemoteChild:
    """A process that a relay runs. It implements measure.Child.

    A machine that is lost says nothing about what the process worked on: `receive` returns an `Ended` as for a process
    that was killed from outside, and the next `start` may use another machine.

    Args:
        host: The machine.
        module: Name of the module that the process runs.
        arguments: Its arguments.
    """

    def __init__(self, host: Host, module: str, arguments: Sequence[str] = ()) -> None:
        self._host, self._module, self._arguments = host, module, tuple(arguments)
        self._relay: RelayClient | None = None
        self._channel, self._num_sent = "", 0
        self._answers: deque[Pending] = deque()
        self._pid: int | None = None

    @property
    def pid(self) -> int | None:
        """Process id on the other machine; None while no process runs."""
        return self._pid if self._relay else None

    @property
    def running(self) -> bool:
        """True while a process runs, as far as is known here."""
        return self._relay is not None

    @property
    def started(self) -> bool:
        """True if a process was started and not stopped since. It may have died meanwhile."""
        return self._relay is not None

    def start(self) -> None:
        """Start the process; end one that runs already.

        Raises:
            WorkerError: No machine starts it.
        """
        self.stop()
        for attempt in range(_STARTS):
            relay, self._channel, self._num_sent = self._host.relay(), uuid.uuid4().hex, 0
            try:
                started = relay.start(self._channel, self._module, self._arguments)
                if not self._wait(started, START_SECONDS):
                    raise WorkerError(f"no answer within {START_SECONDS:g} s")
                self._pid = started.result()
                break
            except (Exception, CancelledError) as error:  # a transport's errors have no common base
                self._host.lose()
                if attempt == _STARTS - 1:
                    raise WorkerError(f"no measuring process could be started: {_words(error)}") from error
        self._relay = relay
        self._answers.append(relay.receive(self._channel, _NO_LIMIT))  # that it is ready

    def send(self, message: object) -> None:
        """Send a message. If the machine is lost, nothing is sent and the next `receive` says so."""
        assert self._relay, "the process was not started"
        with suppress(Exception):
            self._relay.send(self._channel, self._num_sent, message)
            self._answers.append(self._relay.receive(self._channel, _NO_LIMIT))
            self._num_sent += 1

    @property
    def has_message(self) -> bool:
        """True if `receive` would return at once."""
        return self._relay is None or not self._answers or self._answers[0].done()

    def receive(self, deadline: float) -> Any | Ended:
        """Wait for the next message of the process.

        Args:
            deadline: Seconds to wait; after that the process is killed.

        Returns:
            The message, or `Ended` if the process died, missed the deadline, or its machine was lost.
        """
        relay = self._relay
        if relay is None or not self._answers:
            self.stop()
            return Ended("crashed", "the process was stopped", killed=relay is not None)
        answer = self._answers[0]
        try:
            if not self._wait(answer, deadline):
                return self._missed(relay, deadline)
            message = answer.result()
        except (Exception, CancelledError) as error:
            if self._relay is relay:
                return self._lost(f"the machine was lost: {_words(error)}")
        if self._relay is not relay:  # another thread has stopped it
            return Ended("crashed", "the process was stopped")
        self._answers.popleft()
        if isinstance(message, Ended):
            self.stop()
        return message

    def stop(self) -> None:
        """Kill the process, if there is one. Another thread may call this."""
        relay, self._relay = self._relay, None
        self._answers.clear()
        if relay is not None:
            with suppress(Exception):
                relay.stop(self._channel)

    def _wait(self, answer: Pending, seconds: float) -> bool:
        """Wait for an answer; return whether it is there in time; raises WorkerError if the machine is gone."""
        now = time.monotonic()
        until, look = now + seconds, now + _LOOK_SECONDS
        while not answer.done():
            now = time.monotonic()
            if now > until:
                return False
            if now > look:
                if not self._host.is_alive():
                    raise WorkerError("it has left the cluster")
                look = now + _LOOK_SECONDS
            time.sleep(_POLL_SECONDS)
        return True

    def _missed(self, relay: RelayClient, deadline: float) -> Ended:
        """Return how a process ended that did not answer in time: by itself, or with its machine."""
        try:
            relay.ping().result(timeout=SILENCE_SECONDS)
        except (Exception, CancelledError):
            return self._lost("the machine does not answer")
        self.stop()
        return Ended("timed_out", f"no answer within {deadline:g} s")

    def _lost(self, reason: str) -> Ended:
        self._host.lose()
        self._relay = None
        self._answers.clear()
        return Ended("crashed", reason, killed=True)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:200]}"
