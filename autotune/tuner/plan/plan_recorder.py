"""Writes the plan of a network to the database, as often as a tune finds a faster one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from autotune.core import timeline
from autotune.ir import Network, NetworkKey, network_text
from autotune.measure import THROTTLED, LayerAssignment, Result
from autotune.runtime import activation_places
from autotune.tuner.plan.plan_candidates import Known, KnownCandidate, candidates_of
from autotune.tuner.plan.plan_moves import PlanState
from tuning_db import Store
from tuning_db.plan_choices import plan_choice
from tuning_db.schema import Device, PlanRow


class PlanRecorder:
    """Writes the plan of a run to the database; each plan replaces the one that it wrote before.

    Args:
        store: The database.
        device: The device.
        network: The network.
        known: The candidates of its layers.

    Attributes:
        network: The network.
        row: The plan that was written last.
        best_us: Time of the fastest plan so far in microseconds; infinite if there is none.
        alone_us: Time of the network with the winner of each layer in microseconds; 0 if it is not known.
        torch_us: Times of the whole network on torch's operators in microseconds, by candidate.
        keeps_faster: Whether the last comparison may only replace a plan by a faster one.
    """

    def __init__(self, store: Store, device: Device, network: Network, known: Known) -> None:
        self._store, self._device, self._known = store, device, known
        self.network = network
        self.row: PlanRow | None = None
        self.best_us = math.inf
        self.alone_us = 0.0
        self.torch_us: dict[str, float] = {}
        self.keeps_faster = False

    def known_whole(self) -> Known:
        """Return the candidates of the whole network on torch's operators that are known by now.

        Inductor may have compiled one since the layers' candidates were read.
        """
        for layer in self.network.whole.layers if self.network.whole else ():
            self._known[layer.name] = candidates_of(self._store, self._device, layer.problem)
        return self._known

    def record(self, plan: PlanState, result: Result) -> None:
        """Write a plan and its result."""
        self.row = self._written(self.network.identity, plan, result, self.row)
        self.best_us = result.median_us or math.inf
        if result.median_us:
            timeline.count(f"us of the network at batch {self.network.batch}", result.median_us)

    def record_if_faster(self, plan: PlanState, result: Result) -> None:
        """Write a plan and its result if it is the fastest so far."""
        if (result.median_us or math.inf) < self.best_us:
            self.record(plan, result)

    def record_precompiled(self, plan: PlanState, result: Result) -> None:
        """Write the plan for machines without a compiler."""
        self._written(self.network.identity.precompiled, plan, result, None)

    def _written(self, identity: NetworkKey, plan: PlanState, result: Result, before: PlanRow | None) -> PlanRow:
        if self.row is None:
            self._keep_network()
        return self._store.replace_plan(
            before,
            device_id=self._device.id,
            network=str(identity),
            median_us=result.median_us,
            spread_us=result.spread_us,
            choices=[_choice(one, self._known[one.layer]) for one in plan.sequence(self.network)],
            details={
                "alone_us": self.alone_us,
                "samples_us": result.samples_us,
                "alternatives": [alternative.name for alternative in plan.alternatives],
                "torch_us": self.torch_us,
                "memory": self._memory(plan),
                "label": self.network.label,
                **{name: value for name, value in result.details.items() if name == THROTTLED},
            },
        )

    def _keep_network(self) -> None:
        """Store the layers of the network, unless the database has them, at this batch size or at another one."""
        if not network_text.is_known(self._store.networks(f"{self.network.identity.model} "), self.network):
            self._store.put_network(self.network.key, network_text.write(self.network))

    def _memory(self, plan: PlanState) -> list[list[object]]:
        """Return the places of the activations, each as the values of an ActivationPlace."""
        layers = {layer.name: layer for layer in self.network.all_layers}
        running = [layers[one.layer] for one in plan.sequence(self.network)]
        return [list(astuple(place)) for place in activation_places(running, self.network.callers)]


def _choice(assignment: LayerAssignment, known: Sequence[KnownCandidate]) -> dict[str, Any]:
    """Return a layer's entry in the database's plan."""
    one = next(one for one in known if one.candidate == assignment.candidate)
    launch = assignment.candidate.launch
    return plan_choice(assignment.layer, one.kernel_id, launch, one.us, overlap=assignment.overlap)
