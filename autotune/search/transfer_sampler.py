"""Bayesian optimization that learns across layers, as a sampler of Optuna.

`TransferSampler` proposes the config with the largest expected improvement per second of compiling and timing, by the
model of `transfer_history`. Each proposal is chosen as if the trials that run had ended. The samplers of one family
share a `TransferHistory`, and those of one problem a `FamilyRace`.

With several objectives each proposal is for other weights of their scalarization, as in ParEGO (Knowles 2006,
transfer_history.py), so the proposals spread over the Pareto front. Unlike in the paper, the weights take turns
instead of being drawn: a study rests when nothing is expected for any of them. Objectives are not divided by their
ranges: they are logarithms, whose differences have no unit.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from scipy.special import ndtr

from autotune.search.gaussian_process import Posterior, Vector
from autotune.search.space import LegalSampler, Space
from autotune.search.transfer_history import Indices, TransferHistory, Weights, weight_vectors

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
        expected_improvement: For each weights, the largest expected improvement of each family when it was asked last.
    """

    expected_improvement: dict[Weights, dict[str, float]] = field(default_factory=dict)

    def expect(self, family: str, weights: Weights, improvement: float) -> None:
        """Record the largest expected improvement of a family."""
        self.expected_improvement.setdefault(weights, {})[family] = improvement

    def must_wait(self, family: str, weights: Weights) -> bool:
        """Return whether another family expects so much more that it should be asked first."""
        expected = self.expected_improvement[weights]
        return expected[family] < MIN_IMPROVEMENT_SHARE * max(expected.values())


@dataclass
class _Candidates:
    """The most promising configs of a space, as long as its family has no new observation.

    Attributes:
        num_observed: Number of observations of the family that the posterior is conditioned on.
        configs: Indices of the configs.
        posterior: Their values.
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
            best: Lowest value of the problem.
        """
        configs = self.configs.tolist()
        for i in pending[len(self.pending) :]:
            self.posterior.condition_on_pending(configs.index(i))
        self.pending = pending
        improvement = expected_improvement(best - self.posterior.mean, self.posterior.deviation)
        self.improvement = np.where(is_free[self.configs], improvement, -1.0)


@dataclass
class _Search:
    """The search for the lowest value of one scalarization; a single objective has one.

    Attributes:
        weights: The weights of the objectives.
        rests_until: Number of observations that ends the rest.
        evaluated_at: Observations of the family when the expected improvement was computed last.
        candidates: The candidates of the last evaluation.
    """

    weights: Weights
    rests_until: int = 0
    evaluated_at: int = -1
    candidates: _Candidates | None = None


class TransferSampler(LegalSampler):
    """Proposes the configs with the largest expected improvement per second.

    Values are positive and minimized. Failed trials teach nothing.

    Args:
        space: The space to search.
        history: What is known of the space's family; by default nothing but the trials of the study.
        race: The race of the families for the space's problem; by default the family is alone.
        gain: No trial is wanted while no config is expected to improve the problem's best time by this share of it;
            with several objectives, their best scalarization, whatever the weights.
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
        self._searches: deque[_Search] = deque()  # the next one first

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return all parameters.

        Raises:
            ValueError: The study maximizes an objective.
        """
        if any(direction != StudyDirection.MINIMIZE for direction in study.directions):
            names = ", ".join(direction.name for direction in study.directions)
            raise ValueError(f"TransferSampler minimizes all objectives; the directions of the study are {names}")
        return super().infer_relative_search_space(study, trial)

    def observe(self, i: int, values: Sequence[float]) -> None:
        """Record a result for the family and for the problem."""
        self._history.add(self.space, i, values)

    def wants_trial(self, study: Study) -> bool:
        """Return False while the study rests, or another family of the problem goes first.

        Before the first observation of the family, a trial that runs is waited for.
        """
        searches = self._searches_of(study)
        if not super().wants_trial(study):
            for search in searches:
                self._expect(search, 0.0)
            return False
        if not self._history.num_observed:
            return not self.pending()
        for _ in range(len(searches)):
            if self._wants(searches[0]):
                return True
            searches.rotate(-1)
        return False

    def choose(self, study: Study, trial: FrozenTrial) -> int:
        """Return the config of the largest expected improvement per second; by the prior if all trials failed."""
        if not self._history.num_observed:
            return int(self.is_free.argmax())
        searches = self._searches_of(study)
        candidates = self._evaluate(searches[0])
        searches.rotate(-1)
        if candidates.seconds is None:
            candidates.seconds = np.array([self.trial_seconds(self.space.configs[i]) for i in candidates.configs])
        return int(candidates.configs[(candidates.improvement / candidates.seconds).argmax()])

    def _searches_of(self, study: Study) -> deque[_Search]:
        if not self._searches:
            self._searches.extend(_Search(weights) for weights in weight_vectors(len(study.directions)))
        return self._searches

    def _wants(self, search: _Search) -> bool:
        """Return False while a search rests, or another family of the problem goes first."""
        if self._history.num_observed < search.rests_until:
            return False
        if self._history.num_observed == search.evaluated_at and self._must_wait(search):
            return False  # no new observation could change the expected improvement
        largest = self._evaluate(search).improvement.max()
        self._expect(search, largest)
        if self._history.has_observations(self.space) and largest < self._gain:
            search.rests_until = self._history.num_observed + REST_OBSERVATIONS
            self._expect(search, 0.0)
            return False
        return not self._must_wait(search)

    def _evaluate(self, search: _Search) -> _Candidates:
        """Return the candidates with their expected improvements, as of the last `read`.

        Between two observations the posterior is kept: another trial that runs only shrinks its covariance.
        """
        found, pending = search.candidates, self.pending()
        if found is None or not found.are_current(self._history.num_observed, pending, self.is_free):
            configs, posterior = self._history.posterior(self.space, self.free, pending, search.weights)
            found = _Candidates(self._history.num_observed, configs, posterior, pending, np.zeros(len(configs)))
            search.candidates = found
        best = self._history.best(self.space, search.weights)
        if not self._history.has_observations(self.space):
            best = min(best, found.posterior.mean.min())
        found.evaluate(pending, self.is_free, best)
        return found

    def _expect(self, search: _Search, improvement: float) -> None:
        self._race.expect(self.space.family, search.weights, float(improvement))
        search.evaluated_at = self._history.num_observed

    def _must_wait(self, search: _Search) -> bool:
        return self._race.must_wait(self.space.family, search.weights)


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
