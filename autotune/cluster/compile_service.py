"""What a machine does that compiles for a tuning run elsewhere: it builds one unit, as it would build its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

from autotune.cluster.messages import PROTOCOL, CompileAnswer, CompileRequest
from autotune.codegen import POLL_SECONDS, BuildBatch, Built
from autotune.core import AutotuneError


def compile_unit(request: CompileRequest) -> CompileAnswer:
    """Compile a unit on this machine. Whatever goes wrong is in the answer."""
    if request.protocol != PROTOCOL:
        return CompileAnswer(request.key, None, f"the request has version {request.protocol}, and this host {PROTOCOL}")
    try:
        unit = request.unit()
        if unit.name != request.key:
            return CompileAnswer(request.key, None, "this host has other sources, headers or compilers")
        with closing(BuildBatch([unit], 1)) as batch:
            return CompileAnswer.of(_first(batch, request.seconds))
    except AutotuneError as error:
        return CompileAnswer(request.key, None, str(error), killed=True)


def _first(batch: BuildBatch, seconds: float) -> Built:
    """Return the unit of a batch once it has ended."""
    until = time.monotonic() + seconds
    (unit,) = batch.pending
    while time.monotonic() < until:
        finished: Sequence[Built] = batch.finished()
        if finished:
            return finished[0]
        if batch.ended is not None:
            return Built(unit, None, f"ninja ended with exit code {batch.ended}", killed=True)
        time.sleep(POLL_SECONDS)
    return Built(unit, None, f"the compilation took longer than {seconds:g} s", seconds)
