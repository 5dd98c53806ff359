"""Plans of other databases for the networks of a run: kernels are copied and tried first; settling compares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.families import Kernel
from autotune.ir import Network
from autotune.tuner.device_queues import DeviceQueues
from autotune.tuner.kernel_builder import KernelBuilder
from autotune.tuner.trial_queue import WantedTrial
from tuning_db import protocols


@dataclass(frozen=True)
class CopiedPlan:
    """A plan of another database whose kernels were copied.

    Attributes:
        choices: As of a plan. Layers whose kernels cannot be copied, such as operators of torch, are left out, and run
            on their winners.
        details: Those of the plan: `details["alternatives"]` names the alternatives that it takes.
    """

    choices: Sequence[Mapping[str, Any]]
    details: Mapping[str, Any]


def copy_plan(
    network: Network,
    plan: protocols.Plan,
    kernels: Mapping[int, Kernel],
    builder: KernelBuilder,
    trials: DeviceQueues,
    time_left: Callable[[], bool],
) -> CopiedPlan:
    """Copy the kernels of another database's plan for a network, and try them on their layers' problems.

    Args:
        network: The network.
        plan: The plan.
        kernels: The kernels that can be copied, by their ids in the plan.
        builder: Copies the kernels.
        trials: Receives the trials.
        time_left: Returns whether more may be tried.
    """
    problems = {layer.name: layer.problem for layer in network.all_layers}
    choices = [one for one in plan.choices if one["layer"] in problems and one["kernel"] in kernels]
    builder.build(list(dict.fromkeys(kernels[one["kernel"]] for one in choices)))
    copied: list[Mapping[str, Any]] = []
    for one in choices:
        row = builder.rows[kernels[one["kernel"]]]
        if time_left():
            trials.submit(WantedTrial(problems[one["layer"]], row, [one["launch"]]))
        copied.append({**one, "kernel": row.id})
    return CopiedPlan(copied, plan.details)
