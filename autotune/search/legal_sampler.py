"""Samplers of Optuna that propose legal configs only, each at most once.

Optuna's search spaces are products of the parameters' values, of which only some configs are legal. A `LegalSampler`
chooses among the enumerated legal configs that no trial of its study has. `NearestSampler` makes one of any sampler of
Optuna.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from autotune.families import Config, Value
from autotune.search.space import Space, axes

TIMED = (TrialState.COMPLETE, TrialState.PRUNED)
"""States of the trials that have a value."""

TrialSeconds = Callable[[Config], float]
"""Maps a config to the seconds that compiling and timing it would take; nearly 0 where its kernel exists."""


class LegalSampler(BaseSampler):
    """Chooses among the configs of a space that no trial has.

    A sampler serves one study, whose trials have the parameters of `Space.distributions`.

    Args:
        space: The legal configs.

    Attributes:
        space: The legal configs.
        trial_seconds: Cost of a trial; a second for each config, unless the caller knows better.
        is_free: Whether no trial has a config, for each config in ascending order of the predicted cost.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.trial_seconds: TrialSeconds = lambda _: 1.0
        self.is_free = np.ones(len(space.configs), dtype=bool)
        self._num_read = 0
        self._incomplete: list[int] = []  # numbers of trials whose parameters are not all chosen yet
        self._running: dict[int, int] = {}  # number of a trial -> index of its config

    @property
    def free(self) -> NDArray[np.int64]:
        """The indices of the configs that no trial has, in ascending order of the predicted cost."""
        return np.flatnonzero(self.is_free)

    @abstractmethod
    def choose(self, study: Study, trial: FrozenTrial) -> int:
        """Return the index of the free config to try in a trial; it is called only while there are free configs."""

    def wants_trial(self, study: Study) -> bool:
        """Return whether another trial is worth its time: here, whether a config is free."""
        self.read(study)
        return bool(self.is_free.any())

    def observe(self, i: int, values: Sequence[float]) -> None:
        """Learn that config i reached these objectives; it may be told several times."""

    def read(self, study: Study) -> None:
        """Take notice of the trials that were added to a study since the last call."""
        trials = study.get_trials(deepcopy=False)
        self._running = {n: i for n, i in self._running.items() if trials[n].state == TrialState.RUNNING}
        unread = [*self._incomplete, *range(self._num_read, len(trials))]
        self._incomplete, self._num_read = [], len(trials)
        for number in unread:
            trial = trials[number]
            i = self.space.index_of(trial.params)
            if i is None:
                if not trial.state.is_finished():
                    self._incomplete.append(number)
                continue
            self.is_free[i] = False
            if trial.state == TrialState.RUNNING:
                self._running[number] = i
            elif trial.state in TIMED and trial.values is not None:
                self.observe(i, trial.values)

    def pending(self) -> list[int]:
        """Return the indices of the configs whose trials are running, as of the last `read`."""
        return list(self._running.values())

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return all parameters: legal configs are no product, so no parameter can be chosen on its own."""
        return self.space.distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return a free config.

        Raises:
            RuntimeError: All configs have trials.
        """
        self.read(study)
        if not self.is_free.any():
            raise RuntimeError(f"all {len(self.space.configs)} legal configs have trials")
        return dict(self.space.configs[self.choose(study, trial)])

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Raise ValueError: a parameter that is sampled on its own is not one of the space."""
        raise ValueError(f"parameter '{param_name}' is not in the space: it has {', '.join(self.space.distributions)}")

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Observe the result of a trial."""
        i = self.space.index_of(trial.params)
        if state in TIMED and i is not None and values is not None:
            self.observe(i, values)


class CostModelSampler(LegalSampler):
    """Proposes the configs in ascending order of the predicted cost."""

    def choose(self, study: Study, trial: FrozenTrial) -> int:
        """Return the free config with the lowest predicted cost."""
        return int(self.is_free.argmax())


class NearestSampler(LegalSampler):
    """Moves each proposal of a sampler to the nearest free legal config.

    Args:
        space: The legal configs.
        sampler: Any sampler of Optuna.
    """

    def __init__(self, space: Space, sampler: BaseSampler) -> None:
        super().__init__(space)
        self._sampler = sampler
        self._axes = axes(space.configs)
        self._points = np.array([self._point(config) for config in space.configs], ndmin=2)

    def choose(self, study: Study, trial: FrozenTrial) -> int:
        """Return the free config nearest to the proposal; of several, the one with the lowest predicted cost."""
        wanted = self._point(self._proposal(study, trial))
        free = self.free
        return int(free[np.abs(self._points[free] - wanted).sum(1).argmin()])

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Pass the call on."""
        self._sampler.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Pass the call on."""
        # A sampler that has proposed its whole grid calls Study.stop(), which raises this error unless
        # Study.optimize() runs. Here the search ends with the legal configs.
        with suppress(RuntimeError):
            self._sampler.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """Pass the call on."""
        self._sampler.reseed_rng()

    def _proposal(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        """Return the sampler's values of all parameters that vary, as Optuna would ask for them."""
        names = self._sampler.infer_relative_search_space(study, trial)
        proposal = self._sampler.sample_relative(study, trial, names)
        trial = copy.copy(trial)  # a sampler may look at the parameters that were sampled before
        for name in self._axes:
            if name not in proposal:
                trial.params = dict(proposal)
                trial.distributions = {known: self.space.distributions[known] for known in proposal}
                distribution = self.space.distributions[name]
                proposal[name] = self._sampler.sample_independent(study, trial, name, distribution)
        return proposal

    def _point(self, config: Config) -> NDArray[np.float64]:
        """Return the coordinates of a config: two neighbouring numbers are 1 apart, and so are any two words."""
        return np.concatenate([[0.0], *(_coordinates(values, config[name]) for name, values in self._axes.items())])


def _coordinates(values: list[Value], value: Value) -> NDArray[np.float64]:
    if isinstance(value, str):
        return np.array([0.5 * (value == known) for known in values])
    place: NDArray[np.float64] = np.interp([value], np.array(values, dtype=float), np.arange(len(values), dtype=float))
    return place
