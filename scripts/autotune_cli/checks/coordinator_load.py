"""Measure the processor time and the memory of the coordinator of a large tune.

The tuner is the real one, with its database, its samplers and its rendering of
kernels. The compilers and the GPUs of the cluster are simulated in real time:
they wait as long as the work would take, and answer with made-up binaries and
times. The command measures its own process.

Example:
  autotune coordinator-load --problems layers.txt --gpus 4
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import math
import os
import pickle
import random
import resource
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from autotune.codegen import Built, Unit
from autotune.core import Deadline, DeviceFacts, DeviceKind, architecture
from autotune.families import family
from autotune.ir import Problem
from autotune.measure import Ended, Result, Worker
from autotune.measure.protocol import READY, DeviceRequest, FinalsRequest, Reply, TrialRequest
from autotune.runtime import Candidate
from autotune.tuner import Bench, Progress, Tuner, TunerOptions
from autotune_cli import record
from autotune_cli.command_line import output, positive, seconds
from autotune_cli.problem_file import read_problems
from tuning_db import Store

KIND = DeviceKind("NVIDIA H200", 90, 132)
"""The simulated GPUs."""
FACTS = DeviceFacts(KIND.name, "sm_90", 8.0e8, 4.3e6, KIND.processors, {"torch": "simulated", "serial": "simulated"})
TRIAL_SECONDS = 0.05
"""Time of a trial on a GPU: the recordings of tests/data have 34 and 73 ms."""
BINARY_BYTES = 40_000
"""Size of a binary, most of which compresses well."""
SAMPLES = 12
SAMPLE_SPREAD = 0.01
EFFECT = 0.15
"""Standard deviation of the effect of one parameter's value on the logarithm of a time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--problems", type=Path, required=True, metavar="FILE", help="a file with one problem a line")
    parser.add_argument("--gpus", type=positive, default=8, metavar="N", help="simulated GPUs (default 8)")
    parser.add_argument("--cores", type=positive, default=128, metavar="N", help="simulated compilers (default 128)")
    parser.add_argument("--budget", type=seconds, default=600.0, metavar="TIME", help="time of the tune (default 600s)")
    parser.add_argument("--out", type=output, metavar="JSON", help="write the record to this file")


def main(args: argparse.Namespace) -> None:
    problems = read_problems(args.problems)
    with tempfile.TemporaryDirectory() as text:
        os.environ["AUTOTUNE_GENERATED"] = text
        found = measure(problems, args.gpus, args.cores, args.budget, Path(text) / "tune.db")
    Console(highlight=False).print(table(found))
    if args.out:
        args.out.write_text(json.dumps({**record.provenance(torch.device("cpu")), **found}, indent=1) + "\n")


def measure(problems: Sequence[Problem], gpus: int, cores: int, budget: float, database: Path) -> dict[str, Any]:
    """Run a tune on the simulated cluster; return the load of this process.

    Args:
        problems: The problems to tune.
        gpus: Simulated GPUs.
        cores: Simulated compilers.
        budget: Seconds of the tune.
        database: File of a new database.
    """
    bench = Bench.of(architecture("sm90"), KIND)
    options = TunerOptions(bench.arch, bench.target, bench.trials, cores, vendor="none")
    before, began = _memory(), time.perf_counter()
    deadline = Deadline.after(budget, time.monotonic())
    workers = [Worker("cuda:0", until=deadline, child=SimulatedChild) for _ in range(gpus)]
    with Store.create(database) as store:
        tuner = Tuner(store, problems, options, workers, Progress(), deadline=deadline, start_batch=SimulatedBatch)
        busy = time.process_time()
        tuner.run()
        busy, took = time.process_time() - busy, time.perf_counter() - began
        spaces = [study.space for study in tuner.study_manager.studies]
        return {
            "problems": len(tuner.problems),
            "spaces": len(spaces),
            "configs": sum(len(space.configs) for space in spaces),
            "gpus": gpus,
            "cores": cores,
            "seconds": round(took, 1),
            "trials": store.counts()["measurement"],
            "kernels": tuner.builder.compiled,
            "processor_seconds": round(busy, 1),
            "cores_per_gpu": round(busy / took / gpus, 4),
            "memory_mb_before": before,
            "memory_mb": _memory(),
        }


def table(found: dict[str, Any]) -> Table:
    """Return the load as a table of two columns."""
    made = Table(box=None, show_header=False, pad_edge=False)
    for name, value in found.items():
        made.add_row(name.replace("_", " "), f"{value:,}")
    return made


class SimulatedBatch:
    """Units that simulated compilers work on; implements codegen.Batch.

    Args:
        units: The units.
        jobs: Compilers that run at once.

    Attributes:
        pending: Units that `finished` has not returned yet.
    """

    def __init__(self, units: Sequence[Unit], jobs: int) -> None:
        now = time.monotonic()
        free = [now] * jobs
        self.pending: dict[Unit, float] = {}
        for unit in units:
            took = _compile_seconds(unit)
            self.pending[unit] = heapq.heappop(free) + took
            heapq.heappush(free, self.pending[unit])

    @property
    def ended(self) -> int | None:
        """Return 0 when no unit is pending."""
        return None if self.pending else 0

    def finished(self) -> list[Built]:
        """Return the units whose time has come, with made-up binaries."""
        now = time.monotonic()
        over = [unit for unit, end in self.pending.items() if end <= now]
        for unit in over:
            del self.pending[unit]
            unit.path.parent.mkdir(parents=True, exist_ok=True)
            unit.path.write_bytes(os.urandom(BINARY_BYTES // 5) + bytes(BINARY_BYTES * 4 // 5))
        return [Built(unit, unit.path, seconds=_compile_seconds(unit)) for unit in over]

    def close(self) -> None:
        """End the compilers."""


class SimulatedChild:
    """A measuring process that waits as long as measuring takes; implements measure.Child."""

    def __init__(self, _module: str, _arguments: Sequence[str]) -> None:
        self._replies: deque[tuple[float, object]] = deque()
        self.pid: int | None = None

    @property
    def running(self) -> bool:
        """Return whether it was started and not stopped."""
        return self.pid is not None

    started = running

    @property
    def has_message(self) -> bool:
        """Return whether `receive` would return at once."""
        return bool(self._replies) and self._replies[0][0] <= time.monotonic()

    def start(self) -> None:
        """Begin with no message but the first one of a measuring process."""
        self.pid = os.getpid()
        self._replies = deque([(0.0, READY)])

    def send(self, message: object) -> None:
        """Answer a message in the time that its work would take."""
        pickle.dumps(message)  # as sending it costs
        start = max(time.monotonic(), self._replies[-1][0] if self._replies else 0.0)
        took, answer = _answer(message)
        self._replies.append((start + took, Reply(answer, start, start + took)))

    def receive(self, deadline: float) -> Any | Ended:
        """Wait for the next message."""
        end, message = self._replies[0]
        wait = end - time.monotonic()
        if wait > deadline:
            self.stop()
            return Ended("timed_out", f"no answer within {deadline:g} s")
        time.sleep(max(0.0, wait))
        self._replies.popleft()
        return message

    def stop(self) -> None:
        """End it."""
        self.pid = None
        self._replies.clear()


def _answer(message: object) -> tuple[float, DeviceFacts | Result | list[Result]]:
    """Return the seconds of a request, and its answer."""
    if isinstance(message, DeviceRequest):
        return 1.0, FACTS
    if isinstance(message, TrialRequest):
        return TRIAL_SECONDS, _result(message.problem, message.candidate)
    assert isinstance(message, FinalsRequest)
    results = [_result(message.problem, candidate) for candidate in message.candidates]
    return message.rounds * len(results) * 0.002, results


def _result(problem: Problem, candidate: Candidate) -> Result:
    """Return a time that depends on the problem and on each parameter of the kernel."""
    effects = [_normal(f"{candidate.family} {name} {value}") for name, value in json.loads(candidate.config).items()]
    effects.append(_normal(f"{hash((problem, candidate.config)) % 2**12}"))
    us = 20 * math.exp(EFFECT * sum(effects))
    samples = [round(us * (1 + SAMPLE_SPREAD * (place % 5)), 4) for place in range(SAMPLES)]
    details = {"seconds": {"load": 0.001, "verify": 0.02, "time": 0.029}, "interval_us": [us, us]}
    return Result("ok", None, 1e-4, us, SAMPLE_SPREAD * us, samples, details)


@lru_cache(maxsize=2**14)
def _normal(text: str) -> float:
    """Return a number that is fixed for a text, as if drawn from a normal distribution."""
    return random.Random(hashlib.sha256(text.encode()).digest()).gauss(0, 1)


def _compile_seconds(unit: Unit) -> float:
    header, each = family(unit.kernels[0].family).compile_seconds
    return header + each * len(unit.kernels)


def _memory() -> int:
    """Return the most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000
