"""Plans that the networks of a run begin with: of another database, or for another batch size.

Their kernels are tried before the search, and settling compares them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.core import Deadline
from autotune.ir import Network
from autotune.libraries import cudnn_names
from autotune.runtime import plan_for_other_batch
from autotune.tuner.foreign_kernels import ForeignKernels
from autotune.tuner.kernel_builder import KernelBuilder
from autotune.tuner.trials import DeviceQueues, WantedTrial
from tuning_db import Store
from tuning_db.schema import Device


@dataclass(frozen=True)
class CopiedPlan:
    """A plan of another database or for another batch size, with kernels of this database.

    Attributes:
        choices: As of a plan, but "us" is None for another batch size. Layers whose kernels cannot be taken over, such
            as operators of torch, are left out, and run on their winners.
        details: Those of the plan: `details["alternatives"]` names the alternatives that it takes.
        median_us: Time of the network with the plan, in microseconds, on the device of the other database; infinite for
            another batch size.
    """

    choices: Sequence[Mapping[str, Any]]
    details: Mapping[str, Any]
    median_us: float = math.inf


def copy_plan(
    network: Network,
    store: Store,
    device: Device,
    foreign: ForeignKernels | None,
    builder: KernelBuilder,
    trials: DeviceQueues,
    until: Deadline,
) -> CopiedPlan | None:
    """Find a plan for a network that has none, and try its kernels on the problems of their layers.

    A plan of another database for the batch size comes first, then one of this database for another batch size, then
    one of another database for another batch size.

    Args:
        network: The network.
        store: The database.
        device: The device.
        foreign: Kernels and plans of other databases.
        builder: Copies kernels of other databases.
        trials: Receives the trials.
        until: Nothing is tried after this.

    Returns:
        The plan, or None if there is none with a kernel that can be taken over.
    """
    found = foreign.plan(device.name, network) if foreign else None
    own = plan_for_other_batch(store, device, network) if found is None or not found.same_batch else None
    problems = {layer.name: layer.problem for layer in network.all_layers}
    if own:
        plan, same_batch = own[0], False
        known = [store.kernel(number) for number in {one["kernel"] for one in plan.choices}]
        rows = {row.id: row for row in known if row.library and row.family != cudnn_names.FAMILY}
    elif found:
        plan, same_batch = found.plan, found.same_batch
        used = {one["kernel"] for one in plan.choices if one["layer"] in problems} & found.kernels.keys()
        builder.build([found.kernels[number] for number in sorted(used)])
        rows = {number: builder.rows[found.kernels[number]] for number in used}
    else:
        return None
    copied: list[Mapping[str, Any]] = []
    for one in plan.choices:
        if one["layer"] not in problems or not (row := rows.get(one["kernel"])):
            continue
        if not until.is_over:
            trials.submit(WantedTrial(problems[one["layer"]], row, [one["launch"]]))
        copied.append({**one, "kernel": row.id, "us": one["us"] if same_batch else None})
    if not copied:
        return None
    if same_batch:
        return CopiedPlan(copied, plan.details, plan.median_us)
    return CopiedPlan(copied, {"alternatives": plan.details.get("alternatives", [])})
