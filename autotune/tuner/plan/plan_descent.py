"""Coordinate descent over the plans of a network or of a training step, which are timed as a whole.

In the first sweep all layers of one problem change together: that needs fewer rounds, and a gain in several layers
stands out of the noise. It tries the layers first, then the alternatives, then the order. Later sweeps try the
alternatives, each layer alone, and the order. In a training step, which is compiled, only the kernels change. All
neighbours that a move reaches are timed with the current plan in interleaved rounds; the fastest replaces the current
plan if its gain is above the noise. The descent ends with a sweep that changes nothing.

The time of a descent is limited. A move can gain no more than the time of its layers, so the moves of a sweep are made
in descending order of that time, and each may take its share of the time that is left: as many neighbours are timed as
fit, by the seconds that the comparisons took so far, those with the fastest candidates first. A light move without time
for one neighbour is left out. Changes of several kernels share a comparison then, which times the current plan once for
all of them; those that gain are taken together if the network is faster so than with the best of them alone. Every
improvement is reported at once, so a run that is ended keeps the best plan so far.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.core import NEVER, Deadline, ProblemError
from autotune.ir import Network, Problem
from autotune.measure import Result
from autotune.runtime import Candidate
from autotune.tuner.plan.plan_moves import Move, PlanState, Reorder, SwapKernel, TakeAlternative
from autotune.tuner.plan.plan_timer import PlanTimer

KEPT_CANDIDATES = 4
"""Candidates of a layer that sweeps after the first one try: the fastest in the network."""
MAX_SWEEPS = 3
ORDER_WEIGHT = 0.05
"""Share of the network's time that a change of the order may gain."""
LEAST_WEIGHT = 0.01
"""Share of the network's time from which on a move gets the time of one neighbour, also if its part is less."""
JOINT_PLANS = 8
"""Neighbours in one comparison of several changes of kernels."""
MAX_TIME_RATIO = 0.998
"""A plan replaces the current one if it takes less than this share of its time; a smaller gain may be noise."""


@dataclass(frozen=True)
class _Neighbors:
    """The plans of a move that are timed."""

    move: Move
    plans: list[PlanState]


class PlanDescent:
    """Coordinate descent over plans.

    Args:
        timer: Times plans.
        network: The network; None for the calls of kernels in compiled code, which are the layers of its plans: their
            order stays, and none overlaps the one before it.
        candidates: The candidates of each layer by its name, the fastest alone first; a layer may have none.
        layer_us: Time of each layer in microseconds by its name.
        until: Deadline of the descent.
        on_improvement: Called with each plan that replaces the current one, and its result.
    """

    def __init__(
        self,
        timer: PlanTimer,
        network: Network | None,
        candidates: Mapping[str, Sequence[Candidate]],
        layer_us: Mapping[str, float],
        until: Deadline = NEVER,
        on_improvement: Callable[[PlanState, Result], object] = lambda *_: None,
    ) -> None:
        self._timer, self._network, self._until = timer, network, until
        self._candidates = {name: list(each) for name, each in candidates.items() if each}
        self._us, self._on_improvement = layer_us, on_improvement
        self._tried: set[tuple[str, ...]] = set()  # moves whose neighbors were all timed, from the plan of that moment
        self._problem_of = {layer.name: layer.problem for layer in network.all_layers} if network else {}

    def descend(self, plan: PlanState, group_first: bool, until: Deadline | None = None) -> PlanState:
        """Return a plan that no move makes faster, or the best after MAX_SWEEPS sweeps or at the deadline.

        A later call begins with the moves that there was no time for.

        Args:
            plan: The plan to start from.
            group_first: Change all layers of one problem together in the first sweep.
            until: A deadline in place of the one so far.
        """
        self._until = until or self._until
        for sweep in range(MAX_SWEEPS):
            start = plan
            together = group_first and sweep == 0
            names = self._timer.names(plan)
            groups = self._same_problem(names) if together else [[name] for name in self._candidates]
            swaps, alternatives = self._swaps(groups), self._alternatives()
            order = [(ORDER_WEIGHT * self._total(names), Reorder(self._network))] if self._network else []
            plan = self._make_moves(
                [*swaps, *alternatives, *order] if together else [*alternatives, *swaps, *order], plan
            )
            if self._until.is_over or (plan is start and (not together or len(groups) == len(names))):
                break
        return plan

    def _swaps(self, groups: Sequence[Sequence[str]]) -> list[tuple[float, Move]]:
        """Return the moves that change the kernel of groups of layers, each with its weight, the heaviest first."""
        overlaps = (False, True) if self._network else (False,)
        swaps: list[tuple[float, Move]] = [
            (self._total(group), SwapKernel(group, self._candidates[group[0]], overlaps)) for group in groups
        ]
        return sorted(swaps, key=lambda swap: -swap[0])

    def _alternatives(self) -> list[tuple[float, Move]]:
        """Return the moves that take or give up alternatives, each with its weight, the heaviest first."""
        moves: list[tuple[float, Move]] = [
            (self._total(one.replaces), TakeAlternative(one))
            for one in (self._network.alternatives if self._network else ())
        ]
        return sorted(moves, key=lambda move: -move[0])

    def _total(self, names: Iterable[str]) -> float:
        return sum(self._us.get(name, 0.0) for name in names)

    def _make_moves(self, moves: Sequence[tuple[float, Move]], plan: PlanState) -> PlanState:
        """Make moves, given with their weights, as far as there is time; those that were tried before come last."""
        whole = self._total(self._timer.names(plan))
        known = [_identity(move) in self._tried for _, move in moves]
        for is_tried in (False, True):
            waiting = deque(one for one, tried in zip(moves, known, strict=True) if tried is is_tried)
            least = math.inf if is_tried else LEAST_WEIGHT * whole
            while waiting:
                plan = self._apply(self._next(waiting, plan, least), plan)
        return plan

    def _next(self, waiting: deque[tuple[float, Move]], plan: PlanState, least: float) -> list[_Neighbors]:
        """Take the next moves, and return as many neighbours of each as there is time for.

        Where time is short, changes of several kernels are timed in one comparison, so that the current plan is timed
        once for all of them.

        Args:
            waiting: The moves that are left, with their weights.
            plan: The current plan.
            least: Weight from which on a move gets the time of one neighbour.
        """
        found: list[_Neighbors] = []
        available, taken = self._until.left, 0
        while waiting and (not found or (_are_swaps(found[0].move, waiting[0][1]) and taken < JOINT_PLANS)):
            left = sum(weight for weight, _ in waiting)
            weight, move = waiting.popleft()
            is_limited = math.isfinite(available)
            seconds = available * weight / left if left > 0 and is_limited else available
            if weight >= least:
                seconds = max(seconds, min(available, (1 if taken else 2) * self._timer.seconds))
            neighbors = self._neighbors(move, plan)
            most = self._timer.num_plans(seconds) - (0 if taken else 1)
            kept = neighbors if math.isinf(most) else neighbors[: max(0, int(most))]
            if neighbors and len(kept) == len(neighbors):
                self._tried.add(_identity(move))
            if kept:
                found.append(_Neighbors(move, kept))
                taken += len(kept)
                available -= len(kept) * self._timer.seconds
            if not is_limited:
                break
        return found

    def _neighbors(self, move: Move, plan: PlanState) -> list[PlanState]:
        """Return the plans that a move reaches and that can run."""
        if isinstance(move, SwapKernel) and not self._runs(move.layers, plan):
            return []
        neighbors = move.neighbors(plan)
        if isinstance(move, TakeAlternative):  # the others take the same alternatives
            neighbors = [one for one in neighbors if self._can_run(one)]
        return neighbors

    def _apply(self, moves: Sequence[_Neighbors], plan: PlanState) -> PlanState:
        """Return the fastest plan that one of some moves reaches, or all that gain; the plan itself if none does."""
        if not moves:
            return plan
        timed = self._time_ratios(plan, [neighbor for one in moves for neighbor in one.plans])
        gains: list[tuple[float, PlanState, Result]] = []
        for one in moves:
            own, timed = timed[: len(one.plans)], timed[len(one.plans) :]
            ratios = [ratio for ratio, _ in own]
            if isinstance(one.move, SwapKernel):
                self._shorten_candidates(one.move, plan, one.plans, ratios)
            best = min(range(len(ratios)), key=ratios.__getitem__)
            ratio, result = own[best]
            if result is not None and ratio < MAX_TIME_RATIO:
                gains.append((ratio, one.plans[best], result))
        if not gains:
            return plan
        _, best_plan, result = min(gains, key=lambda gain: gain[0])
        self._on_improvement(best_plan, result)
        if len(gains) == 1:
            return best_plan
        changed = [
            assignment
            for _, neighbor, _ in gains
            for name, assignment in neighbor.assignments.items()
            if assignment != plan.assignments[name]
        ]
        joint = plan.with_assignments(changed)
        ((ratio, result_of_joint),) = self._time_ratios(best_plan, [joint])
        if result_of_joint is None or ratio >= 1:
            return best_plan
        self._on_improvement(joint, result_of_joint)
        return joint

    def _can_run(self, plan: PlanState) -> bool:
        """Return whether the alternatives of a plan can be taken together."""
        try:
            self._timer.names(plan)  # kept for timing it
        except ProblemError:
            return False
        return True

    def _runs(self, names: Sequence[str], plan: PlanState) -> bool:
        """Return whether a plan runs these layers."""
        return set(self._timer.names(plan)).issuperset(names)

    def _shorten_candidates(
        self, move: SwapKernel, plan: PlanState, neighbors: Sequence[PlanState], ratios: Sequence[float]
    ) -> None:
        """Keep the KEPT_CANDIDATES of a move's layers with which the network is fastest; those not timed yet lead."""
        ranked = sorted(range(len(neighbors)), key=ratios.__getitem__)
        for name in move.layers:
            timed = [plan.assignments[name].candidate]
            for other in (neighbors[i].assignments[name].candidate for i in ranked):
                if other not in timed:
                    timed.append(other)
            others = [one for one in self._candidates[name] if one not in timed]
            self._candidates[name] = [*others, *timed[:KEPT_CANDIDATES]]

    def _same_problem(self, names: Sequence[str]) -> list[list[str]]:
        """Group layers by their problem; layers of one problem have the same candidates."""
        groups: dict[Problem, list[str]] = {}
        for name in names:
            groups.setdefault(self._problem_of[name], []).append(name)
        return list(groups.values())

    def _time_ratios(self, plan: PlanState, neighbors: Sequence[PlanState]) -> list[tuple[float, Result | None]]:
        """Return time of the neighbour / time of the plan and the result of each neighbour.

        The ratio of a neighbour that fails is infinite. The worker reports the failure of one plan as that of all plans
        of its request. So if a request fails, each neighbour is timed in a request of its own, as far as there is time.
        """
        groups = [list(neighbors)]
        timed: list[tuple[float, Result | None]] = []
        while groups:
            group = groups.pop(0)
            results = None if timed and self._until.is_over else self._timer.compare([plan, *group])
            if results:
                current, *others = [result.median_us or math.inf for result in results]
                timed += [(us / current, result) for us, result in zip(others, results[1:], strict=True)]
            elif len(group) > 1:
                groups = [[neighbor] for neighbor in group]
            else:
                timed.append((math.inf, None))
        return timed


def _are_swaps(*moves: Move) -> bool:
    return all(isinstance(move, SwapKernel) for move in moves)


def _identity(move: Move) -> tuple[str, ...]:
    """Return a text for each part of a network that a move changes, and the kind of the move."""
    if isinstance(move, SwapKernel):
        return ("swap", *move.layers)
    return ("take", move.alternative.name) if isinstance(move, TakeAlternative) else ("reorder",)
