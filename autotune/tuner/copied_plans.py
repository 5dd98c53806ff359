"""Plans of other databases for the networks of a run: kernels are copied and tried first; settling compares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.ir import Network
from autotune.tuner.device_queues import DeviceQueues
from autotune.tuner.foreign_kernels import ForeignKernels
from autotune.tuner.kernel_builder import KernelBuilder
from autotune.tuner.trial_queue import WantedTrial


@dataclass(frozen=True)
class CopiedPlan:
    """A plan of another database whose kernels were copied.

    Attributes:
        choices: As of a plan. Layers whose kernels cannot be copied are left out, and run on their winners.
        details: `details["alternatives"]` names the alternatives that it takes.
    """

    choices: Sequence[Mapping[str, Any]]
    details: Mapping[str, Any]


def copy_plan(
    network: Network,
    foreign: ForeignKernels,
    device: str,
    builder: KernelBuilder,
    trials: DeviceQueues,
    time_left: Callable[[], bool],
) -> CopiedPlan | None:
    """Copy the kernels of the plan that another database has for a network, and try them on their layers' problems.

    Args:
        network: The network.
        foreign: The other databases.
        device: Name of the device.
        builder: Copies the kernels.
        trials: Receives the trials.
        time_left: Returns whether more may be tried.

    Returns:
        The plan; None if no other database has one.
    """
    found = foreign.plan(device, network.key)
    if found is None:
        return None
    problems = {layer.name: layer.problem for layer in network.all_layers}
    choices = [choice for choice in found.choices if choice.layer in problems]
    builder.build(list(dict.fromkeys(choice.kernel for choice in choices)))
    copied: list[Mapping[str, Any]] = []
    for choice in choices:
        row = builder.rows[choice.kernel]
        if time_left():
            trials.submit(WantedTrial(problems[choice.layer], row, [choice.launch]))
        named = {"layer": choice.layer, "launch": choice.launch, "us": choice.us, "overlap": choice.overlap}
        copied.append({**named, "kernel": row.id})
    return CopiedPlan(copied, {"alternatives": found.alternatives})
