"""The results of one family on all layers, and the Gaussian process that predicts from them.

A config that is fast for one problem is likely to be fast for similar problems, and similar configs are likely to be
similarly fast. The Gaussian process models the logarithm of the time of every (problem, config) pair. With several
objectives it models their scalarization:

    mean(p, c)               = level + log prior(p, c)
    covariance(p, c; p', c') = similarity(p, p') * (similarity(c, c') + slope * log prior(p, c) * log prior(p', c'))
                               + level variance, if p = p'

It models residuals from the prior: mean function = prior cost. The slope term lets the data correct the prior's weight.

The constants of the similarity of problems were chosen by benchmarks/programs/replay.py on
tests/data/search_h200.json.gz (docs/internals/search.md).

`scalarize` is the augmented Tchebycheff function of ParEGO (Knowles 2006) on logarithms. For some weights its minimum
is in a concave part of the Pareto front. A weighted sum of logarithms, or a product of the objectives, has its minimum
on the front's convex hull, whatever the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache, lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from autotune.core import timeline
from autotune.families import Config
from autotune.ir import Problem
from autotune.search.gaussian_process import GaussianProcess, Matrix, Posterior, Vector
from autotune.search.space import Space, axes

LogValues = tuple[float, ...]
"""The logarithms of the objectives of a result."""
Weights = tuple[float, ...]
"""A weight of each objective."""

AUGMENTATION = 0.05
"""The paper's rho: a share of the weighted sum. It prefers, of points with equal maxima, the one that dominates."""
WEIGHT_STEPS = 10
"""Steps from one objective to the other of two: 11 weight vectors. More take longer until each had its turn."""


@cache
def weight_vectors(num_objectives: int) -> tuple[Weights, ...]:
    """Return evenly distributed weights of some objectives; a single one has the weight 1.

    The largest weight of each vector is 1, so that a difference of scalarized values is relative to an objective.
    """
    steps = WEIGHT_STEPS // max(1, num_objectives - 1)  # 21 vectors for three objectives
    found = (steps_of for steps_of in product(range(steps + 1), repeat=num_objectives) if sum(steps_of) == steps)
    return tuple(tuple(step / max(steps_of) for step in steps_of) for steps_of in found)


def scalarize(point: LogValues, ideal: LogValues, weights: Weights) -> float:
    """Return the value to minimize for some weights.

    Args:
        point: A result.
        ideal: The lowest value of each objective for the same problem.
        weights: The weights.

    Returns:
        The value. A single objective is its own value, whatever its ideal is.
    """
    if len(point) == 1:
        return point[0]
    terms = [weight * (value - best) for value, best, weight in zip(point, ideal, weights, strict=True)]
    return max(terms) + AUGMENTATION * sum(terms)


class ParetoFront:
    """The results that no other result dominates."""

    def __init__(self) -> None:
        self._points: list[LogValues] = []

    def add(self, point: LogValues) -> bool:
        """Add a result; return False if a known one is at least as good in each objective."""
        if any(_is_as_good(known, point) for known in self._points):
            return False
        self._points = [*(known for known in self._points if not _is_as_good(point, known)), point]
        return True

    @property
    def ideal(self) -> LogValues:
        """The lowest value of each objective; of no results, no values."""
        return tuple(map(min, zip(*self._points, strict=True)))

    def least(self, ideal: LogValues, weights: Weights) -> float:
        """Return the least scalarized value; infinite without results."""
        return min((scalarize(point, ideal, weights) for point in self._points), default=math.inf)


def _is_as_good(one: LogValues, other: LogValues) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


_PROBLEM_LENGTH = 16.0
_MIN_SIMILARITY = 0.6  # part of a config's effect that all problems share
_MAX_SIMILARITY = 0.97  # of two problems that differ


def problem_similarity(a: Problem, b: Problem) -> float:
    """Return the correlation of a config's effects on two problems: 1 for the same sizes, at least _MIN_SIMILARITY."""
    if a is b or a == b:
        return 1.0
    if type(a) is not type(b):
        return _MIN_SIMILARITY
    distance = math.dist(_log_sizes(a), _log_sizes(b)) / _PROBLEM_LENGTH
    return _MIN_SIMILARITY + (_MAX_SIMILARITY - _MIN_SIMILARITY) * math.exp(-distance)


def similarities(problems: Sequence[Problem]) -> Matrix:
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


Indices = NDArray[np.int64]

MAX_OBSERVATIONS = 250
"""Observations that the GP is fitted to: those of the problem first, then those of the most similar problems. It limits
the time of a fit, which is cubic in this number, to milliseconds."""
MAX_CANDIDATES = 128
"""Configs whose expected improvement is computed: those with the lowest posterior means."""

# Hyperparameters: variances of the logarithm of a time, and a length scale. They were chosen by
# benchmarks/programs/replay.py on tests/data/search_h200.json.gz (docs/internals/search.md).
_LEVEL_VARIANCE = 9.0  # level of a problem, which is unknown before its first measurement
_SLOPE_VARIANCE = 0.3  # weight of the prior, around 1
_CONFIG_VARIANCE = 0.11  # effect of the parameters beyond the prior
_NOISE_VARIANCE = 2e-4
_CONFIG_LENGTH = 1.6


class TransferHistory:
    """All observations of one family, and the covariances of its (problem, config) pairs.

    The configs of all spaces share one numbering: config i of space s has the number `starts[s] + i`. The GP's inputs
    are these numbers.

    Args:
        spaces: All spaces of the family, or some of them.
        fronts: For each problem, the results of all families; by default of this family alone.

    Attributes:
        num_observed: Number of results.
    """

    def __init__(self, spaces: Sequence[Space], fronts: Mapping[Problem, ParetoFront] | None = None) -> None:
        self._spaces = tuple(spaces)  # keeps their ids in use
        self._index = {id(space): i for i, space in enumerate(spaces)}
        self._points, self._point_of = _config_points(spaces)
        self._square_norms = (self._points**2).sum(1)
        self._log_prior = np.concatenate([_log_prior(space) for space in spaces])
        self._starts = np.cumsum([0, *(len(space.configs) for space in spaces)])
        self._space_of = np.repeat(np.arange(len(spaces)), np.diff(self._starts))
        self._similarity = similarities([space.problem for space in spaces])
        self._most_similar = np.argsort(-self._similarity, axis=1, kind="stable")
        fronts = fronts or {space.problem: ParetoFront() for space in spaces}
        self._fronts = [fronts[space.problem] for space in spaces]
        self._results: list[dict[int, ParetoFront]] = [{} for _ in spaces]
        self._threads = ThreadpoolController()
        self.num_observed = 0

    def add(self, space: Space, config: int, values: Sequence[float]) -> None:
        """Record a result; of several results of one config the best counts, and an equal one is the same.

        Args:
            space: One of the spaces.
            config: Index of the config in its space.
            values: The objectives, > 0.
        """
        i, point = self._index[id(space)], tuple(map(math.log, values))
        self._fronts[i].add(point)
        if self._results[i].setdefault(config, ParetoFront()).add(point):
            self.num_observed += 1

    def best(self, space: Space, weights: Weights) -> float:
        """Return the lowest value of a space's problem by any family; infinite if there is none."""
        front = self._fronts[self._index[id(space)]]
        return front.least(front.ideal, weights)

    def has_observations(self, space: Space) -> bool:
        """Return whether a config of a space has succeeded."""
        return bool(self._results[self._index[id(space)]])

    def posterior(
        self, space: Space, configs: Indices, pending: Sequence[int], weights: Weights
    ) -> tuple[Indices, Posterior]:
        """Predict the values of the most promising configs, conditioned on what is pending.

        Args:
            space: One of the spaces.
            configs: Indices of configs of that space.
            pending: Indices of configs of that space that are being measured.
            weights: The weights of the objectives.

        Returns:
            The MAX_CANDIDATES of `configs` with the lowest means, in ascending order, and their joint posterior
            distribution.
        """
        with (
            timeline.span(timeline.Lane.SEARCH, "predict", candidates=len(configs), pending=len(pending)),
            self._threads.limit(limits=1, user_api="blas"),  # the compilers use the other cores
        ):
            return self._posterior(self._index[id(space)], configs, pending, weights)

    def _posterior(
        self, space: int, configs: Indices, pending: Sequence[int], weights: Weights
    ) -> tuple[Indices, Posterior]:
        start = self._starts[space]
        X, y = self._observations(space, weights)
        level = y.mean()
        process = GaussianProcess(lambda x: level + self._log_prior[x], self._covariance, _NOISE_VARIANCE)
        process.fit(X, y)
        if len(configs) > MAX_CANDIDATES:
            configs = configs[np.argsort(process.predict_mean(start + configs), kind="stable")[:MAX_CANDIDATES]]
        joint = process.predict(start + np.concatenate([np.array(pending, dtype=int), configs]))
        for i in range(len(pending)):
            joint.condition_on_pending(i)
        order = np.argsort(joint.mean[len(pending) :], kind="stable")
        rest = len(pending) + order
        return configs[order], Posterior(joint.mean[rest], joint.covariance[np.ix_(rest, rest)], joint.noise)

    def _observations(self, space: int, weights: Weights) -> tuple[Indices, Vector]:
        """Return numbers and values of the observations to fit: the most similar problems, the best configs first."""
        rows: list[tuple[int, float]] = []
        for other in self._most_similar[space]:
            ideal = self._fronts[other].ideal
            values = [(config, front.least(ideal, weights)) for config, front in self._results[other].items()]
            best = sorted(values, key=lambda item: item[1])
            rows += [(self._starts[other] + config, value) for config, value in best]
            if len(rows) >= MAX_OBSERVATIONS:
                break
        X, y = zip(*rows[:MAX_OBSERVATIONS], strict=True)
        return np.array(X), np.array(y)

    def _covariance(self, a: Indices, b: Indices) -> Matrix:
        """Return the prior covariances of the configs with these numbers; see the formula at the top of this file."""
        at, bt = self._point_of[a], self._point_of[b]
        square_distance = (
            self._square_norms[at][:, None] + self._square_norms[bt][None] - 2 * self._points[at] @ self._points[bt].T
        )
        within_problem = np.exp(square_distance.clip(0) / -_CONFIG_LENGTH) * _CONFIG_VARIANCE
        within_problem += _SLOPE_VARIANCE * np.outer(self._log_prior[a], self._log_prior[b])
        space_a, space_b = self._space_of[a], self._space_of[b]
        same_problem = space_a[:, None] == space_b[None]
        covariance: Matrix = self._similarity[space_a][:, space_b] * within_problem + _LEVEL_VARIANCE * same_problem
        return covariance


def _config_points(spaces: Sequence[Space]) -> tuple[Matrix, Indices]:
    """Return the configs as points of a Euclidean space, and the number of each config's point.

    Spaces share most of their configs, so there are far fewer points, one a row, than configs.

    The squared distance of two points is the sum of their distances along all parameters. Neighbouring numbers are 1
    apart, or less where a parameter has more than three values, so that its ends are at most 2 apart. Two words are 1
    apart.
    """
    numbers: dict[tuple[object, ...], int] = {}
    distinct: list[Config] = []
    point_of = np.empty(sum(len(space.configs) for space in spaces), dtype=np.int64)
    for i, config in enumerate(config for space in spaces for config in space.configs):
        point_of[i] = numbers.setdefault(tuple(config.values()), len(distinct))
        if len(numbers) > len(distinct):
            distinct.append(config)
    varying = axes(distinct)
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

    return np.array([point(config) for config in distinct], ndmin=2), point_of


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
