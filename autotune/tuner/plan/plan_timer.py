"""Times plans in interleaved rounds: those of a network by a measuring process, on a GPU inside their CUDA graph."""

from __future__ import annotations

import math
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


class PlanTimer:
    """Times plans, and knows how long that takes.

    Args:
        time: (plans, rounds) -> the results of the plans in interleaved rounds, or of one that fails.
        names: Returns the names of the layers that a plan runs, in their order.
        clock: Returns the time in seconds.
        most_seconds: Longest comparison.

    Attributes:
        names: As given.
        seconds: Seconds of timing one plan by ROUNDS samples: binding, capture and rounds, in the requests so far.
        fault: Why the last plan that could not be timed could not.
        failed_layer: The layer whose candidate failed in it, if that is known.
    """

    def __init__(
        self,
        time: Callable[[Sequence[PlanState], int], list[Result]],
        names: Callable[[PlanState], tuple[str, ...]],
        clock: Callable[[], float],
        most_seconds: float = math.inf,
    ) -> None:
        self._time, self.names, self._clock, self._most_seconds = time, names, clock, most_seconds
        self.seconds = 0.0
        self.fault: str | None = None
        self.failed_layer: str | None = None

    def compare(self, plans: Sequence[PlanState], rounds: int = ROUNDS) -> list[Result] | None:
        """Time plans in interleaved rounds; return None if one of them fails.

        Raises:
            OutOfTimeError: At the deadline of the measuring process.
        """
        started = self._clock()
        results = self._time(plans, rounds)
        if failed := [result for result in results if result.median_us is None]:
            self.fault = f"{failed[0].status}: {failed[0].error}"
            self.failed_layer = failed[0].details.get("layer")
            return None
        if rounds == ROUNDS:
            taken = (self._clock() - started) / len(plans)
            self.seconds = (self.seconds + taken) / 2 if self.seconds else taken
        return results

    def compare_those_that_run(
        self, plans: Sequence[PlanState], rounds: int = ROUNDS
    ) -> list[tuple[PlanState, Result]]:
        """Time plans in interleaved rounds; if they do not run together, such as for want of memory, each alone.

        Returns:
            The plans that run, with their results.

        Raises:
            OutOfTimeError: At the deadline of the measuring process.
        """
        if results := self.compare(plans, rounds):
            return list(zip(plans, results, strict=True))
        return [(plan, results[0]) for plan in plans if (results := self.compare([plan], rounds))]

    def num_plans(self, seconds: float) -> float:
        """Return how many plans can be compared within some seconds."""
        return min(seconds, self._most_seconds) / self.seconds if self.seconds else math.inf

    def runs(self, plan: PlanState) -> bool:
        """Return whether a plan can be timed."""
        return self.compare([plan], 1) is not None


def network_timer(worker: Worker, network: Network, clock: Callable[[], float]) -> PlanTimer:
    """Return the timer of the plans of a network that a measuring process times."""
    known: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[str, ...]] = {}

    def names(plan: PlanState) -> tuple[str, ...]:
        # Sorting the layers of a deep network takes longer than timing it, so it is done once for all plans that differ
        # in their kernels only.
        key = tuple(alternative.name for alternative in plan.alternatives), tuple(plan.order)
        if key not in known:
            known[key] = tuple(layer.name for layer in plan.layers(network))
        return known[key]

    def time(plans: Sequence[PlanState], rounds: int) -> list[Result]:
        sequences = [[plan.assignments[name] for name in names(plan)] for plan in plans]
        return worker.time_networks(network, sequences, rounds)

    return PlanTimer(time, names, clock, MAX_REQUEST_SECONDS)
