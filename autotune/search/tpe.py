"""Optuna's TPE, a study of its own for each space: the prior's best first, then proposals snapped to free configs.

Validity is never the sampler's business: a proposal that is not one of the free configs is moved to the nearest.
"""

from __future__ import annotations

import math
import warnings

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState, create_trial

from autotune.search.space import Seconds, Space, Study, axes, spread

FIRST = 10
"""How many of the prior's best are tried before the sampler is asked."""


class Tpe(Study):
    """Learns from the configs of its own space alone."""

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__(space)
        self._queue = spread(space, FIRST)
        self._axes = axes(space.configs)
        self._places = [[values.index(config[name]) for name, values in self._axes.items()] for config in space.configs]
        self._distributions = {name: CategoricalDistribution(values) for name, values in self._axes.items()}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=FIRST, constant_liar=True, multivariate=True)
        self._study = optuna.create_study(sampler=sampler)

    def choose(self, seconds: Seconds) -> int | None:
        """One of the prior's best, or the free config nearest to what the sampler proposes."""
        while self._queue:
            if (first := self._queue.pop(0)) in self.free:
                return first
        if not self._axes:
            return next(iter(self.free))
        trial = self._study.ask(dict(self._distributions))
        wanted = [values.index(trial.params[name]) for name, values in self._axes.items()]
        self._study.tell(trial, state=TrialState.FAIL)  # what is measured is told by learn()
        return min(self.free, key=lambda i: sum(abs(a - b) for a, b in zip(self._places[i], wanted, strict=True)))

    def learn(self, i: int, value: float) -> None:
        """Hand the logarithm of what was measured to the sampler."""
        if self._axes:
            params = {name: self.space.configs[i][name] for name in self._axes}
            trial = create_trial(params=params, distributions=dict(self._distributions), value=math.log(value))
            self._study.add_trial(trial)
