"""The process that measures layers: an implementation that hangs or ruins the device costs only its own result.

The implementation that was tried when the process ended counts as crashed. The layer is then measured again without it
in a new process. Run as: python -m autotune_cli.layers.process FD DEVICE.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from autotune.measure import ChildProcess, Ended, accept
from autotune_cli.layers.comparison import Job, Tell, compare_layer
from autotune_cli.record import one_line

DEADLINE = 240.0  # seconds without a message from the process
CRASHES = 5  # of one layer, after which it is given up; two while doing the same are enough


def serve(connection: Connection, device: torch.device) -> None:
    """Measure jobs until the script ends or the device is lost."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True  # from the first call on: torch keeps the plan that it takes then
    with torch.inference_mode(), suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            job = connection.recv()
            try:
                connection.send(("done", compare_layer(job, device, lambda what: connection.send(("trying", what)))))
            except Exception as problem:  # no memory for the tensors, or a lost device
                connection.send(("lost", one_line(problem)))
                return


class ComparisonProcess:
    """Owns the measuring process. Use it as a context manager."""

    def __init__(self, device: str, deadline: float = DEADLINE) -> None:
        self._deadline = deadline
        self._process = ChildProcess("autotune_cli.layers.process", [device])

    def __enter__(self) -> ComparisonProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    def measure(self, job: Job, tell: Tell) -> dict[str, Any]:
        """Return a layer's entry in the record; if it could not be measured, `problem` and `error`."""
        for _ in range(CRASHES):
            outcome, answer, last = self._ask(job, tell)
            if outcome == "done":
                entry: dict[str, Any] = answer
                return entry
            given_up = last in job.skip
            job = replace(job, skip={**job.skip, last: answer})
            if given_up:
                break
        return {"problem": str(job.problem), "error": "; ".join(f"{what}: {why}" for what, why in job.skip.items())}

    def _ask(self, job: Job, tell: Tell) -> tuple[str, Any, str]:
        """Return "done" and the entry, or "lost" and the reason; and what was being tried last."""
        if not self._process.running:
            self._process.start()
        self._process.send(job)
        last = "start"
        while True:
            message = self._process.receive(self._deadline)
            if isinstance(message, Ended):
                return "lost", message.reason, last
            kind, value = message
            if kind != "trying":
                if kind == "lost":
                    self._process.stop()
                return kind, value, last
            last = value
            tell(value)


def main() -> None:
    descriptor, device = sys.argv[1:]
    serve(accept(descriptor), torch.device(device))


if __name__ == "__main__":
    main()
