"""Compiles one translation unit for a tuning run on another machine, with the code that builds this machine's own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

from autotune.cluster.messages import PROTOCOL, CompileAnswer, CompileRequest
from autotune.codegen import POLL_SECONDS, BuildBatch, Built
from autotune.core import AutotuneError


def compile_unit(request: CompileRequest) -> CompileAnswer:
    """Compile a unit on this machine. Each error is in the answer.

    A machine that cannot compile the unit answers as if its compiler was killed: that says nothing about the kernels.
    """
    if request.protocol != PROTOCOL:
        return _refused(f"the request has version {request.protocol}, and this machine {PROTOCOL}")
    try:
        unit = request.unit()
        if unit.name != request.key:
            return _refused("this machine has other sources, headers or compilers")
        with closing(BuildBatch([unit], 1)) as batch:
            return CompileAnswer.of(_first(batch, request.seconds))
    except AutotuneError as error:
        return _refused(str(error))


def _refused(reason: str) -> CompileAnswer:
    return CompileAnswer(None, reason, killed=True)


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
