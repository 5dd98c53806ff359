"""The plans of training steps: the kernel of each problem that is the fastest inside the whole step.

A step's plan is stored as the plan of a network. Its layers are called by the texts of their problems, so a kernel is
found for a problem whatever graph asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from autotune.ir import NetworkKey, Problem
from autotune.ir.network import digest_of
from autotune.runtime import Candidate, candidate

if TYPE_CHECKING:
    from tuning_db.protocols import Database, Device

CLOSE = 1.25
"""How much slower alone than the fastest kernel one may be that is the fastest inside a step."""

_OF_A_STEP = ("step", "training")
"""The property of the key of a step's plan."""


def step_key(model: str, batch: int, dtype: str, problems: Iterable[Problem]) -> NetworkKey:
    """Return the key of a step's plan.

    Args:
        model: Name of the model.
        batch: Batch size.
        dtype: Dtype of the products.
        problems: The problems of the step.
    """
    name = "_".join(model.split())  # a key's words are separated by spaces
    return NetworkKey(name, batch, (("dtype", dtype), _OF_A_STEP), digest_of(sorted(map(str, problems))))


def planned_kernels(store: Database, device: Device) -> Mapping[str, Candidate]:
    """Return the kernels that the plans of steps on a device choose, by the texts of their problems.

    Where several steps contain a problem, the plan of the one that was planned last counts.
    """
    keys = [key for key in store.planned(device) if _OF_A_STEP in NetworkKey.parse(key).properties]
    plans = [plan for key in keys if (plan := store.plan(device, key))]
    return {
        choice["layer"]: candidate(store, store.kernel(choice["kernel"]), choice["launch"])
        for plan in plans
        for choice in plan.choices
    }
