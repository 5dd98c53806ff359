"""Compares a training step on tuned kernels with the step as torch runs it, on a CPU.

Each kernel was faster alone than torch's operator. The step may not be: packing weights and what Inductor compiles
around the kernels take time, too. So the whole step is timed in all ways in interleaved rounds of one process.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import inf
from typing import Any

import torch
from torch import fx

from autotune.core import NEVER, Deadline, device_name
from autotune.ir import NetworkKey, Problem
from autotune.measure import THROTTLED, Monitor, interleave, replay_sampler, timed
from autotune.tuner import SLOWED
from autotune.tuner.plan import FINAL_ROUNDS
from fused_resnet.training.compile import why_not_compiled
from fused_resnet.training.kernels.step_plans import EAGER, INDUCTOR, faster_way, step_key
from fused_resnet.training.kernels.winners import Winners
from fused_resnet.training.trained_step import Step, TrainedGraph, TrainedModule, TunedStep, record_step
from tuning_db import Store
from tuning_db.schema import Device, PlanRow

RUNNERS = {EAGER: "eager torch", INDUCTOR: "torch.compile"}
"""The ways in which torch runs a step, as users call them."""
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
        trained: The module or the graph, on a CPU.
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
    details = {"alone_us": settled.median_us, "torch_us": torch_us, **slowed}
    return record_step(store, row, key, settled, ours.kernels(), **details)


def compare_graph(
    location: str,
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    problems: Sequence[Problem],
    until: Deadline,
    again: bool,
) -> PlanRow | None:
    """Compare a training step on a CPU that is a graph of Dynamo, on random inputs, as compare_step does.

    Args:
        location: Path or URL of the database.
        graph_module: The graph.
        example_inputs: Dynamo's example of each argument.
        problems: The problems of its layers.
        until: Deadline of the comparison.
        again: Compare it also if the database has a comparison, because its kernels have changed.

    Returns:
        The plan; None if the step was compared before, or the deadline has passed.
    """
    key = step_key("a training step", problems[0].batch, problems[0].dtype, problems)
    with Store.create(location) as store, ExitStack() as stack:
        row = store.device(device_name(torch.device("cpu")))
        if row is None or until.is_over or not (again or _is_missing(store, row, key)):
            return None
        stack.enter_context(torch.random.fork_rng(devices=[]))
        trained = TrainedGraph.of(graph_module, example_inputs)
        # Nothing of the caller's compilation and of its step counts: Dynamo's state, hooks such as those of
        # torch.utils.checkpoint, autocast outside the forward pass. What it warns of concerns the step that runs later.
        stack.enter_context(torch._guards.tracing(None))
        stack.enter_context(_own_metrics())
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is))
        stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(warnings.catch_warnings(action="ignore", category=UserWarning))
        return compare_step(store, location, row, trained, key, until)


@contextmanager
def _own_metrics() -> Iterator[None]:
    """Let compilations within the one that is under way count apart: Dynamo refuses to count twice in one."""
    context = getattr(torch._dynamo.utils, "get_metrics_context", lambda: None)()
    before = dict(vars(context)) if context else {}
    if context:
        context._level = 0
    try:
        yield
    finally:
        if context:
            vars(context).update(before)


def _is_missing(store: Store, row: Device, key: NetworkKey) -> bool:
    """Return whether no model's step with these problems was compared, or only beside other processes."""
    same = [text for text in store.planned(row) if NetworkKey.parse(text).digest == key.digest]
    return all(plan.details.get(THROTTLED) for text in same if (plan := store.plan(row, text)))


def compared_text(plan: PlanRow) -> str:
    """Return a sentence about the plan of a step that was compared with torch: the times, and what runs the step."""
    ours, torch_us = plan.median_us, plan.details["torch_us"]
    ratios = [
        f"{us / ours:.2f}x faster than {RUNNERS[way]} ({us:.1f} us)"
        if us > ours
        else f"{ours / us:.2f}x slower than {RUNNERS[way]} ({us:.1f} us)"
        for way, us in torch_us.items()
    ]
    if INDUCTOR not in torch_us:
        ratios.append(f"not compared with {RUNNERS[INDUCTOR]}")
    if plan.details.get(THROTTLED):
        ratios.append(SLOWED)
    way = faster_way(plan)
    runner = f"{RUNNERS[way]} runs" if way else "these kernels run"
    return f"{ours:.1f} us on the kernels of the database, {', '.join(ratios)}; {runner} the step"


def _as_it_is(saved: torch.Tensor) -> torch.Tensor:
    return saved


def _compiled(trained: TrainedModule) -> Step | None:
    """Return a step as torch.compile runs it, compiled; None if Inductor cannot or must not compile it."""
    if why_not_compiled(trained.device):
        return None
    try:
        step = Step(trained, trained.compiled())
        step()
    except Exception:  # a compiler's errors have no common base
        return None
    return step
