"""Chooses the kernels of a training step inside the whole step.

Between other kernels a kernel finds another state of the caches than when it is timed alone, so another one may be
faster there. The search exchanges one kernel after the other, those first that take most of the step, and keeps what
makes the step faster. On a GPU a step is timed as one CUDA graph of its forward and backward pass.

What is fused, and what stays on torch's operators, follows from the times alone: it decides which graph is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any

import torch

from autotune.core import NEVER, Deadline
from autotune.ir import NetworkKey
from autotune.measure import Call, interleave, median_interval, replay_sampler, timed
from autotune.runtime.engine import EngineError
from fused_resnet.training.kernels.bound_problem import BoundProblem, Key, bound, exchange, parsed
from fused_resnet.training.kernels.step_plans import CLOSE
from fused_resnet.training.kernels.winners import Winners, layout_of
from fused_resnet.training.trained_step import TrainedModule, TunedStep, step_choices
from tuning_db import Store
from tuning_db.schema import Device, PlanRow

ALTERNATIVES = 2
"""Most kernels that are tried in place of one."""
ROUNDS, FINAL_ROUNDS = 9, 21
"""Interleaved rounds that compare two steps, and those of the last comparison, whose times are recorded."""
_WARM_UPS = 2  # runs before a CUDA graph is captured


class StepTimer:
    """Makes samplers of steps on one GPU: each step is a CUDA graph.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None  # torch's handle of the memory

    def sampler(self, step: Call, kernels: Sequence[BoundProblem]) -> Callable[[], float]:
        """Return a warm sampler of a step.

        Args:
            step: Runs it.
            kernels: The kernels that it runs. The sampler runs these even if others are bound later.
        """
        side, graph = torch.cuda.Stream(self._device), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                step()
        torch.cuda.current_stream(self._device).wait_stream(side)
        # All graphs share memory: none reads what another one has written.
        with torch.cuda.graph(graph, pool=self._pool):
            step()
        self._pool = self._pool or graph.pool()

        def replay(_: object = kernels) -> None:  # whose workspaces the graph uses
            graph.replay()

        return replay_sampler(replay, self._device)


def tune_step_plan(
    store: Store,
    location: str,
    row: Device,
    trained: TrainedModule,
    key: NetworkKey,
    until: Deadline = NEVER,
    timer: StepTimer | None = None,
) -> PlanRow | None:
    """Find the fastest kernels for the problems of a step, and record them as its plan.

    Args:
        store: The database with the measurements of all problems.
        location: Its path or URL.
        row: The device.
        trained: The module.
        key: The key of the plan.
        until: Deadline of the search; compiling the step is not interrupted.
        timer: Makes the samplers; one of the module's GPU by default.

    Returns:
        The plan, whose `details["alone_us"]` is the time of the step with the kernels that are the fastest alone. An
        older plan that was faster stays. None if no kernel of ours runs in the step.
    """
    winners = Winners(location, uses_plans=False)
    step = TunedStep(trained, winners)
    if not step.calls:
        return None
    chosen = step.kernels()
    try:
        first_us, settled_us = _settled(step, timer or StepTimer(trained.device), winners, until)
        if settled_us is not first_us:
            chosen = step.kernels()
    finally:  # what is compiled later in this process runs the chosen ones
        for at, kernel in chosen.items():
            exchange(at, kernel)
    settled, older = timed(settled_us), store.plan(row, str(key))
    if older and older.median_us < (settled.median_us or inf):
        return older
    return store.replace_plan(
        older,
        device_id=row.id,
        network=str(key),
        median_us=settled.median_us,
        spread_us=settled.spread_us,
        choices=step_choices(store, row, chosen),
        details={"alone_us": timed(first_us).median_us, "samples_us": settled.samples_us, "alternatives": []},
    )


def _settled(step: TunedStep, timer: StepTimer, winners: Winners, until: Deadline) -> tuple[list[float], list[float]]:
    """Exchange kernels as long as that makes a step faster.

    Returns:
        Samples of the step as it was and as it is now; the same list if it is not faster.
    """
    first = now = timer.sampler(step, list(step.kernels().values()))
    for at, other in _moves(step, winners, until):
        before = exchange(at, other)
        tried = timer.sampler(step, list(step.kernels().values()))
        if _is_shorter(*interleave([tried, now], ROUNDS).samples):
            now = tried
        else:
            exchange(at, before)
    first_us, *others = interleave([first] if now is first else [first, now], FINAL_ROUNDS).samples
    return first_us, next((one for one in others if _is_shorter(one, first_us)), first_us)


def _moves(step: TunedStep, winners: Winners, until: Deadline) -> Iterator[tuple[Key, BoundProblem]]:
    """Yield kernels to try, each for a problem whose weight it reads in the layout of the graph."""
    known = {at: winners.kernels(parsed(at[0]), at[-1]) for at in step.calls}
    fastest_us = {at: min(choice.expected_us or inf for choice in known[at]) for at in step.calls}
    for at in sorted(step.calls, key=lambda at: -step.calls[at] * fastest_us[at]):
        text, _, layout, scalars, device = at
        close = [one.candidate for one in known[at] if (one.expected_us or inf) <= CLOSE * fastest_us[at]]
        others = [one for one in close if one != bound(*at).candidate and layout in ("", layout_of(one))]
        for one in others[:ALTERNATIVES]:
            if until.is_over:
                return
            try:
                other = BoundProblem(parsed(text), one, scalars, device)
            except EngineError:
                continue  # it refuses the size, or cannot be loaded
            yield at, other


def _is_shorter(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Return whether the samples of one step are shorter than those of another in the same rounds, beyond noise."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return median_interval(ratios)[1] < 1
