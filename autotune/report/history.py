"""The course of tuning runs from the times at which trials were recorded."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from autotune.report.records import Layer, Run, Trial
from autotune.tuner.time_shares import IDLE, STEPS

PAUSE = 600.0
"""Seconds between two trials from which on they belong to two runs; the slowest kernels take a minute to compile."""

FEWEST_TRIALS = 20
"""A run with fewer trials before the finals is not drawn."""

MOST_INTERVALS = 120
"""Number of intervals over which the seconds of the phases are summed; none is shorter than a second, in which trials
are recorded."""

LANES = (*STEPS, IDLE)
"""The parts of a trial's seconds that have a lane each, in this order."""

Timed = tuple[float, str, Trial]
"""When a trial was recorded, the id of its layer, and the trial."""


def runs(layers: Iterable[Layer]) -> tuple[Run, ...]:
    """Return the runs of all trials before the finals whose time is recorded, in the order of time.

    Layers of packed databases are left out: they would show a search that took a few good guesses.
    """
    layers = list(layers)
    is_packed = any(map(_lacks_trials, layers))  # then a layer without finals, which does not tell, is left out, too
    found: list[Timed] = sorted(
        (
            (trial.recorded, layer.id, trial)
            for layer in layers
            if not (_lacks_trials(layer) or (is_packed and not any(trial.final for trial in layer.trials)))
            for trial in layer.trials
            if trial.recorded is not None and not trial.final
        ),
        key=lambda timed: timed[0],
    )
    parts: list[list[Timed]] = [found[:1]]
    for before, timed in pairwise(found):
        if timed[0] - before[0] > PAUSE:
            parts.append([])
        parts[-1].append(timed)
    return tuple(_run(part) for part in parts if len(part) >= FEWEST_TRIALS and part[-1][0] > part[0][0])


def _lacks_trials(layer: Layer) -> bool:
    """Return whether most finalists of a layer lack the trial of the search that made them finalists."""
    searched = {(trial.kernel, trial.launch) for trial in layer.trials if not trial.final}
    finals = {(trial.kernel, trial.launch) for trial in layer.trials if trial.final}
    return len(finals - searched) > len(finals) / 2


def _run(part: Sequence[Timed]) -> Run:
    started, seconds = part[0][0], part[-1][0] - part[0][0]
    best = _best_so_far(part, started)
    timed = {layer for _, layer, trial in part if trial.us is not None}
    return Run(started, seconds, len(part), len(timed), best, _busy(part, started, seconds))


def _best_so_far(part: Sequence[Timed], started: float) -> tuple[tuple[float, float], ...]:
    """Return the steps of the sum of the best times; a problem counts with its first time until that is taken."""
    best: dict[str, float] = {}
    for _, layer, trial in part:
        if trial.us is not None:
            best.setdefault(layer, trial.us)
    total = math.fsum(best.values())
    steps = {0.0: total}
    for at, layer, trial in part:
        if trial.us is not None and trial.us < best[layer]:
            total -= best[layer] - trial.us
            best[layer] = trial.us
            steps[at - started] = total
    return (*steps.items(), (part[-1][0] - started, total)) if best else ()


def _busy(part: Sequence[Timed], started: float, seconds: float) -> dict[str, tuple[float, ...]]:
    """Return the seconds of each phase in each interval; those of a trial count when it was recorded."""
    count = max(1, min(int(seconds), MOST_INTERVALS))
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0] * count)
    for at, _, trial in part:
        interval = min(int((at - started) / seconds * count), count - 1)
        for phase in LANES:
            if taken := trial.seconds.get(phase):
                spent[phase][interval] += taken
    return {phase: tuple(spent[phase]) for phase in LANES if phase in spent}
