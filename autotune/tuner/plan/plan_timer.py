"""Times plans in interleaved rounds: those of a network by a measuring process, on a GPU inside their CUDA graph."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from autotune.ir import Network
from autotune.measure import Result, Worker
from autotune.tuner.plan.plan_moves import PlanState

ROUNDS = 7
"""Interleaved rounds per comparison."""
FINAL_ROUNDS = 21
"""Rounds of the last comparison, whose times are recorded."""
MAX_REQUEST_SECONDS = 10.0
"""Longest comparison by a measuring process, which is killed if it does not answer within 30 s."""


class PlanTimer(ABC):
    """Times plans, and knows how long that takes.

    Args:
        clock: Returns the time in seconds.

    Attributes:
        seconds: Seconds of timing one plan by ROUNDS samples: binding, capture and rounds, in the requests so far.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self.seconds = clock, 0.0

    @abstractmethod
    def names(self, plan: PlanState) -> Sequence[str]:
        """Return the names of the layers that a plan runs, in their order."""

    @abstractmethod
    def _results(self, plans: Sequence[PlanState], rounds: int) -> list[Result] | None:
        """Time plans in interleaved rounds; return None if one of them fails."""

    def compare(self, plans: Sequence[PlanState], rounds: int = ROUNDS) -> list[Result] | None:
        """Time plans in interleaved rounds; return None if one of them fails.

        Raises:
            OutOfTimeError: At the deadline of the worker of a network.
        """
        started = self._clock()
        results = self._results(plans, rounds)
        if results and rounds == ROUNDS:
            taken = (self._clock() - started) / len(plans)
            self.seconds = (self.seconds + taken) / 2 if self.seconds else taken
        return results

    def num_plans(self, seconds: float) -> float:
        """Return how many plans can be compared within some seconds."""
        return seconds / self.seconds if self.seconds else math.inf


class NetworkTimer(PlanTimer):
    """Times plans of a network.

    Args:
        worker: Times plans on the device.
        network: The network.
        clock: As for PlanTimer.

    Attributes:
        fault: Why the last plan that could not be timed could not.
        failed_layer: The layer whose candidate failed in it, if that is known.
    """

    def __init__(self, worker: Worker, network: Network, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._worker, self._network = worker, network
        self._names: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[str, ...]] = {}
        self.fault: str | None = None
        self.failed_layer: str | None = None

    def names(self, plan: PlanState) -> tuple[str, ...]:
        """Return the names of the layers that a plan runs, in their order.

        Sorting the layers of a deep network takes longer than timing it, so it is done once for all plans that differ
        in their kernels only.
        """
        key = tuple(alternative.name for alternative in plan.alternatives), tuple(plan.order)
        if key not in self._names:
            self._names[key] = tuple(layer.name for layer in plan.layers(self._network))
        return self._names[key]

    def _results(self, plans: Sequence[PlanState], rounds: int) -> list[Result] | None:
        sequences = [[plan.assignments[name] for name in self.names(plan)] for plan in plans]
        results = self._worker.time_networks(self._network, sequences, rounds)
        if failed := [result for result in results if result.median_us is None]:
            self.fault = f"{failed[0].status}: {failed[0].error}"
            self.failed_layer = failed[0].details.get("layer")
            return None
        return results

    def compare_those_that_run(
        self, plans: Sequence[PlanState], rounds: int = ROUNDS
    ) -> list[tuple[PlanState, Result]]:
        """Time plans in interleaved rounds; if they do not run together, such as for want of memory, each alone.

        Returns:
            The plans that run, with their results.

        Raises:
            OutOfTimeError: At the deadline of the worker.
        """
        if results := self.compare(plans, rounds):
            return list(zip(plans, results, strict=True))
        return [(plan, results[0]) for plan in plans if (results := self.compare([plan], rounds))]

    def num_plans(self, seconds: float) -> float:
        """Return how many plans can be compared within some seconds."""
        return super().num_plans(min(seconds, MAX_REQUEST_SECONDS))

    def runs(self, plan: PlanState) -> bool:
        """Return whether a plan can be timed."""
        return self.compare([plan], 1) is not None
