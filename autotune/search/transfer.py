"""Bayesian optimization that learns across layers.

A config that is fast for one problem is likely to be fast for similar problems, and similar configs are likely to be
similarly fast. One Gaussian process for each family models the logarithm of the time of every (problem, config) pair:

    mean(p, c)               = level + log prior(p, c)
    covariance(p, c; p', c') = similarity(p, p') * (similarity(c, c') + slope * log prior(p, c) * log prior(p', c'))
                               + level variance, if p = p'

The GP models residuals from the prior: mean function = prior cost. The slope term lets the data correct the prior's
weight. A study asks for the config with the largest expected improvement per second of compiling and timing. It
stops asking when the expected improvement of every config is below `gain`, until enough new results arrive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from threadpoolctl import ThreadpoolController

from autotune.core import timeline
from autotune.families import Config
from autotune.ir import Problem
from autotune.search.gaussian_process import GaussianProcess, Matrix, Posterior, Vector
from autotune.search.space import Space, axes, spread
from autotune.search.study import Study, TrialSeconds

Indices = NDArray[np.int64]

WARM_START = 6
"""Number of configs with low predicted costs that are tried before the model is used."""
MAX_OBSERVATIONS = 250
"""Observations that the GP is fitted to: those of the problem first, then those of the most similar problems. It limits
the time of a fit, which is cubic in this number, to milliseconds."""
MAX_CANDIDATES = 128
"""Configs whose expected improvement is computed: those with the lowest posterior means."""
MIN_IMPROVEMENT_SHARE = 0.6
"""A family waits while another family of the same problem expects an improvement so large that its own is below this
share of it."""
REST_OBSERVATIONS = 3
"""A study whose expected improvements are all below `gain` rests until its family has this many new observations."""

# Hyperparameters: variances of the logarithm of a time, and length scales. They were chosen by scripts/replay.py on
# tests/data/search_h200.json.gz (docs/internals/search.md).
_LEVEL_VARIANCE = 9.0  # level of a problem, which is unknown before its first measurement
_SLOPE_VARIANCE = 0.3  # weight of the prior, around 1
_CONFIG_VARIANCE = 0.11  # effect of the parameters beyond the prior
_NOISE_VARIANCE = 2e-4
_CONFIG_LENGTH = 1.6
_PROBLEM_LENGTH = 16.0
_MIN_SIMILARITY = 0.6  # part of a config's effect that all problems share
_MAX_SIMILARITY = 0.97  # of two problems that differ


class TransferData:
    """All observations of one family, and the covariances of its (problem, config) pairs.

    The configs of all spaces share one numbering: config i of space s has the number `starts[s] + i`. The GP's inputs
    are these numbers.

    Args:
        spaces: All spaces of the family.
    """

    def __init__(self, spaces: Sequence[Space]) -> None:
        self._points = _config_points(spaces)
        self._square_norms = (self._points**2).sum(1)
        self._log_prior = np.concatenate([_log_prior(space) for space in spaces])
        self._starts = np.cumsum([0, *(len(space.configs) for space in spaces)])
        self._space_of = np.repeat(np.arange(len(spaces)), np.diff(self._starts))
        self._similarity = _similarities([space.problem for space in spaces])
        self._most_similar = np.argsort(-self._similarity, axis=1, kind="stable")
        self._log_times: list[dict[int, float]] = [{} for _ in spaces]
        self._threads = ThreadpoolController()
        self.num_observed = 0

    def add(self, space: int, config: int, value: float) -> None:
        """Record a result; of several results of one config the best counts.

        Args:
            space: Index of the space.
            config: Index of the config in its space.
            value: The objective, > 0.
        """
        known = self._log_times[space].get(config, math.inf)
        self._log_times[space][config] = min(known, math.log(value))
        self.num_observed += 1

    def has_observations(self, space: int) -> bool:
        """Return whether a config of a space has succeeded."""
        return bool(self._log_times[space])

    def posterior(self, space: int, configs: Indices, pending: Sequence[int]) -> tuple[Indices, Posterior]:
        """Predict the log times of the most promising configs, conditioned on what is pending.

        Args:
            space: Index of the space.
            configs: Indices of configs of that space.
            pending: Indices of configs of that space that are being measured.

        Returns:
            The MAX_CANDIDATES of `configs` with the lowest means, and their joint posterior distribution.
        """
        with (
            timeline.span(timeline.Lane.SEARCH, "predict", candidates=len(configs), pending=len(pending)),
            self._threads.limit(limits=1, user_api="blas"),  # the compilers use the other cores
        ):
            return self._posterior(space, configs, pending)

    def _posterior(self, space: int, configs: Indices, pending: Sequence[int]) -> tuple[Indices, Posterior]:
        start = self._starts[space]
        X, y = self._observations(space)
        level = y.mean()
        process = GaussianProcess(lambda x: level + self._log_prior[x], self._covariance, _NOISE_VARIANCE)
        process.fit(X, y)
        order = np.argsort(process.predict_mean(start + configs), kind="stable")[:MAX_CANDIDATES]
        promising = configs[order]
        joint = process.predict(start + np.concatenate([np.array(pending, dtype=int), promising]))
        for i in range(len(pending)):
            joint.condition_on_pending(i)
        rest = slice(len(pending), None)
        return promising, Posterior(joint.mean[rest], joint.covariance[rest, rest], joint.noise)

    def _observations(self, space: int) -> tuple[Indices, Vector]:
        """Return numbers and log times of the observations to fit: the most similar problems, the fastest first."""
        rows: list[tuple[int, float]] = []
        for other in self._most_similar[space]:
            fastest = sorted(self._log_times[other].items(), key=lambda item: item[1])
            rows += [(self._starts[other] + config, value) for config, value in fastest]
            if len(rows) >= MAX_OBSERVATIONS:
                break
        numbers, values = zip(*rows[:MAX_OBSERVATIONS], strict=True)
        return np.array(numbers), np.array(values)

    def _covariance(self, a: Indices, b: Indices) -> Matrix:
        """Return the prior covariances of the configs with these numbers; see the formula at the top of this file."""
        square_distance = (
            self._square_norms[a][:, None] + self._square_norms[b][None] - 2 * self._points[a] @ (self._points[b].T)
        )
        within_problem = np.exp(square_distance.clip(0) / -_CONFIG_LENGTH) * _CONFIG_VARIANCE
        within_problem += _SLOPE_VARIANCE * np.outer(self._log_prior[a], self._log_prior[b])
        space_a, space_b = self._space_of[a], self._space_of[b]
        same_problem = space_a[:, None] == space_b[None]
        covariance: Matrix = self._similarity[space_a][:, space_b] * within_problem + _LEVEL_VARIANCE * same_problem
        return covariance


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


class TransferStudy(Study):
    """Asks for the configs with the largest expected improvement per second.

    Args:
        space: The space to search.
        data: Observations of the space's family.
        index: Index of the space in `data`.
        race: The race of the families for the space's problem.
        gain: The study rests while no config is expected to improve the problem's best time by this share of it.
    """

    def __init__(self, space: Space, data: TransferData, index: int, race: FamilyRace, gain: float) -> None:
        super().__init__(space)
        self._data, self._space_index, self._race, self._gain = data, index, race, gain
        self._queue = spread(space, WARM_START)
        self._rests_until = 0  # the number of observations that ends the rest
        self._evaluated_at = -1  # observations of the family when the expected improvement was computed last

    def ask(self, count: int, trial_seconds: TrialSeconds = lambda _: 1.0) -> list[Config]:
        """Return up to `count` configs: first those of the warm start, then those of one evaluation of the model."""
        asked = super().ask(count, trial_seconds)
        if self._data.num_observed:
            asked += self._ask_model(count - len(asked), trial_seconds)
        return asked

    def propose(self, trial_seconds: TrialSeconds) -> int | None:
        """Return a config of the warm start; more by the prior only while all trials of the family failed."""
        while self._queue:
            if (first := self._queue.pop(0)) in self.free:
                return first
        return None if self._data.num_observed or self.pending else next(iter(self.free))

    def enqueue(self, configs: Sequence[Config]) -> None:
        """Try those configs that are in the space in place of as many of the warm start."""
        known = dict.fromkeys(i for i in map(self._index_of, configs) if i is not None)
        rest = [i for i in self._queue if i not in known]
        self._queue = [*known, *rest[: max(0, len(self._queue) - len(known))]]

    def observe(self, i: int, value: float) -> None:
        """Record a result for the family and for the problem."""
        self._data.add(self._space_index, i, value)
        self._race.best = min(self._race.best, math.log(value))

    def _ask_model(self, count: int, trial_seconds: TrialSeconds) -> list[Config]:
        """Return the configs of the largest expected improvement per second.

        Each is chosen as if those before it were measured. The list is empty while the study rests or another family
        goes first.
        """
        if not self.free:
            self._expect(0.0)
        if not self.free or self._data.num_observed < self._rests_until:
            return []
        if self._data.num_observed == self._evaluated_at and self._must_wait():
            return []  # no new observation could change the expected improvement
        free = np.fromiter(self.free, dtype=int)
        configs, posterior = self._data.posterior(self._space_index, free, list(self.pending))
        has_observations = self._data.has_observations(self._space_index)
        best = self._race.best if has_observations else min(self._race.best, posterior.mean.min())
        seconds = np.array([trial_seconds(self.space.configs[i]) for i in configs])
        is_asked = np.zeros(len(configs), dtype=bool)
        asked: list[Config] = []
        for _ in range(min(count, len(configs))):
            improvement = expected_improvement(best - posterior.mean, posterior.deviation)
            improvement[is_asked] = 0.0
            self._expect(improvement.max())
            if has_observations and improvement.max() < self._gain:
                self._rests_until = self._data.num_observed + REST_OBSERVATIONS
                self._expect(0.0)
                break
            if self._must_wait():
                break
            at = int(np.where(is_asked, -1.0, improvement / seconds).argmax())
            is_asked[at] = True
            asked.append(self.start(int(configs[at])))
            posterior.condition_on_pending(at)
        return asked

    def _expect(self, improvement: float) -> None:
        self._race.expected_improvement[self.space.family] = float(improvement)
        self._evaluated_at = self._data.num_observed

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


def _config_points(spaces: Sequence[Space]) -> Matrix:
    """Return the configs of all spaces as points of a Euclidean space, a row each.

    The squared distance of two points is the sum of their distances along all parameters. Neighbouring numbers are 1
    apart, or less where a parameter has more than three values, so that its ends are at most 2 apart. Two words are 1
    apart.
    """
    varying = axes([config for space in spaces for config in space.configs])
    codes_of = {}
    for name, values in varying.items():
        if isinstance(values[0], str):
            codes = np.eye(len(values)) * math.sqrt(0.5)  # one-hot
        else:
            step = math.sqrt(min(len(values) - 1, 2) / (len(values) - 1))
            codes = np.tri(len(values), len(values) - 1, -1) * step  # thermometer code: i ones for value i
        codes_of[name] = {value: codes[i] for i, value in enumerate(values)}

    def point(config: Config) -> Vector:
        return np.concatenate([[0.0], *(codes[config[name]] for name, codes in codes_of.items())])

    return np.array([point(config) for space in spaces for config in space.configs], ndmin=2)


def _log_prior(space: Space) -> Vector:
    """Return the logarithms of a space's predicted costs, with mean 0.

    Costs that are not positive have no logarithm: ranks from 0 to 1 take their place.
    """
    costs = np.array(space.costs)
    if not len(costs):
        return costs
    logs = np.log(costs) if costs.min() > 0 and np.isfinite(costs).all() else np.linspace(0, 1, len(costs))
    centered: Vector = logs - logs.mean()
    return centered


def problem_similarity(a: Problem, b: Problem) -> float:
    """Return the correlation of a config's effects on two problems: 1 for the same sizes, at least _MIN_SIMILARITY."""
    if a is b or a == b:
        return 1.0
    if type(a) is not type(b):
        return _MIN_SIMILARITY
    distance = math.dist(_log_sizes(a), _log_sizes(b)) / _PROBLEM_LENGTH
    return _MIN_SIMILARITY + (_MAX_SIMILARITY - _MIN_SIMILARITY) * math.exp(-distance)


def _similarities(problems: Sequence[Problem]) -> Vector:
    """Return the problem_similarity of each pair; a deep network at several batch sizes has a million pairs."""
    found = np.full((len(problems), len(problems)), _MIN_SIMILARITY)
    number: dict[Problem, int] = {}
    numbers = np.array([number.setdefault(problem, len(number)) for problem in problems])
    for kind in {type(problem) for problem in problems}:
        of_kind = np.array([i for i, problem in enumerate(problems) if type(problem) is kind])
        sizes = np.array([_log_sizes(problems[i]) for i in of_kind])
        distance = np.sqrt(sum((column[:, None] - column) ** 2 for column in sizes.T)) / _PROBLEM_LENGTH
        found[np.ix_(of_kind, of_kind)] += (_MAX_SIMILARITY - _MIN_SIMILARITY) * np.exp(-distance)
    found[numbers[:, None] == numbers] = 1.0
    return found


@lru_cache(maxsize=2**16)
def _log_sizes(problem: Problem) -> tuple[float, ...]:
    """Return log2(1 + x) of every integer field of a problem; pairs count as two."""
    values = [getattr(problem, field.name) for field in fields(problem) if field.name != "epilogue"]
    flat = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
    return tuple(math.log2(1 + part) for part in flat if isinstance(part, int))
