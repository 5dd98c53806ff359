"""Compares a training step on tuned kernels with the step as torch runs it, on a CPU.

Each kernel was faster alone than torch's operator. The step may not be: packing weights and what Inductor compiles
around the kernels take time, too. So the whole step is timed in all ways in interleaved rounds of one process.
"""

from __future__ import annotations

import time
from math import inf

import torch

from autotune.core import NEVER, Deadline
from autotune.ir import NetworkKey
from autotune.measure import THROTTLED, Monitor, interleave, replay_sampler, timed
from fused_resnet.training.compile import why_not_compiled
from fused_resnet.training.kernels.step_plans import EAGER, INDUCTOR, faster_way
from fused_resnet.training.kernels.winners import Winners
from fused_resnet.training.step_tuner import FINAL_ROUNDS
from fused_resnet.training.trained_step import Step, TrainedModule, TunedStep, step_choices
from tuning_db import Store
from tuning_db.schema import Device, PlanRow

LEAST_ROUNDS = 5
"""Rounds of a comparison whose deadline has passed by the time that everything is compiled."""


def compare_step(
    store: Store, location: str, row: Device, trained: TrainedModule, key: NetworkKey, until: Deadline = NEVER
) -> PlanRow:
    """Time a step on tuned kernels and as torch runs it, and record the times as the plan of the step.

    Inductor's code of the step without our kernels is compared if there is time to compile it.

    Args:
        store: The database with the measurements of all problems.
        location: Its path or URL.
        row: The device.
        trained: The module, on a CPU.
        key: The key of the plan.
        until: Deadline of the comparison; compiling the step on our kernels is not interrupted.

    Returns:
        The plan: its time is that on our kernels, and `details["torch_us"]` has those of EAGER and INDUCTOR. A plan by
        which Inductor is faster than all that was compared now stays if Inductor was not compared.
    """
    began = time.monotonic()
    ours = TunedStep(trained, Winners(location, uses_plans=False))
    compile_seconds = time.monotonic() - began
    ways = {"": ours, EAGER: Step(trained, trained.module)}
    if until.left > compile_seconds and (compiled := _compiled(trained)):
        ways[INDUCTOR] = compiled
    samplers = [replay_sampler(step, trained.device) for step in ways.values()]
    monitor = Monitor(trained.device)
    round_us = sum(sample() for sample in samplers)
    rounds = max(LEAST_ROUNDS, int(min(FINAL_ROUNDS, until.left * 1e6 / round_us)))
    compared = interleave(samplers, rounds, monitor.slowed)
    times = {way: timed(samples) for way, samples in zip(ways, compared.samples, strict=True)}
    settled = times.pop("")
    torch_us = {way: one.median_us or inf for way, one in times.items()}
    older = store.plan(row, str(key))
    if older and INDUCTOR not in torch_us and faster_way(older) == INDUCTOR:
        fastest_us = min(settled.median_us or inf, *torch_us.values())
        if older.details["torch_us"][INDUCTOR] < fastest_us:
            return older
    slowed = {THROTTLED: compared.throttled} if compared.throttled else {}
    return store.replace_plan(
        older,
        device_id=row.id,
        network=str(key),
        median_us=settled.median_us,
        spread_us=settled.spread_us,
        choices=step_choices(store, row, ours.kernels()),
        details={
            "alone_us": settled.median_us,
            "samples_us": settled.samples_us,
            "alternatives": [],
            "torch_us": torch_us,
            **slowed,
        },
    )


def _compiled(trained: TrainedModule) -> Step | None:
    """Return a step as torch.compile runs it, compiled; None if Inductor cannot or must not compile it."""
    if why_not_compiled(trained.device):
        return None
    step = Step(trained, torch.compile(trained.module, dynamic=False))
    try:
        step()
    except Exception:  # a compiler's errors have no common base
        return None
    return step
