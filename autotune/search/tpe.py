"""Optuna's tree-structured Parzen estimator (TPE), with a separate model for each space.

Optuna samples from the product of all parameter values, of which only some configs are legal. A proposal that is not a
free config is therefore moved to the nearest free one.
"""

from __future__ import annotations

import math
import warnings

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState, create_trial

from autotune.search.space import Space, axes, spread
from autotune.search.study import Study, TrialSeconds

WARM_START = 10
"""Number of configs with low predicted costs that are tried before the sampler is asked."""


class TpeStudy(Study):
    """Learns from the results of its own space only."""

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__(space)
        self._queue = spread(space, WARM_START)
        self._axes = axes(space.configs)
        self._points = [[values.index(config[name]) for name, values in self._axes.items()] for config in space.configs]
        self._distributions = {name: CategoricalDistribution(values) for name, values in self._axes.items()}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=WARM_START, constant_liar=True, multivariate=True
        )
        self._study = optuna.create_study(sampler=sampler)

    def propose(self, trial_seconds: TrialSeconds) -> int | None:
        """Return a config of the warm start, then the free config nearest to the sampler's proposal."""
        while self._queue:
            if (first := self._queue.pop(0)) in self.free:
                return first
        if not self._axes:
            return next(iter(self.free))
        trial = self._study.ask(dict(self._distributions))
        wanted = [values.index(trial.params[name]) for name, values in self._axes.items()]
        # The proposal itself may not be legal. observe() adds the config that was measured in its place.
        self._study.tell(trial, state=TrialState.FAIL)
        return min(self.free, key=lambda i: sum(abs(a - b) for a, b in zip(self._points[i], wanted, strict=True)))

    def observe(self, i: int, value: float) -> None:
        """Add the logarithm of a result to the sampler's history."""
        if self._axes:
            params = {name: self.space.configs[i][name] for name in self._axes}
            trial = create_trial(params=params, distributions=dict(self._distributions), value=math.log(value))
            self._study.add_trial(trial)
