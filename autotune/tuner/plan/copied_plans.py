"""Plans that the networks of a run begin with: of another database, or for another batch size or image size.

Their kernels are tried before the search, and settling compares them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.ir import Network
from autotune.libraries import cudnn_names
from autotune.runtime import plan_for_other_size
from autotune.tuner.run_context import RunContext
from autotune.tuner.trials import WantedTrial


@dataclass(frozen=True)
class CopiedPlan:
    """A plan of another database or for another size, with kernels of this database.

    Attributes:
        choices: As of a plan, but "us" is None for another size. Layers whose kernels cannot be taken over, such as
            operators of torch, are left out, and run on their winners.
        details: Those of the plan: `details["alternatives"]` names the alternatives that it takes.
        median_us: Time of the network with the plan, in microseconds, on the device of the other database; infinite for
            another size.
    """

    choices: Sequence[Mapping[str, Any]]
    details: Mapping[str, Any]
    median_us: float = math.inf


def copy_plan(network: Network, run: RunContext) -> CopiedPlan | None:
    """Find a plan for a network that has none, and try its kernels on the problems of their layers.

    A plan of another database for the size comes first, then one of this database for another batch size or image size,
    then such a plan of another database.

    Returns:
        The plan, or None if there is none with a kernel that can be taken over.
    """
    found = run.foreign.plan(run.device.name, network) if run.foreign else None
    own = plan_for_other_size(run.store, run.device, network) if found is None or not found.same_size else None
    problems = {layer.name: layer.problem for layer in network.all_layers}
    if own:
        plan, same_size = own.plan, False
        known = [run.store.kernel(number) for number in {one["kernel"] for one in plan.choices}]
        rows = {row.id: row for row in known if row.library and row.family != cudnn_names.FAMILY}
    elif found:
        plan, same_size = found.plan, found.same_size
        used = {one["kernel"] for one in plan.choices if one["layer"] in problems} & found.kernels.keys()
        run.builder.build([found.kernels[number] for number in sorted(used)])
        rows = {number: run.builder.rows[found.kernels[number]] for number in used}
    else:
        return None
    copied: list[Mapping[str, Any]] = []
    for one in plan.choices:
        if one["layer"] not in problems or not (row := rows.get(one["kernel"])):
            continue
        if not run.phases.current.is_over:
            run.queues.submit(WantedTrial(problems[one["layer"]], row, [one["launch"]]))
        copied.append({**one, "kernel": row.id, "us": one["us"] if same_size else None})
    if not copied:
        return None
    if same_size:
        return CopiedPlan(copied, plan.details, plan.median_us)
    return CopiedPlan(copied, {"alternatives": plan.details.get("alternatives", [])})
