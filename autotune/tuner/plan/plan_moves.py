"""Plans during the search for the fastest one, and the moves from one plan to another.

TakeAlternative   take an alternative of the network, or give it up
SwapKernel        run a layer on another candidate, or toggle its overlap with the kernel before it, or both
Reorder           exchange two neighbouring layers that do not depend on each other. The graph stays the same, but
                  not its speed: the first of two branches continues where the kernel before it ran
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from autotune.ir import Alternative, Layer, Network
from autotune.measure import LayerAssignment
from autotune.runtime import Candidate


@dataclass(frozen=True)
class PlanState:
    """A plan during the search.

    Attributes:
        assignments: The candidate of each layer by its name, also of layers that the plan does not run.
        alternatives: The alternatives that the plan takes.
        order: Names of layers; the plan runs them in this order as far as their data dependencies allow.
    """

    assignments: Mapping[str, LayerAssignment]
    alternatives: Sequence[Alternative] = ()
    order: Sequence[str] = ()

    def layers(self, network: Network) -> tuple[Layer, ...]:
        """Return the layers that the plan runs, in their order."""
        return network.layers_with([alternative.name for alternative in self.alternatives], self.order)

    def sequence(self, network: Network) -> list[LayerAssignment]:
        """Return the candidates of the layers that the plan runs, in their order."""
        return [self.assignments[layer.name] for layer in self.layers(network)]

    def with_assignments(self, assignments: Iterable[LayerAssignment]) -> PlanState:
        """Return this plan with other candidates for some layers."""
        return replace(self, assignments={**self.assignments, **{one.layer: one for one in assignments}})

    def overlapping(self) -> PlanState:
        """Return this plan with each kernel of our own overlapping the one before it."""
        return self.with_assignments(replace(one, overlap=one.candidate.native) for one in self.assignments.values())


class Move(ABC):
    """A change of a plan along one coordinate."""

    @abstractmethod
    def neighbors(self, plan: PlanState) -> list[PlanState]:
        """Return the plans that this move reaches from `plan`; none if it does not apply."""


@dataclass(frozen=True)
class TakeAlternative(Move):
    """Takes an alternative, or gives it up if the plan has it.

    Taking it gives up the alternatives that replace one of the same layers. Its kernels are tried as they are in the
    plan, and all with overlap.
    """

    alternative: Alternative

    def neighbors(self, plan: PlanState) -> list[PlanState]:
        """Return one plan or two; none if a layer that they would run has no candidate."""
        own = [layer.name for layer in self.alternative.layers]
        if not plan.assignments.keys() >= set(own):
            return []
        taken = [one for one in plan.alternatives if one != self.alternative]
        if self.alternative in plan.alternatives:
            if not plan.assignments.keys() >= set(self.alternative.replaces):
                return []
        else:
            replaced = set(self.alternative.replaces)
            taken = [*(one for one in taken if replaced.isdisjoint(one.replaces)), self.alternative]
        toggled = replace(plan, alternatives=taken)
        overlapping = toggled.with_assignments(
            replace(plan.assignments[name], overlap=plan.assignments[name].candidate.native) for name in own
        )
        return [toggled] if overlapping == toggled else [toggled, overlapping]


@dataclass(frozen=True)
class SwapKernel(Move):
    """Runs layers of one problem on another candidate, toggles their overlap, or does both.

    Attributes:
        layers: Names of the layers; all get the same candidate.
        candidates: The candidates to try.
        overlaps: Whether they overlap the kernel before them: the values to try. Only kernels of our own can overlap.
    """

    layers: Sequence[str]
    candidates: Sequence[Candidate]
    overlaps: Sequence[bool] = (False, True)

    def neighbors(self, plan: PlanState) -> list[PlanState]:
        """Return a plan for each candidate and each value of its overlap, apart from the plan itself."""
        current = [plan.assignments[name] for name in self.layers]
        ways = [
            [LayerAssignment(name, candidate, overlap) for name in self.layers]
            for candidate, overlap in product(self.candidates, self.overlaps)
            if candidate.native or not overlap
        ]
        return [plan.with_assignments(way) for way in ways if way != current]


@dataclass(frozen=True)
class Reorder(Move):
    """Exchanges two neighbouring layers of which the second does not read what the first writes."""

    network: Network

    def neighbors(self, plan: PlanState) -> list[PlanState]:
        """Return a plan for each pair of such neighbours."""
        layers = plan.layers(self.network)
        names = [layer.name for layer in layers]
        return [
            replace(plan, order=[*names[:i], names[i + 1], names[i], *names[i + 2 :]])
            for i in range(len(names) - 1)
            if set(layers[i].writes).isdisjoint(layers[i + 1].reads)
        ]
