"""Measures candidates on the device of this process: verified first, then timed. Runs inside the worker.

Nothing is timed that was not found right, and what was timed is looked at once more: results that changed among
thousands of launches, bytes written elsewhere, memory that grew. Finalists are timed in interleaved rounds.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from autotune.core import format_bytes
from autotune.ir import Problem
from autotune.measure.cold_cache import Rotation, copies_of, flush
from autotune.measure.interleaving import Rounds, interleave
from autotune.measure.nvml import Monitor
from autotune.measure.nvtx import span
from autotune.measure.resources import energy_uj, host_us, memory_bytes, workspace_bytes
from autotune.measure.result import Result, timed
from autotune.measure.timers import (
    Sampler,
    Timing,
    library_choices,
    sampler,
    settle,
    stream_of,
    synchronize,
)
from autotune.measure.verify import HALF_SUMS, TOLERANCE, WHOLE_SLACK, Operands
from autotune.runtime import BoundStep, Candidate, bind
from autotune.runtime.engine import Program, RefusedError

SAMPLES = 5
FAR_BEHIND, FEW_SAMPLES = 1.5, 2
"""Who takes so many times as long as the best known is timed by a few samples only."""
LEAK_BYTES = 2**16
"""Who takes more memory than this while SAMPLES are taken, and its share of it with each of as many more, leaks."""

_SETTLE_SECONDS = 0.05  # of finalists, before their first round
_ENERGY_US = 2e4  # of work between two looks at the energy counter
_HOST_LAUNCHES = 20  # far fewer than a stream takes before it makes the host wait


class Case(Operands):
    """One problem on one device, and how its candidates are measured."""

    def __init__(
        self,
        problem: Problem,
        device: torch.device,
        seed: int = 0,
        timing: Timing = Timing(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__(problem, device, seed)
        self.timing = timing
        self._monitor = Monitor(device)
        self._copies: list[dict[str, torch.Tensor]] = []

    @property
    def bytes(self) -> int:
        """Memory of the operands, of their copies and of what they are to give."""
        kept = [self.tensors, self.expected, *self._copies]
        return sum(tensor.nbytes for tensors in kept for tensor in tensors.values())

    def bind(self, candidate: Candidate, tensors: Mapping[str, torch.Tensor] | None = None) -> BoundStep:
        """Bind a candidate to this case's tensors, or to a copy of them."""
        return bind(candidate, self.problem, tensors or self.tensors, self.scalars, self.device)

    def run(self, candidate: Candidate, best_us: float | None = None) -> Result:
        """Verify a candidate, then time it; briefly if it is far behind the best time, where one is known."""
        with span(str(candidate), self.device):
            started = time.perf_counter()
            try:
                step = self.bind(candidate)
            except RefusedError as refusal:
                return Result("refused", str(refusal))
            bound = time.perf_counter()
            with span("verify", self.device):
                accuracy = _accuracy(self.problem, candidate)
                error, complaint = self.verify(step, accuracy)
                if complaint:
                    return Result("wrong", complaint, error)
                bits = self.bits()
                changed = self.repeat(step, bits)
                # A library's operators may add in any order: that is recorded, and no reason to do without them.
                if changed and step.kernel:
                    return Result(*changed, error)
            verified = time.perf_counter()
            with span("time", self.device):
                result = self._time(candidate, step, error, best_us or math.inf)
            if complaint := self.trespass():
                return Result("wrong", f"after many launches {complaint}", error)
            if step.kernel and (difference := self.unlike(bits)):
                return Result("unstable", f"after many launches {difference}", error)
            seconds = {"load": bound - started, "verify": verified - bound, "time": time.perf_counter() - verified}
            result.details["seconds"] = {name: round(value, 5) for name, value in seconds.items()}
            result.details["tolerance"] = TOLERANCE.get(accuracy, WHOLE_SLACK)
            result.details["repeatable"] = changed is None
            return result

    def finals(self, candidates: Sequence[Candidate], rounds: int) -> list[Result]:
        """Time verified candidates in interleaved rounds."""
        steps = [self.bind(candidate) for candidate in candidates]
        samplers = [self._sampler(candidate, step) for candidate, step in zip(candidates, steps, strict=True)]
        settle(lambda: math.fsum(sample() for sample in samplers), _SETTLE_SECONDS, 10 * _SETTLE_SECONDS)
        before = self._monitor.state()
        taken = interleave(samplers, rounds, self._monitor.slowed)
        state = {"rounds": rounds, "before": before, "after": self._monitor.state()}
        self.trespass()  # so that no later candidate is blamed for what one of these did
        return [
            timed(samples, self._how() | state | _throttling(taken, i) | self._costs(steps[i], samplers[i]))
            for i, samples in enumerate(taken.samples)
        ]

    def _time(self, candidate: Candidate, step: BoundStep, error: float, best_us: float) -> Result:
        far = FAR_BEHIND * best_us
        sample = self._sampler(candidate, step, far)
        empty = memory_bytes(self.device)
        rounds = FEW_SAMPLES if sample.settled_us > far else SAMPLES
        taken = interleave([sample], rounds, self._monitor.slowed)
        state = self._monitor.state()
        if memory_bytes(self.device) - empty > LEAK_BYTES and (grown := self._leaked(sample)):
            launches = rounds * sample.launches
            return Result("leaks", f"memory grew by {format_bytes(grown)} in {launches} launches", error)
        description = step.kernel.describe() if step.kernel else "cuDNN" if candidate.kind else "torch"
        details = {"kernel": description, **self._how()}
        details |= {"state": state} if state else {}
        details |= _throttling(taken, 0) | self._costs(step, sample)
        if self.device.type == "cuda":
            details["host_us"] = round(self._host_us(step), 3)
        return timed(taken.samples[0], details, error)

    def _how(self) -> dict[str, Any]:
        return {"timer": self.timing.timer, "buffers": self.timing.buffers}

    def _leaked(self, sample: Sampler) -> int:
        """Bytes by which the memory in use grows in some more samples, if it does in each of them.

        By a share of LEAK_BYTES that is worth the name: the interpreter itself takes some bytes in most samples.
        """
        sizes = [memory_bytes(self.device)]
        for _ in range(SAMPLES):
            sample()
            sizes.append(memory_bytes(self.device))
        steady = all(after - before > LEAK_BYTES // SAMPLES for before, after in pairwise(sizes))
        return sizes[-1] - sizes[0] if steady else 0

    def _sampler(self, candidate: Candidate, step: BoundStep, worth: float = math.inf) -> Sampler:
        if self.timing.buffers == "resident":
            return sampler(step, self.device, self.timing.timer, worth=worth)
        if not self._copies:
            size = sum(operand.bytes for operand in self.problem.operands())
            self._copies = [
                {name: tensor.clone() for name, tensor in self.tensors.items()}
                for _ in range(copies_of(size, self.device) - 1)
            ]
        steps = [step, *(self.bind(candidate, tensors) for tensors in self._copies)]
        return sampler(Rotation(steps), self.device, self.timing.timer, len(steps), flush(self.device), worth)

    def _costs(self, step: BoundStep, sample: Sampler) -> dict[str, Any]:
        """What a candidate costs beside time: bytes and, if that is asked for, microjoules of one call."""
        workspace = workspace_bytes(step, self.device)
        costs: dict[str, Any] = {} if workspace is None else {"workspace_bytes": workspace}
        if self.timing.energy and (energy := self.energy_uj(sample)) is not None:
            costs["energy_uj"] = round(energy, 3)
        return costs

    def energy_uj(self, sample: Sampler) -> float | None:
        """Microjoules that the whole device takes for one launch of a sampler's; None where it does not count them."""
        times = max(1, round(_ENERGY_US / (sample() * sample.launches)))

        def work() -> int:
            for _ in range(times):
                sample.work()
            synchronize(self.device)
            return times * sample.launches

        return energy_uj(work, self._monitor.energy_mj)

    def _host_us(self, step: BoundStep) -> float:
        """The host's time for a launch as a plan makes it: from C++ if the kernel is ours."""
        stream, program = stream_of(self.device), Program()
        if step.kernel:
            for _ in range(_HOST_LAUNCHES):
                program.add(step.kernel, step.pointers)

        def launch() -> None:
            if step.kernel:
                program.run(stream)
                return
            with library_choices():
                for _ in range(_HOST_LAUNCHES):
                    step.run(stream)

        return host_us(launch, _HOST_LAUNCHES, self.device)


def _throttling(rounds: Rounds, index: int) -> dict[str, Any]:
    """What a result tells of rounds in which the device was slowed; nothing if there were none."""
    told: dict[str, Any] = {"throttled": rounds.throttled} if rounds.throttled else {}
    if any(rounds.repeated):
        told["repeated_us"] = [round(sample, 4) for sample in rounds.repeated[index]]
    return told


def _accuracy(problem: Problem, candidate: Candidate) -> str:
    """What a candidate is held to: the tolerance of the output's dtype, unless it sums in half precision."""
    return HALF_SUMS if json.loads(candidate.config).get("accumulator") == "f16" else problem.output_dtype
