"""Plans of other databases for the networks of a run: kernels are copied and tried first; settling compares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.families import Kernel
from autotune.ir import Network
from autotune.libraries import inductor
from autotune.tuner.device_queues import DeviceQueues
from autotune.tuner.kernel_builder import KernelBuilder
from autotune.tuner.trial_queue import WantedTrial
from tuning_db import protocols

OTHER_DEVICE = 1.2
"""A plan that was this many times faster than Inductor's code on one device is faster on another one of the target.

Plans for 13 networks and batch sizes were tuned on an H100 and on an H200. For 11 of them the speedup over Inductor's
code on the H200 is 0.87 to 1.05 times that on the H100. For the other two it is 0.77 and 0.67 times, which is still
1.4x and 1.14x faster than Inductor's code."""


@dataclass(frozen=True)
class CopiedPlan:
    """A plan of another database whose kernels were copied.

    Attributes:
        choices: As of a plan. Layers whose kernels cannot be copied, such as operators of torch, are left out, and run
            on their winners.
        details: Those of the plan: `details["alternatives"]` names the alternatives that it takes.
        median_us: Time of the network with the plan, in microseconds, on the device of the other database.
    """

    choices: Sequence[Mapping[str, Any]]
    details: Mapping[str, Any]
    median_us: float

    @property
    def is_ahead_of_inductor(self) -> bool:
        """Whether the other database's device took OTHER_DEVICE times as long for Inductor's code as for the plan."""
        timed: Mapping[str, float] = self.details.get("torch_us", {})
        compiled = [us for candidate, us in timed.items() if inductor.compiles(candidate)]
        return bool(compiled) and self.median_us * OTHER_DEVICE <= min(compiled)


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
    return CopiedPlan(copied, plan.details, plan.median_us)
