"""Measures one layer: verifies and times each contestant alone, then the best of each side in interleaved rounds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from autotune.ir import Problem, all_forms, limit_us
from autotune.libraries import cudnn
from autotune.measure import CandidateBench, Monitor, Sampler, interleave, sampler
from autotune_cli import timing
from autotune_cli.layers.contestants import Contestant, our_contestants, plan_contestants, torch_contestants

SIDES = {
    "ours": "our best kernel",
    "tuned": "the tuner's choice",
    "cudnn": "cuDNN's best plan",
    "first": "cuDNN's first choice",
    "cutlass2": "CUTLASS 2.x",
    "torch": "torch",
}
ENTERED = tuple(side for side in SIDES if side != "first")  # "first" is one of cuDNN's contestants
FINALISTS = 3  # of each side; the fastest of them in the choosing rounds is timed again
CHOOSING_ROUNDS = 15
SLOW = 20  # a contestant slower than SLOW x the best time so far is not timed further
PLANS = "building cuDNN's plans"

Tell = Callable[[str], object]


@dataclass(frozen=True)
class Job:
    """A layer to measure.

    Attributes:
        problem: The layer.
        database: The tuning database with our kernels.
        rounds: Interleaved rounds that are evaluated.
        skip: Label -> outcome of contestants that must not be tried again.
    """

    problem: Problem
    database: Path
    rounds: int
    skip: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """The outcome of a contestant alone. status: "ok", "wrong", "slow", "failed" or "crashed"."""

    contestant: Contestant
    status: str
    us: float = math.inf
    relative_error: float | None = None
    reason: str | None = None


def compare_layer(job: Job, device: torch.device, tell: Tell) -> dict[str, Any]:
    """Measure a layer and return its entry in the record; `tell` is called with the name of each step."""
    started = time.perf_counter()
    monitor = Monitor(device)
    before = monitor.state()
    tell("operands and reference")
    case, *others = cases = [CandidateBench(problem, device) for problem in all_forms(job.problem)]
    missing: dict[str, str] = {}
    rates, ours = our_contestants(cases, job.database, FINALISTS)
    if not ours:
        missing["ours"] = f"{job.database} has no kernel for it that was timed on this kind of device"
    tell(PLANS)
    found = [
        cudnn.FoundPlans([], job.skip[PLANS]) if PLANS in job.skip else cudnn.find_plans(one.problem, device)
        for one in cases
    ]
    if found[0].reason:
        missing["cudnn"] = found[0].reason
    contestants = [*torch_contestants(case), *ours, *plan_contestants(case, found[0])]
    for other, plans in zip(others, found[1:], strict=True):
        contestants += plan_contestants(other, plans, " as a convolution")
    trials = list(_trials(contestants, job.skip, tell))
    for side in ENTERED:
        mine = [trial for trial in trials if trial.contestant.side == side]
        if mine and not any(trial.status == "ok" for trial in mine):
            missing[side] = f"{mine[0].contestant.label}: {mine[0].reason}"
    tell("finals")
    chosen, samples = _finals(case, trials, job.rounds)
    limit = limit_us(job.problem, rates["flops_per_us"], rates["bytes_per_us"])
    return {
        "problem": str(job.problem),
        "limit_us": limit,
        "rates": rates,
        "sides": {side: _side(trial, samples[trial.contestant.label], limit) for side, trial in chosen.items()},
        "ratios": _ratios("ours", chosen, samples),
        "ratios_to_tuned": _ratios("tuned", chosen, samples),
        "missing": missing,
        "trials": [_as_json(trial) for trial in trials],
        "state": {"before": before, "after": monitor.state()},
        "seconds": round(time.perf_counter() - started, 2),
    }


def _trials(contestants: list[Contestant], skip: Mapping[str, str], tell: Tell) -> Iterator[Trial]:
    best = math.inf
    for contestant in contestants:
        if contestant.plan and contestant.plan.error:
            yield Trial(contestant, "failed", reason=contestant.plan.error)
        elif contestant.label in skip:
            yield Trial(contestant, "crashed", reason=skip[contestant.label])
        else:
            tell(contestant.label)
            trial = _trial(contestant, SLOW * best)
            if trial.status == "ok":
                best = min(best, trial.us)
            yield trial


def _trial(contestant: Contestant, limit: float) -> Trial:
    """Verify a contestant, and time it if one run takes at most `limit` microseconds."""
    result = contestant.case.run_library(contestant.bind, contestant.prove, slow_us=limit)
    us = math.inf if result.median_us is None else result.median_us
    return Trial(contestant, result.status, us, result.relative_error, result.error)


def _finals(case: CandidateBench, trials: list[Trial], rounds: int) -> tuple[dict[str, Trial], dict[str, list[float]]]:
    """Return the best trial of each side, and its times in other rounds than those that chose it, to avoid a bias."""
    ranked = sorted((trial for trial in trials if trial.status == "ok"), key=lambda trial: trial.us)
    sides = {side: [t for t in ranked if t.contestant.side == side][:FINALISTS] for side in ENTERED}
    first = next((t for t in trials if t.status == "ok" and t.contestant.side == "cudnn"), None)
    samplers: dict[str, Sampler] = {}
    for trial in [*(trial for group in sides.values() for trial in group), *([first] if first else [])]:
        if trial.contestant.label not in samplers:
            samplers[trial.contestant.label] = sampler(trial.contestant.bind(), case.device)
    times = {name: median(values) for name, values in _interleaved(case, samplers, CHOOSING_ROUNDS).items()}
    chosen = {side: min(group, key=lambda t: times[t.contestant.label]) for side, group in sides.items() if group}
    if first:
        chosen["first"] = first
    wanted = {trial.contestant.label for trial in chosen.values()}
    return chosen, _interleaved(case, {name: samplers[name] for name in samplers if name in wanted}, rounds)


def _interleaved(case: CandidateBench, samplers: Mapping[str, Sampler], rounds: int) -> dict[str, list[float]]:
    taken = interleave(list(samplers.values()), rounds, Monitor(case.device).slowed)
    return dict(zip(samplers, taken.samples, strict=True))


def _side(trial: Trial, samples: list[float], limit: float) -> dict[str, Any]:
    spread = timing.spread(samples)
    return {
        "label": trial.contestant.label,
        "us": asdict(spread),
        "share": limit / spread.median,
        "relative_error": trial.relative_error,
    }


def _ratios(base: str, chosen: Mapping[str, Trial], samples: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return the ratio of each side's time to that of `base`."""
    if base not in chosen:
        return {}
    reference = samples[chosen[base].contestant.label]
    others = {side: samples[trial.contestant.label] for side, trial in chosen.items() if side != base}
    return {side: asdict(timing.paired_ratio(values, reference)) for side, values in others.items()}


def _as_json(trial: Trial) -> dict[str, Any]:
    values = {
        "side": trial.contestant.side,
        "label": trial.contestant.label,
        "status": trial.status,
        "us": trial.us if math.isfinite(trial.us) else None,
        "relative_error": trial.relative_error if math.isfinite(trial.relative_error or 0) else None,
        "reason": trial.reason,
    }
    return values | {"plan": asdict(trial.contestant.plan)} if trial.contestant.plan else values
