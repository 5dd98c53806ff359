"""Requests to the measuring process and its answers.

`worker_client` sends requests and `worker_main` answers them, one answer for each request, in the order of the
requests. Both sides pickle the records below, so they must run the same version of this package.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.core import DeviceFacts
from autotune.ir import Network, Problem
from autotune.libraries import cudnn
from autotune.measure.network_bench import LayerAssignment
from autotune.measure.result import Result
from autotune.measure.timers import Timing
from autotune.runtime import Candidate

READY = "ready"
"""The first message of a measuring process: its device can be used."""
NO_MEMORY = 75
"""Exit code of a measuring process that gets no memory on its GPU at the start; EX_TEMPFAIL of sysexits.h."""


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
