"""Requests to the measuring process, its answers, and how both are shown in the trace of a run.

`worker_client` sends requests and `worker_main` answers them, one answer for each request, in the order of the
requests. Both sides pickle the records below, so they must run the same version of this package.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.core import DeviceFacts, timeline
from autotune.ir import Network, Problem
from autotune.libraries import cudnn
from autotune.measure.timers import Timing
from autotune.runtime import Candidate

TRIAL_STEPS = ("load", "verify", "time")
"""Steps of a trial in the measuring process, in their order; `details["seconds"]` has the time of each."""


@dataclass(frozen=True)
class Result:
    """The times of one candidate in microseconds, or the reason why there are none.

    status: "ok", "refused" (the kernel does not support the problem), "wrong", "unstable" (another run gave other
        bits), "leaks", "crashed" or "timed_out"; `CandidateBench.run_library` also gives "slow" and "failed".
    error: One sentence; None if the status is "ok".
    relative_error: Norm of the difference from the reference over the norm of the reference.
    median_us, spread_us: Median and interquartile range of `samples_us`.
    details: Everything else that is stored with the measurement.
    """

    status: str
    error: str | None = None
    relative_error: float | None = None
    median_us: float | None = None
    spread_us: float | None = None
    samples_us: list[float] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


def timed(
    samples: Sequence[float], details: dict[str, Any] | None = None, relative_error: float | None = None
) -> Result:
    """Return an "ok" result: median, interquartile range and, in the details, the interval of the median."""
    quartiles = statistics.quantiles(samples, n=4) if len(samples) > 1 else [samples[0]] * 3
    interval = [round(value, 4) for value in median_interval(samples)]
    return Result(
        "ok",
        relative_error=relative_error,
        median_us=statistics.median(samples),
        spread_us=quartiles[2] - quartiles[0],
        samples_us=[round(sample, 4) for sample in samples],
        details={**(details or {}), "interval_us": interval},
    )


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return a confidence interval of at least 95 % for the median of the distribution of `values`.

    The interval lies between two order statistics, x_(k+1) and x_(n-k), with the largest k for which
    P(B <= k) <= 0.025, where B ~ Binomial(n, 1/2) counts the values below the median. It is the interval of the sign
    test and needs no assumption on the distribution (Conover, Practical Nonparametric Statistics, section 3.2).

    Fewer than six values give their whole range, which holds the median with less than 95 %: all n values lie on one
    side of the median with probability 2 / 2**n.
    """
    ordered, cut, tail = sorted(values), 0, 1
    while tail + math.comb(len(ordered), cut + 1) <= 0.025 * 2 ** len(ordered):
        cut += 1
        tail += math.comb(len(ordered), cut)
    return ordered[cut], ordered[-1 - cut]


READY = "ready"
"""The first message of a measuring process: its device can be used."""
NO_MEMORY = 75
"""Exit code of a measuring process that gets no memory on its GPU at the start; EX_TEMPFAIL of sysexits.h."""


@dataclass(frozen=True)
class LayerAssignment:
    """The candidate that runs a layer, by the layer's name.

    overlap: the kernel may be placed on the GPU while the kernel before it ends (programmatic dependent launch).
    """

    layer: str
    candidate: Candidate
    overlap: bool = False


@dataclass(frozen=True)
class DeviceRequest:
    """Measure the device's limits. Answer: DeviceFacts."""


@dataclass(frozen=True)
class TrialRequest:
    """Verify and time one candidate on a problem. Answer: Result.

    best_us: shortest time of the problem so far in microseconds; None if nothing has been timed yet.
    """

    problem: Problem
    candidate: Candidate
    timing: Timing
    best_us: float | None = None


@dataclass(frozen=True)
class FinalsRequest:
    """Time verified candidates of one problem in interleaved rounds. Answer: one Result for each candidate."""

    problem: Problem
    candidates: tuple[Candidate, ...]
    timing: Timing
    rounds: int


@dataclass(frozen=True)
class NetworkRequest:
    """Time whole networks in interleaved rounds. Answer: one Result for each plan.

    plans: each plan holds one assignment for each layer, in the order in which the layers run.
    """

    network: Network
    plans: tuple[tuple[LayerAssignment, ...], ...]
    rounds: int


@dataclass(frozen=True)
class LibraryRequest:
    """Build all execution plans that cuDNN has for a problem, without running them. Answer: cudnn.SerializedPlans.

    problem: None asks only for the version of the library, so that the caller can tell whether its plans are known.
    """

    problem: Problem | None


Request = DeviceRequest | TrialRequest | FinalsRequest | NetworkRequest | LibraryRequest

Answer = DeviceFacts | Result | list[Result] | cudnn.SerializedPlans
"""Any request may also be answered by one Result with the status "crashed"; the process ends after it."""


@dataclass(frozen=True)
class Reply:
    """An answer, as the measuring process sends it.

    started, ended: time.monotonic() when the process began to work on the request, and when it had the answer.
    """

    answer: Answer
    started: float
    ended: float


def show(lane: timeline.Lane, request: Request, reply: Reply) -> None:
    """Add a request that was answered to the trace."""
    if not timeline.is_recording():
        return
    timeline.add(
        lane,
        _name(request),
        reply.started,
        reply.ended,
        _steps(request, reply.answer),
        **_given(request),
        **_outcome(reply.answer),
    )


def _name(request: Request) -> str:
    match request:
        case TrialRequest():
            return f"{request.problem.short_name} {request.candidate.family}"
        case FinalsRequest():
            return f"finals: {request.problem.short_name}"
        case NetworkRequest():
            return f"network: {len(request.plans)} plans" if len(request.plans) > 1 else "network: 1 plan"
        case LibraryRequest():
            return f"plans: {request.problem.short_name}" if request.problem else "version of cuDNN"
        case _:
            return "measure the device"


def _given(request: Request) -> dict[str, Any]:
    match request:
        case TrialRequest():
            return {"problem": str(request.problem), **_candidate(request.candidate)}
        case FinalsRequest():
            candidates = [str(candidate) for candidate in request.candidates]
            return {"problem": str(request.problem), "candidates": candidates, "rounds": request.rounds}
        case NetworkRequest():
            return {"network": request.network.key, "rounds": request.rounds, "changes": _changes(request.plans)}
        case LibraryRequest():
            return {"problem": str(request.problem)} if request.problem else {}
        case _:
            return {}


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {"family": candidate.family, "config": json.loads(candidate.config), "launch": dict(candidate.launch)}


def _changes(plans: Sequence[Sequence[LayerAssignment]]) -> list[list[str]]:
    """Return the assignments of each plan that the first one does not have; none for another order of the same."""
    texts = [[_assignment(one) for one in plan] for plan in plans]
    first = set(texts[0])
    return [[text for text in plan if text not in first] for plan in texts]


def _assignment(one: LayerAssignment) -> str:
    return f"{one.layer}: {one.candidate}" + (", overlapping" if one.overlap else "")


def _outcome(answer: Answer) -> dict[str, Any]:
    """Return the times and failures of an answer."""
    if isinstance(answer, list):
        return {"us": [result.median_us for result in answer]}
    if not isinstance(answer, Result):
        return {}
    known = {"status": answer.status, "us": answer.median_us, "error": answer.error}
    return {name: value for name, value in known.items() if value is not None}


def _steps(request: Request, answer: Answer) -> list[tuple[str, float]]:
    """Return the steps of a trial with their seconds; none for other requests."""
    if not (isinstance(request, TrialRequest) and isinstance(answer, Result)):
        return []
    seconds = answer.details.get("seconds", {})
    return [(step, seconds[step]) for step in TRIAL_STEPS if step in seconds]
