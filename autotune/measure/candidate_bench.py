"""Measures candidates on the device of this process: verifies each one, then times it. Runs in the measuring process.

Only right results are timed. After timing, the outputs are checked again: results that changed within thousands of
launches, writes out of bounds, memory that grew. Finalists are timed in interleaved rounds.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from autotune.core import WorkerError, format_bytes, in_one_line
from autotune.core.device_turn import gpu_serial, turn
from autotune.core.timeline import nvtx_range
from autotune.ir import BYTE_FORMATS, Problem, sum_error
from autotune.libraries import inductor
from autotune.measure import byte_tolerance
from autotune.measure.cold_cache import RotatingBuffers, copies_of, flush
from autotune.measure.protocol import Result, timed
from autotune.measure.resources import Monitor, energy_uj, host_us, memory_bytes, workspace_bytes
from autotune.measure.timers import (
    Runnable,
    Sampler,
    Timing,
    between,
    interleave,
    library_choices,
    sampler,
    stream_of,
    synchronize,
    throttling,
    warm_up,
)
from autotune.measure.verify import HALF_SUMS, TOLERANCE, Workload
from autotune.runtime import BoundStep, Candidate, bind
from autotune.runtime.engine import Program, RefusedError

SAMPLES = 5
"""Samples of one candidate in a trial."""
SLOW_FACTOR, SLOW_SAMPLES = 1.5, 2
"""A candidate slower than SLOW_FACTOR x the best time so far gets only SLOW_SAMPLES samples: its trial is pruned."""
LEAK_BYTES = 2**16
"""A candidate leaks if memory grows by more than this while it is sampled, and then in each of SAMPLES more samples by
more than LEAK_BYTES / SAMPLES."""
_LEAK_CHECKS, _LEAK_PAUSE_SECONDS, _LEAK_SPREAD = 3, 0.2, 1.5

_SLOW_LAUNCH_US = 200.0
"""A slow candidate is timed by few launches of the host if each takes longer than this, which a host keeps up with. A
CUDA graph and the measurement of host time would launch it a hundred times, and a plan of cuDNN may take 20 ms."""
_WARM_UP_SECONDS = 0.05
"""Least warm-up of the finalists together."""
_ENERGY_US = 2e4
"""Work between two reads of the energy counter, which moves in steps of tens of milliseconds."""
_HOST_LAUNCHES = 20
"""Launches of a measurement of host time: far fewer than a stream queues before it makes the host wait."""
_HOST_DEVICE_US = 1e3
"""Work of the device in such a measurement, in which long kernels are launched fewer times."""
_FIRST_LAUNCHES = 3
"""Launches that tell whether a library's implementation is slow."""


def is_pruned(samples_us: Sequence[float]) -> bool:
    """Return whether a candidate with these samples was too slow for SAMPLES of them."""
    return len(samples_us) == SLOW_SAMPLES


class DeviceLostError(WorkerError):
    """The device's context is ruined: this process cannot use the device any more."""


class CandidateBench(Workload):
    """One problem's tensors on one device, and the measurement of its candidates.

    Args:
        problem: The problem to solve.
        device: The device to measure on.
        seed: Seed of the random inputs.
        timing: How candidates are timed.
    """

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
        self._compiled: dict[str, BoundStep] = {}

    @property
    def bytes(self) -> int:
        """Memory of the tensors, of their copies and of the reference."""
        kept = [self.tensors, self.expected, *self._copies]
        return sum(tensor.nbytes for tensors in kept for tensor in tensors.values()) + self.special.bytes

    def bind(self, candidate: Candidate, tensors: Mapping[str, torch.Tensor] | None = None) -> BoundStep:
        """Bind a candidate to this bench's tensors, or to a copy of them; raises RefusedError and EngineError."""
        if candidate.family != inductor.FAMILY or tensors:
            return bind(candidate, self.problem, tensors or self.tensors, self.scalars, self.device)
        key = str(candidate)  # kept for the finals, because compiling takes seconds to minutes
        if key not in self._compiled:
            self._compiled[key] = bind(candidate, self.problem, self.tensors, self.scalars, self.device)
        return self._compiled[key]

    def compiled(self, candidate: Candidate) -> BoundStep | None:
        """Return a candidate of Inductor that was bound to this bench's tensors before; None for any other."""
        return self._compiled.get(str(candidate))

    def run(self, candidate: Candidate, best_us: float | None = None) -> Result:
        """Verify a candidate, then time it.

        Args:
            candidate: The kernel with its launch values.
            best_us: Shortest time of the problem so far; a much slower candidate gets fewer samples.
        """
        with nvtx_range(str(candidate), self.device):
            started = time.perf_counter()
            try:
                step = self.bind(candidate)
            except RefusedError as refusal:
                return Result("refused", str(refusal))
            if not step.kernel:
                # A library loads its code in the first run, which takes seconds; meanwhile others may have their turns.
                step.run(stream_of(self.device))
                synchronize(self.device)
            bound = time.perf_counter()
        with turn(self.device), nvtx_range(str(candidate), self.device):
            started += time.perf_counter() - bound  # waiting for the turn is no part of loading
            bound = time.perf_counter()
            with nvtx_range("verify", self.device):
                checked, outputs = self._verified(candidate, step)
            if checked.status != "ok":
                return checked
            error = checked.relative_error or 0.0
            verified = time.perf_counter()
            with nvtx_range("time", self.device):
                result = self._time(candidate, step, error, best_us or math.inf)
            if fault := self.out_of_bounds_write():
                return Result("wrong", f"after many launches {fault}", error)
            if step.kernel and (difference := self.bit_difference(outputs)):
                return Result("unstable", f"after many launches {difference}", error)
            seconds = {"load": bound - started, "verify": verified - bound, "time": time.perf_counter() - verified}
            result.details["seconds"] = {name: round(value, 5) for name, value in seconds.items()}
            result.details.update(checked.details)
            return result

    def check_candidate(self, candidate: Candidate) -> Result:
        """Verify a candidate without timing it.

        Returns:
            Status "ok", "refused", "wrong" or "unstable", with the relative error.
        """
        try:
            step = self.bind(candidate)
        except RefusedError as refusal:
            return Result("refused", str(refusal))
        with turn(self.device):
            return self._verified(candidate, step)[0]

    def _verified(self, candidate: Candidate, step: BoundStep) -> tuple[Result, dict[str, torch.Tensor]]:
        """Run a bound candidate twice and check both results; return what was found, and the first run's outputs."""
        accuracy = accuracy_of(self.problem, candidate)
        of_sums = sum_error(self.problem, json.loads(candidate.config))
        error, fault = self.verify(step, accuracy, of_sums)
        if fault:
            return Result("wrong", fault, error), {}
        outputs = self.copy_outputs()
        changed = self.rerun(step, outputs)
        # A library's operator may add in any order. That is recorded in `repeatable`, and not refused.
        if changed and step.kernel:
            status, fault = changed
            return Result(status, fault, error), outputs
        if fault := self.special_fault(step):
            return Result("wrong", fault, error), outputs
        tolerance = (
            TOLERANCE[accuracy] * math.sqrt(self.problem.roundings)
            if accuracy in TOLERANCE
            else byte_tolerance.nominal(BYTE_FORMATS[accuracy], of_sums)
        )
        details = {"tolerance": tolerance, "repeatable": changed is None}
        return Result("ok", relative_error=error, details=details), outputs

    def run_library(
        self,
        bind_timed: Callable[[], Runnable],
        bind_verified: Callable[[], Runnable] | None = None,
        *,
        slow_us: float = math.inf,
        energy: bool = False,
    ) -> Result:
        """Verify a library's implementation of the problem, then time it.

        Args:
            bind_timed: Returns what is timed.
            bind_verified: Returns what is verified, if the timed one leaves its result elsewhere than in the output.
            slow_us: An implementation that takes longer is launched _FIRST_LAUNCHES times only (on a GPU).
            energy: Whether to measure `details["energy_uj"]`, the microjoules of one call.

        Returns:
            Status "ok", "wrong", "slow" (with the samples of the first launches) or "failed" (it raised an error).

        Raises:
            DeviceLostError: If the implementation has ruined the device's context.
        """
        try:
            verified = (bind_verified or bind_timed)()
            error, fault = self.verify(verified)
            if fault := fault or self.special_fault(verified):
                return Result("wrong", fault, error)
            step = bind_timed()
            first = self._first_launches(step)
            if first and min(first) > slow_us:
                slow = timed(first, relative_error=error)
                return replace(slow, status="slow", error=f"one run takes {min(first):.0f} us")
            sample = sampler(step, self.device)
            details: dict[str, Any] = {}
            samples = [sample() for _ in range(SAMPLES)]
            if energy and (joules := self.energy_uj(sample)) is not None:
                details["energy_uj"] = joules
            return timed(samples, details, error)
        except Exception as failure:  # a library's errors have no common base
            try:
                synchronize(self.device)
            except Exception as ruin:
                raise DeviceLostError(in_one_line(ruin)) from failure
            return Result("failed", in_one_line(failure))

    def _first_launches(self, step: Runnable) -> list[float]:
        """Return rough times of single launches on a GPU; none on a CPU, where no implementation is cut short."""
        if self.device.type != "cuda":
            return []
        return [between(lambda: step.run(stream_of(self.device))) for _ in range(_FIRST_LAUNCHES)]

    def finals(self, candidates: Sequence[Candidate], rounds: int) -> list[Result]:
        """Time verified candidates in interleaved rounds."""
        steps = [self.bind(candidate) for candidate in candidates]
        samplers = [self._sampler(candidate, step) for candidate, step in zip(candidates, steps, strict=True)]
        with turn(self.device):
            warm_up(lambda: math.fsum(sample() for sample in samplers), _WARM_UP_SECONDS, 10 * _WARM_UP_SECONDS)
            before = self._monitor.state()
            self._monitor.begin()
            taken = interleave(samplers, rounds, self._monitor.slowed)
        state = {"rounds": rounds, "before": before, "after": self._monitor.state()}
        self.out_of_bounds_write()  # notes corrupted inputs, so that no later candidate is blamed for them
        return [
            timed(samples, self._how() | state | throttling(taken, i) | self._resources(steps[i], samplers[i]))
            for i, samples in enumerate(taken.samples)
        ]

    def _time(self, candidate: Candidate, step: BoundStep, error: float, best_us: float) -> Result:
        slow_us = SLOW_FACTOR * best_us
        one_launch = step.kernel is not None or candidate.kind  # torch's operators may be many short launches
        sample = self._sampler(candidate, step, slow_us, max(slow_us, _SLOW_LAUNCH_US) if one_launch else math.inf)
        empty = memory_bytes(self.device)
        rounds = SLOW_SAMPLES if sample.warm_us > slow_us else SAMPLES
        if self.device.type == "cuda":
            taken = interleave([sample], rounds, self._monitor.slowed)
        else:  # a trial does not wait for a quiet machine; finals do
            taken = interleave([sample], rounds)
            taken = replace(taken, throttled=rounds if self._monitor.slowed_beside_run() else 0)
        state = self._monitor.state()
        if memory_bytes(self.device) - empty > LEAK_BYTES and (grown := self._leaked(sample)):
            launches = rounds * sample.launches
            return Result("leaks", f"memory grew by {format_bytes(grown)} in {launches} launches", error)
        library = "cuDNN" if candidate.kind else "Inductor" if candidate.family == inductor.FAMILY else "torch"
        description = step.kernel.describe() if step.kernel else library
        details = {"kernel": description, **self._how()}
        details |= {"state": state} if state else {}
        details |= throttling(taken, 0) | self._resources(step, sample)
        if self.device.type == "cuda" and rounds == SAMPLES:
            details["host_us"] = round(self._host_us(step, sample.warm_us), 3)
        return timed(taken.samples[0], details, error)

    def _how(self) -> dict[str, Any]:
        """Return how candidates are timed, and on which of several GPUs of one name."""
        serial = {"gpu": gpu_serial(self.device)} if self.device.type == "cuda" else {}
        return {"timer": self.timing.timer, "buffers": self.timing.buffers, **serial}

    def _leaked(self, sample: Sampler) -> int:
        """Return the bytes by which memory grows in SAMPLES more samples; 0 unless it grows in each of them.

        Growth below LEAK_BYTES / SAMPLES does not count: the interpreter takes some bytes in most samples. On a GPU the
        memory is that of all processes, of which others may take some meanwhile. So the growth is measured _LEAK_CHECKS
        times, with pauses, and must be about the same each time, as is that of a candidate's equal launches.
        """
        all_grown: list[int] = []
        for check in range(_LEAK_CHECKS):
            time.sleep(_LEAK_PAUSE_SECONDS if check else 0)
            sizes = [memory_bytes(self.device)]
            for _ in range(SAMPLES):
                sample()
                sizes.append(memory_bytes(self.device))
            if not all(after - before > LEAK_BYTES // SAMPLES for before, after in pairwise(sizes)):
                return 0
            all_grown.append(sizes[-1] - sizes[0])
        return all_grown[-1] if max(all_grown) <= _LEAK_SPREAD * min(all_grown) else 0

    def _sampler(
        self, candidate: Candidate, step: BoundStep, slow_us: float = math.inf, slow_launch_us: float = math.inf
    ) -> Sampler:
        timed_step: Runnable = step
        most, setup = None, None
        if self.timing.buffers == "rotating":
            if not self._copies:
                size = sum(operand.bytes for operand in self.problem.operands())
                self._copies = [
                    {name: tensor.clone() for name, tensor in self.tensors.items()}
                    for _ in range(copies_of(size, self.device) - 1)
                ]
            steps = [step, *(self.bind(candidate, tensors) for tensors in self._copies)]
            timed_step, most, setup = RotatingBuffers(steps), len(steps), flush(self.device)
        return sampler(timed_step, self.device, self.timing.timer, most, setup, slow_us, slow_launch_us)

    def _resources(self, step: BoundStep, sample: Sampler) -> dict[str, Any]:
        """Return workspace bytes and, if the timing asks for it, the microjoules of one call."""
        workspace = workspace_bytes(step, self.device)
        used: dict[str, Any] = {} if workspace is None else {"workspace_bytes": workspace}
        if self.timing.energy and (energy := self.energy_uj(sample)) is not None:
            used["energy_uj"] = round(energy, 3)
        return used

    def energy_uj(self, sample: Sampler) -> float | None:
        """Return the microjoules that the whole device takes for one launch; None if it does not count energy."""
        times = max(1, round(_ENERGY_US / (sample() * sample.launches)))

        def work() -> int:
            for _ in range(times):
                sample.work()
            synchronize(self.device)
            return times * sample.launches

        return energy_uj(work, self._monitor.energy_mj)

    def _host_us(self, step: BoundStep, us: float) -> float:
        """Return the host's microseconds for one launch as a network plan makes it: from C++ if the kernel is ours.

        Args:
            step: What is launched.
            us: Microseconds of the device for one launch.
        """
        launches = max(1, min(_HOST_LAUNCHES, round(_HOST_DEVICE_US / us)))
        stream, program = stream_of(self.device), Program()
        if step.kernel:
            for _ in range(launches):
                program.add(step.kernel, step.pointers)

        def launch() -> None:
            if step.kernel:
                program.run(stream)
                return
            with library_choices():
                for _ in range(launches):
                    step.run(stream)

        return host_us(launch, launches, self.device)


def accuracy_of(problem: Problem, candidate: Candidate) -> str:
    """Return the key of the candidate's tolerance: the output's dtype, unless it accumulates in float16."""
    return HALF_SUMS if json.loads(candidate.config).get("accumulator") == "f16" else problem.output_dtype
