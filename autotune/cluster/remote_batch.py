"""A batch of translation units that other machines compile."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from autotune.cluster.messages import CompileAnswer, CompileRequest
from autotune.codegen import Built, Unit, link_latest, show_compilation
from autotune.core import ToolchainError, paths
from autotune.core.errors import Fault, record_fault

UNIT_SECONDS = 900.0
"""Time limit of a unit's compilation, as that of a build on this machine."""
LATE_SECONDS = 60.0
"""Time after which a unit is also given to another machine: the slowest known unit takes about one minute, so its
machine hangs or has lost its network. The first answer counts; both compile the same key to the same binary."""
_MAX_TRIES = 4
"""Times that a unit is given to the machines, if they or the scheduler are lost. After that it is given up."""


class Pending(Protocol):
    """An answer that may not be there yet, as concurrent.futures has it."""

    def done(self) -> bool:
        """Return whether `result` returns or raises at once."""

    def result(self) -> CompileAnswer:
        """Return the answer; raises whatever kept the machine from answering."""

    def cancel(self) -> object:
        """Give the request up."""


Submit = Callable[[CompileRequest, int], Pending]
"""(request, how often it was submitted before) -> its answer. Each time another machine should get it."""


@dataclass
class _Sent:
    """A unit at the machines.

    Attributes:
        answers: The answers that are waited for.
        since: Time of the last request.
        tries: Number of requests.
        fault: How the last one failed.
    """

    answers: list[Pending] = field(default_factory=list)
    since: float = 0.0
    tries: int = 0
    fault: str = ""


class RemoteBatch:
    """Units that are compiled elsewhere; implements codegen.Batch.

    Args:
        units: The units.
        submit: Sends a request to a machine.
        late_seconds: Time after which a unit is given to another machine, too.

    Attributes:
        pending: The units that `finished` has not returned yet.
        ended: 0 when no unit is pending.
    """

    def __init__(self, units: Sequence[Unit], submit: Submit, late_seconds: float = LATE_SECONDS) -> None:
        self.pending = dict.fromkeys(units)
        self._submit, self._late_seconds = submit, late_seconds
        self._sent: dict[Unit, _Sent] = {}
        self._was_cut_off = False
        for unit in units:
            if not unit.path.exists():
                self._sent[unit] = _Sent()
                self._send(unit)

    @property
    def ended(self) -> int | None:
        """Return 0 when no unit is pending."""
        return None if self.pending else 0

    def finished(self) -> list[Built]:
        """Return the units that have ended since the last call; does not wait.

        Raises:
            ToolchainError: A binary cannot be written.
        """
        self._was_cut_off = False
        finished = [built for unit in list(self.pending) if (built := self._outcome(unit))]
        record_fault(Fault.SCHEDULER_LOST, self._was_cut_off)  # once, however many units were there
        for built in finished:
            self._give_up(built.unit)
            del self.pending[built.unit]
        return finished

    def close(self) -> None:
        """Give up what is not compiled; the machines drop what they have not begun."""
        for unit in self.pending:
            self._give_up(unit)

    def _send(self, unit: Unit) -> None:
        sent = self._sent[unit]
        sent.answers.append(self._submit(CompileRequest.of(unit, UNIT_SECONDS), sent.tries))
        sent.since, sent.tries = time.monotonic(), sent.tries + 1

    def _give_up(self, unit: Unit) -> None:
        for answer in self._sent.pop(unit, _Sent()).answers:
            answer.cancel()

    def _outcome(self, unit: Unit) -> Built | None:
        """Return the result of a unit; None if there is none yet. A request that was lost is sent again."""
        sent = self._sent.get(unit)
        if sent is None:  # it was on the disk
            return Built.of(unit, unit.path)
        for pending in [one for one in sent.answers if one.done()]:
            sent.answers.remove(pending)
            try:
                return _built(unit, pending.result())
            except ToolchainError:
                raise
            except (Exception, CancelledError) as error:  # a transport's errors have no common base
                sent.fault = f"{type(error).__name__}: {str(error).strip()[:200]}"
                self._was_cut_off |= isinstance(error, CancelledError)
        if not sent.answers and sent.tries >= _MAX_TRIES:
            return Built(unit, None, f"the machines that compiled it were lost: {sent.fault}", killed=True)
        is_late = bool(sent.answers) and time.monotonic() - sent.since > self._late_seconds and sent.tries < _MAX_TRIES
        if is_late:
            record_fault(Fault.COMPILE_WORKER_SILENT)
        if not sent.answers or is_late:
            self._send(unit)
        return None


def _built(unit: Unit, answer: CompileAnswer) -> Built:
    """Return the result of a unit that was compiled elsewhere; its binary is written where one of this machine is."""
    ended = time.time()  # the clock of the other machine may differ
    show_compilation(unit.kernels, ended - answer.seconds, ended, answer.error, answer.resources)
    if answer.binary is None:
        return Built(unit, None, answer.error, answer.seconds, answer.killed)
    try:
        unit.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=unit.path.parent, suffix=".partial")
        with os.fdopen(descriptor, "wb") as file:
            file.write(answer.binary)
        Path(partial).replace(unit.path)
    except OSError as error:
        raise ToolchainError(f"cannot write kernels to {paths.generated()}: {error.strerror}") from error
    link_latest(unit)
    return Built(unit, unit.path, seconds=answer.seconds, resources=answer.resources)
