"""The plans of training steps: the kernel of each problem that is the fastest inside the whole step.

A step's plan is stored as the plan of a network. Its layers are called by the texts of their problems, so a kernel is
found for a problem whatever graph asks for it. `details["torch_us"]` has the times of the step as torch runs it, in the
rounds of the plan's time: a step that torch runs faster runs so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autotune.ir import NetworkKey, Problem
from autotune.ir.network import digest_of
from autotune.runtime import Candidate, candidate

if TYPE_CHECKING:
    from tuning_db.protocols import Database, Device, Plan

CLOSE = 1.25
"""How much slower alone than the fastest kernel one may be that is the fastest inside a step."""

EAGER, INDUCTOR = "eager", "inductor"
"""The ways in which torch runs a step: its operators one by one, and the code of torch.compile in its default mode."""

NOTICEABLE = 1.02
"""How many times faster than our kernels torch must run a step for a step to run without them."""

_OF_A_STEP = ("step", "training")
"""The property of the key of a step's plan."""


def step_key(model: str, batch: int, dtype: str, problems: Iterable[Problem]) -> NetworkKey:
    """Return the key of a step's plan.

    Args:
        model: Name of the model.
        batch: Batch size.
        dtype: Dtype of the products.
        problems: The problems of the step. Of a step that is compared with torch they are those of its layers.
    """
    name = "_".join(model.split())  # a key's words are separated by spaces
    return NetworkKey(name, batch, (("dtype", dtype), _OF_A_STEP), step_digest(problems))


def step_digest(problems: Iterable[Problem]) -> str:
    """Return the digest of a step's problems, in any order."""
    return digest_of(sorted(map(str, problems)))


@dataclass(frozen=True)
class StepPlans:
    """The plans of the steps of one device.

    Attributes:
        kernels: The kernels that the plans choose, by the texts of their problems. Where several steps contain a
            problem, the plan of the one that was planned last counts.
        plans: The plans by the digests of the steps. Where several plans have the same problems, the one that was
            planned last counts.
    """

    kernels: Mapping[str, Candidate] = field(default_factory=dict)
    plans: Mapping[str, Plan] = field(default_factory=dict)

    @classmethod
    def read(cls, store: Database, device: Device) -> StepPlans:
        """Read the plans of steps on a device."""
        keys = [(text, NetworkKey.parse(text)) for text in store.planned(device)]  # the newest last
        steps = [(key.digest, store.plan(device, text)) for text, key in keys if _OF_A_STEP in key.properties]
        plans = [(digest, plan) for digest, plan in steps if plan]
        kernels = {
            choice["layer"]: candidate(store, store.kernel(choice["kernel"]), choice["launch"])
            for _, plan in plans
            for choice in plan.choices
        }
        return cls(kernels, dict(plans))

    def faster_ways(self, is_compiled: bool) -> dict[str, str]:
        """Return the ways in which torch runs steps faster than our kernels do, by the digests of the steps.

        Args:
            is_compiled: Whether Inductor can compile; if not, a step does not run by it.
        """
        found = {digest: faster_way(plan, is_compiled) for digest, plan in self.plans.items()}
        return {digest: way for digest, way in found.items() if way}


def faster_way(plan: Plan, is_compiled: bool = True) -> str | None:
    """Return the fastest way of torch to run a step, EAGER or INDUCTOR; None if our kernels are no slower.

    Args:
        plan: The plan of the step.
        is_compiled: Whether Inductor can compile.
    """
    ways = {way: us for way, us in plan.details.get("torch_us", {}).items() if is_compiled or way != INDUCTOR}
    fastest = min(ways, key=ways.__getitem__, default=None)
    return fastest if fastest and plan.median_us > NOTICEABLE * ways[fastest] else None
