"""Measures one layer: every contender is verified and timed by itself, then the best of each side, side by side."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from autotune.ir import Problem, limit_us
from autotune.libraries import cudnn
from autotune.measure import CandidateBench, Monitor, Sampler, interleave, sampler
from autotune_cli import timing
from autotune_cli.layers.contestants import Contender, our_contenders, plan_contenders, torch_contenders

SIDES = {
    "ours": "our best kernel",
    "tuned": "the tuner's choice",
    "cudnn": "cuDNN's best plan",
    "first": "cuDNN's first choice",
    "torch": "torch",
}
ENTERED = tuple(side for side in SIDES if side != "first")  # that is one of cuDNN's
FINALISTS = 3  # of each side; the fastest of them in a first set of rounds is timed again
CHOOSING_ROUNDS = 15
SLOW = 20  # what takes this many times the best so far is not timed any further
PLANS = "building cuDNN's plans"

Tell = Callable[[str], object]


@dataclass(frozen=True)
class Job:
    """A layer to measure. skip: what is not to be tried again, by label, with what became of it."""

    problem: Problem
    database: Path
    rounds: int
    skip: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """What became of a contender by itself. status: "ok", "wrong", "slow", "failed" or "crashed"."""

    contender: Contender
    status: str
    us: float = math.inf
    relative_error: float | None = None
    reason: str | None = None


def contest(job: Job, device: torch.device, tell: Tell) -> dict[str, Any]:
    """Measure a layer: its entry in the record. `tell` hears what is being tried."""
    started = time.perf_counter()
    monitor = Monitor(device)
    before = monitor.state()
    tell("operands and reference")
    case = CandidateBench(job.problem, device)
    missing: dict[str, str] = {}
    rates, ours = our_contenders(case, job.database, FINALISTS)
    if not ours:
        missing["ours"] = f"{job.database} has no kernel for it that was timed on this kind of device"
    tell(PLANS)
    found = cudnn.FoundPlans([], job.skip[PLANS]) if PLANS in job.skip else cudnn.find_plans(job.problem, device)
    if found.reason:
        missing["cudnn"] = found.reason
    contenders = [*torch_contenders(case), *ours, *plan_contenders(case, found)]
    trials = list(_trials(case, contenders, job.skip, tell))
    for side in ENTERED:
        mine = [trial for trial in trials if trial.contender.side == side]
        if mine and not any(trial.status == "ok" for trial in mine):
            missing[side] = f"{mine[0].contender.label}: {mine[0].reason}"
    tell("finals")
    chosen, samples = _finals(case, trials, job.rounds)
    limit = limit_us(job.problem, rates["flops_per_us"], rates["bytes_per_us"])
    return {
        "problem": str(job.problem),
        "limit_us": limit,
        "rates": rates,
        "sides": {side: _side(trial, samples[trial.contender.label], limit) for side, trial in chosen.items()},
        "ratios": _ratios("ours", chosen, samples),
        "ratios_to_tuned": _ratios("tuned", chosen, samples),
        "missing": missing,
        "trials": [_as_json(trial) for trial in trials],
        "state": {"before": before, "after": monitor.state()},
        "seconds": round(time.perf_counter() - started, 2),
    }


def _trials(case: CandidateBench, contenders: list[Contender], skip: Mapping[str, str], tell: Tell) -> Iterator[Trial]:
    best = math.inf
    for contender in contenders:
        if contender.plan and contender.plan.error:
            yield Trial(contender, "failed", reason=contender.plan.error)
        elif contender.label in skip:
            yield Trial(contender, "crashed", reason=skip[contender.label])
        else:
            tell(contender.label)
            trial = _trial(case, contender, SLOW * best)
            if trial.status == "ok":
                best = min(best, trial.us)
            yield trial


def _trial(case: CandidateBench, contender: Contender, limit: float) -> Trial:
    """Verify a contender, then time it if one run takes no longer than `limit` microseconds."""
    result = case.run_library(contender.bind, contender.prove, slow_us=limit)
    us = math.inf if result.median_us is None else result.median_us
    return Trial(contender, result.status, us, result.relative_error, result.error)


def _finals(case: CandidateBench, trials: list[Trial], rounds: int) -> tuple[dict[str, Trial], dict[str, list[float]]]:
    """The best trial of each side, chosen in some rounds, and their times in others: choosing does not flatter them."""
    ranked = sorted((trial for trial in trials if trial.status == "ok"), key=lambda trial: trial.us)
    sides = {side: [t for t in ranked if t.contender.side == side][:FINALISTS] for side in ENTERED}
    first = next((t for t in trials if t.status == "ok" and t.contender.side == "cudnn"), None)
    samplers: dict[str, Sampler] = {}
    for trial in [*(trial for group in sides.values() for trial in group), *([first] if first else [])]:
        if trial.contender.label not in samplers:
            samplers[trial.contender.label] = sampler(trial.contender.bind(), case.device)
    times = {name: median(values) for name, values in _interleaved(case, samplers, CHOOSING_ROUNDS).items()}
    chosen = {side: min(group, key=lambda t: times[t.contender.label]) for side, group in sides.items() if group}
    if first:
        chosen["first"] = first
    wanted = {trial.contender.label for trial in chosen.values()}
    return chosen, _interleaved(case, {name: samplers[name] for name in samplers if name in wanted}, rounds)


def _interleaved(case: CandidateBench, samplers: Mapping[str, Sampler], rounds: int) -> dict[str, list[float]]:
    taken = interleave(list(samplers.values()), rounds, Monitor(case.device).slowed)
    return dict(zip(samplers, taken.samples, strict=True))


def _side(trial: Trial, samples: list[float], limit: float) -> dict[str, Any]:
    spread = timing.spread(samples)
    return {
        "label": trial.contender.label,
        "us": asdict(spread),
        "share": limit / spread.median,
        "relative_error": trial.relative_error,
    }


def _ratios(base: str, chosen: Mapping[str, Trial], samples: Mapping[str, list[float]]) -> dict[str, Any]:
    """How many times as long as one side each other takes."""
    if base not in chosen:
        return {}
    reference = samples[chosen[base].contender.label]
    others = {side: samples[trial.contender.label] for side, trial in chosen.items() if side != base}
    return {side: asdict(timing.paired_ratio(values, reference)) for side, values in others.items()}


def _as_json(trial: Trial) -> dict[str, Any]:
    values = {
        "side": trial.contender.side,
        "label": trial.contender.label,
        "status": trial.status,
        "us": trial.us if math.isfinite(trial.us) else None,
        "relative_error": trial.relative_error if math.isfinite(trial.relative_error or 0) else None,
        "reason": trial.reason,
    }
    return values | {"plan": asdict(trial.contender.plan)} if trial.contender.plan else values
