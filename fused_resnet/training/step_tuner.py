"""Chooses the kernels of a training step inside the whole step.

Between other kernels a kernel finds another state of the caches than when it is timed alone, so another one may be
faster there. The search is the coordinate descent over the plans of networks: the calls of kernels are the layers. On a
GPU a step is timed as one CUDA graph of its forward and backward pass.

What is fused, and what stays on torch's operators, follows from the times alone: it decides which graph is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch

from autotune.core import NEVER, Deadline
from autotune.ir import NetworkKey
from autotune.measure import Call, LayerAssignment, Result, interleave, median_interval, replay_sampler, timed
from autotune.runtime import Candidate
from autotune.runtime.engine import EngineError
from autotune.tuner.plan import FINAL_ROUNDS, PlanDescent, PlanState, PlanTimer
from fused_resnet.training.kernels.bound_problem import BoundProblem, Key, bound, exchange, parsed
from fused_resnet.training.kernels.step_plans import CLOSE
from fused_resnet.training.kernels.winners import Winners, layout_of
from fused_resnet.training.trained_step import TrainedModule, TunedStep, record_step
from tuning_db import Store
from tuning_db.schema import Device, PlanRow

ALTERNATIVES = 2
"""Most kernels that are tried in place of one."""
_WARM_UPS = 2  # runs before a CUDA graph is captured

Sampling = Callable[[Call, Sequence[BoundProblem]], Callable[[], float]]
"""(a step, its kernels) -> a warm sampler of the step, which runs these kernels even if others are bound later."""


def step_graphs(device: torch.device) -> Sampling:
    """Return a function that makes samplers of steps on a GPU: each step is a CUDA graph."""
    pool: Any = None  # torch's handle of the memory

    def sampler(step: Call, kernels: Sequence[BoundProblem]) -> Callable[[], float]:
        nonlocal pool
        side, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                step()
        torch.cuda.current_stream(device).wait_stream(side)
        # All graphs share memory: none reads what another one has written.
        with torch.cuda.graph(graph, pool=pool):
            step()
        pool = pool or graph.pool()

        def replay(_: object = kernels) -> None:  # whose workspaces the graph uses
            graph.replay()

        return replay_sampler(replay, device)

    return sampler


def tune_step_plan(
    store: Store,
    location: str,
    row: Device,
    trained: TrainedModule,
    key: NetworkKey,
    until: Deadline = NEVER,
    sampling: Sampling | None = None,
) -> PlanRow | None:
    """Find the fastest kernels for the problems of a step, and record them as its plan.

    Args:
        store: The database with the measurements of all problems.
        location: Its path or URL.
        row: The device.
        trained: The module.
        key: The key of the plan.
        until: Deadline of the search; compiling the step is not interrupted.
        sampling: Makes the samplers of the step; by default those of CUDA graphs on the module's GPU.

    Returns:
        The plan, whose `details["alone_us"]` is the time of the step with the kernels that are the fastest alone. An
        older plan that was faster stays. None if no kernel of ours runs in the step.
    """
    winners = Winners(location, uses_plans=False)
    step = TunedStep(trained, winners)
    if not step.calls:
        return None
    chosen = step.kernels()
    calls = {f"call {i}": at for i, at in enumerate(chosen)}
    steps = _Steps(step, calls, sampling or step_graphs(trained.device))
    timer = PlanTimer(steps.time, lambda plan: tuple(plan.assignments), until.clock)
    first = PlanState({name: LayerAssignment(name, chosen[at].candidate) for name, at in calls.items()})
    try:
        timer.compare([first])
        fastest = PlanDescent(timer, None, *_candidates(step, calls, winners), until).descend(first, group_first=False)
        results = timer.compare([first] if fastest is first else [first, fastest], FINAL_ROUNDS)
        assert results, "both were timed before"
        settled = next((one for one in results[1:] if _is_shorter(one, results[0])), results[0])
        if settled is not results[0]:
            chosen = steps.kernels(fastest)
    finally:  # what is compiled later in this process runs the chosen ones
        for at, kernel in chosen.items():
            exchange(at, kernel)
    older = store.plan(row, str(key))
    if older and older.median_us < (settled.median_us or inf):
        return older
    return record_step(store, row, key, settled, chosen, alone_us=results[0].median_us)


def _candidates(
    step: TunedStep, calls: Mapping[str, Key], winners: Winners
) -> tuple[dict[str, list[Candidate]], dict[str, float]]:
    """Return the kernels to try for each call, and the least time of all its runs in a step.

    They read the weight in the layout of the compiled graph.
    """
    candidates, us = {}, {}
    for name, at in calls.items():
        known, layout = winners.kernels(parsed(at[0]), at[-1]), at[2]
        fastest_us = min(choice.expected_us or inf for choice in known)
        close = [one.candidate for one in known if (one.expected_us or inf) <= CLOSE * fastest_us]
        now = bound(*at).candidate
        others = [one for one in close if one != now and layout in ("", layout_of(one))]
        candidates[name], us[name] = [now, *others[:ALTERNATIVES]], step.calls[at] * fastest_us
    return candidates, us


@dataclass(frozen=True)
class _Sampled:
    """A plan of a step, the kernels that it runs, and its sampler."""

    plan: PlanState
    kernels: Mapping[str, BoundProblem]
    sample: Callable[[], float]


class _Steps:
    """Times plans of a step whose layers are its calls of kernels.

    Args:
        step: The step.
        calls: What each call asks for, by the name of its layer.
        sampling: Makes the samplers.
    """

    def __init__(self, step: Call, calls: Mapping[str, Key], sampling: Sampling) -> None:
        self._step, self._calls, self._sampling = step, calls, sampling
        self._known: list[_Sampled] = []  # of the last comparison, of which some plans are compared again

    def kernels(self, plan: PlanState) -> dict[Key, BoundProblem]:
        """Return the kernels of a plan of the last comparison."""
        return {self._calls[name]: kernel for name, kernel in self._sampled(plan).kernels.items()}

    def time(self, plans: Sequence[PlanState], rounds: int) -> list[Result]:
        """Time plans in interleaved rounds, or return the fault of a kernel that cannot be bound."""
        try:
            self._known = [self._sampled(plan) for plan in plans]
        except EngineError as error:
            return [Result("refused", str(error))]
        return [timed(samples) for samples in interleave([one.sample for one in self._known], rounds).samples]

    def _sampled(self, plan: PlanState) -> _Sampled:
        for one in self._known:
            if one.plan.assignments == plan.assignments:
                return one
        kernels = {name: self._kernel(name, one.candidate) for name, one in plan.assignments.items()}
        for name, kernel in kernels.items():
            exchange(self._calls[name], kernel)
        return _Sampled(plan, kernels, self._sampling(self._step, list(kernels.values())))

    def _kernel(self, name: str, candidate: Candidate) -> BoundProblem:
        text, _, _, scalars, device = self._calls[name]
        known = (bound(*self._calls[name]), *(one.kernels[name] for one in self._known))
        same = (kernel for kernel in known if kernel.candidate == candidate)
        return next(same, None) or BoundProblem(parsed(text), candidate, scalars, device)


def _is_shorter(ours: Result, theirs: Result) -> bool:
    """Return whether the samples of one step are shorter than those of another in the same rounds, beyond noise."""
    ratios = [one / other for one, other in zip(ours.samples_us, theirs.samples_us, strict=True)]
    return median_interval(ratios)[1] < 1
