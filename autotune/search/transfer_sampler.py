"""Bayesian optimization that learns across layers, as a sampler of Optuna.

`TransferSampler` proposes the config with the largest expected improvement per second of compiling and timing, by the
model of `transfer_history`. Each proposal is chosen as if the trials that run had ended. The samplers of one family
share a `TransferHistory`, and those of one problem a `FamilyRace`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from scipy.special import ndtr

from autotune.search.gaussian_process import Posterior, Vector
from autotune.search.legal_sampler import LegalSampler
from autotune.search.space import Space
from autotune.search.transfer_history import Indices, TransferHistory

Flags = NDArray[np.bool_]

WARM_START = 6
"""Number of configs with low predicted costs that are tried before the model is used."""
MIN_IMPROVEMENT_SHARE = 0.6
"""A family waits while another family of the same problem expects an improvement so large that its own is below this
share of it."""
REST_OBSERVATIONS = 3
"""A study whose expected improvements are all below `gain` rests until its family has this many new observations."""


@dataclass
class FamilyRace:
    """The competition of several families for the trials of one problem.

    Attributes:
        best: Lowest log time of the problem, by any family.
        expected_improvement: The largest expected improvement of each family when it was asked last.
    """

    best: float = math.inf
    expected_improvement: dict[str, float] = field(default_factory=dict)

    def must_wait(self, family: str) -> bool:
        """Return whether another family expects so much more that it should be asked first."""
        largest = max(self.expected_improvement.values())
        return self.expected_improvement[family] < MIN_IMPROVEMENT_SHARE * largest


@dataclass
class _Candidates:
    """The most promising configs of a space, as long as its family has no new observation.

    Attributes:
        num_observed: Number of observations of the family that the posterior is conditioned on.
        configs: Indices of the configs.
        posterior: Their log times.
        pending: Indices of the configs of running trials that the posterior is conditioned on, in their order.
        improvement: The expected improvement of each; -1 for those that have a trial.
        seconds: The cost of a trial of each, once it is needed.
    """

    num_observed: int
    configs: Indices
    posterior: Posterior
    pending: list[int]
    improvement: Vector
    seconds: Vector | None = None

    def are_current(self, num_observed: int, pending: list[int], is_free: Flags) -> bool:
        """Return whether the posterior can be conditioned on all that is pending, and some candidate is free.

        It cannot if a trial has ended, or one of a config outside the candidates was started.
        """
        started = pending[len(self.pending) :]
        configs = self.configs.tolist()
        return (
            num_observed == self.num_observed
            and pending == [*self.pending, *started]
            and all(i in configs for i in started)
            and bool(is_free[self.configs].any())
        )

    def evaluate(self, pending: list[int], is_free: Flags, best: float) -> None:
        """Condition on trials that were started, and compute the expected improvements of what is free.

        Args:
            pending: Indices of all configs of running trials.
            is_free: Whether a config has no trial, for each config of the space.
            best: Lowest log time of the problem.
        """
        configs = self.configs.tolist()
        for i in pending[len(self.pending) :]:
            self.posterior.condition_on_pending(configs.index(i))
        self.pending = pending
        improvement = expected_improvement(best - self.posterior.mean, self.posterior.deviation)
        self.improvement = np.where(is_free[self.configs], improvement, -1.0)


class TransferSampler(LegalSampler):
    """Proposes the configs with the largest expected improvement per second.

    Values are positive and minimized. Failed trials teach nothing.

    Args:
        space: The space to search.
        history: What is known of the space's family; by default nothing but the trials of the study.
        race: The race of the families for the space's problem; by default the family is alone.
        gain: No trial is wanted while no config is expected to improve the problem's best time by this share of it.
    """

    def __init__(
        self,
        space: Space,
        history: TransferHistory | None = None,
        race: FamilyRace | None = None,
        gain: float = 0.0,
    ) -> None:
        super().__init__(space)
        self._history = history or TransferHistory([space])
        self._race, self._gain = race or FamilyRace(), gain
        self._rests_until = 0  # the number of observations that ends the rest
        self._evaluated_at = -1  # observations of the family when the expected improvement was computed last
        self._candidates: _Candidates | None = None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return all parameters.

        Raises:
            ValueError: The study has several objectives, or maximizes.
        """
        if study.directions != [StudyDirection.MINIMIZE]:
            names = ", ".join(direction.name for direction in study.directions)
            raise ValueError(f"TransferSampler minimizes one objective; the directions of the study are {names}")
        return super().infer_relative_search_space(study, trial)

    def observe(self, i: int, value: float) -> None:
        """Record a result for the family and for the problem."""
        self._history.add(self.space, i, value)
        self._race.best = min(self._race.best, math.log(value))

    def wants_trial(self, study: Study) -> bool:
        """Return False while the study rests, or another family of the problem goes first.

        Before the first observation of the family, a trial that runs is waited for.
        """
        if not super().wants_trial(study):
            self._expect(0.0)
            return False
        if not self._history.num_observed:
            return not self.pending()
        if self._history.num_observed < self._rests_until:
            return False
        if self._history.num_observed == self._evaluated_at and self._must_wait():
            return False  # no new observation could change the expected improvement
        largest = self._evaluate().improvement.max()
        self._expect(largest)
        if self._history.has_observations(self.space) and largest < self._gain:
            self._rests_until = self._history.num_observed + REST_OBSERVATIONS
            self._expect(0.0)
            return False
        return not self._must_wait()

    def choose(self, study: Study, trial: FrozenTrial) -> int:
        """Return the config of the largest expected improvement per second; by the prior if all trials failed."""
        if not self._history.num_observed:
            return int(self.is_free.argmax())
        candidates = self._evaluate()
        if candidates.seconds is None:
            candidates.seconds = np.array([self.trial_seconds(self.space.configs[i]) for i in candidates.configs])
        return int(candidates.configs[(candidates.improvement / candidates.seconds).argmax()])

    def _evaluate(self) -> _Candidates:
        """Return the candidates with their expected improvements, as of the last `read`.

        Between two observations the posterior is kept: another trial that runs only shrinks its covariance.
        """
        found, pending = self._candidates, self.pending()
        if found is None or not found.are_current(self._history.num_observed, pending, self.is_free):
            configs, posterior = self._history.posterior(self.space, self.free, pending)
            found = _Candidates(self._history.num_observed, configs, posterior, pending, np.zeros(len(configs)))
            self._candidates = found
        best = self._race.best
        if not self._history.has_observations(self.space):
            best = min(best, found.posterior.mean.min())
        found.evaluate(pending, self.is_free, best)
        return found

    def _expect(self, improvement: float) -> None:
        self._race.expected_improvement[self.space.family] = float(improvement)
        self._evaluated_at = self._history.num_observed

    def _must_wait(self) -> bool:
        return self._race.must_wait(self.space.family)


def expected_improvement(gap: Vector, deviation: Vector) -> Vector:
    """Return E[max(0, I)] of normally distributed improvements I (Jones et al. 1998, equation 15).

    Args:
        gap: Means of I: the best value so far minus the predicted values.
        deviation: Standard deviations of I, > 0.
    """
    z = gap / deviation
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    improvement: Vector = gap * ndtr(z) + deviation * density
    return improvement
