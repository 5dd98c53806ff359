"""The process that measures layers: what hangs in it, or ruins its device, costs one contender and no more.

What was being tried when the process went has failed, and the layer is measured again without it in a new process.
"""

from __future__ import annotations

import multiprocessing
import signal
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from autotune_cli.layers.comparison import Job, Tell, contest
from autotune_cli.record import one_line

DEADLINE = 240.0  # seconds without a word from the process
CRASHES = 5  # of one layer, after which it is given up; two while doing the same are enough


def serve(connection: Connection, device_text: str) -> None:
    """Measure jobs until the other side goes away or the device is lost."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the script's to handle
    device = torch.device(device_text)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True  # from the first call on: torch keeps the plan that it takes then
    with torch.inference_mode(), suppress(EOFError):
        while True:
            job = connection.recv()
            try:
                connection.send(("done", contest(job, device, lambda what: connection.send(("trying", what)))))
            except Exception as problem:  # no memory for the operands, or a lost device
                connection.send(("lost", one_line(problem)))
                return


class Contests:
    """Owns the measuring process. Use it as a context manager."""

    def __init__(self, device: str, deadline: float = DEADLINE) -> None:
        self._device, self._deadline = device, deadline
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> Contests:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def measure(self, job: Job, tell: Tell) -> dict[str, Any]:
        """A layer's entry in the record; where it could not be measured, `problem` and `error`."""
        for _ in range(CRASHES):
            outcome, answer, last = self._ask(job, tell)
            if outcome == "done":
                return answer
            given_up = last in job.skip
            job = replace(job, skip={**job.skip, last: answer})
            if given_up:
                break
        return {"problem": str(job.problem), "error": "; ".join(f"{what}: {why}" for what, why in job.skip.items())}

    def _ask(self, job: Job, tell: Tell) -> tuple[str, Any, str]:
        """What came of a job, the entry or what happened, and what was being tried last."""
        connection, last = self._ready(), "start"
        try:
            connection.send(job)
            while connection.poll(self._deadline):
                kind, value = connection.recv()
                if kind != "trying":
                    if kind == "lost":
                        self._stop()
                    return kind, value, last
                last = value
                tell(value)
        except (EOFError, OSError):
            self._stop()
            return "lost", "its process died", last
        self._stop()
        return "lost", f"no answer within {self._deadline:g} s", last

    def _ready(self) -> Connection:
        """The line to the process, which is started if there is none."""
        if self._process is None or self._connection is None:
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs, self._device), daemon=True)
            self._process.start()
            theirs.close()
        return self._connection

    def _stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.join()
        self._process = None
