"""Learns across layers: a Gaussian process over the configs and problems of a family says what to try next.

What was fast on a problem is likely to be fast on those like it, and so is what differs from it in little. Both enter
the covariance of two measurements as a product: nearness of configs times nearness of problems. The prior enters as
one more linear feature, so it is trusted as far as it has been right. The config with the largest expected
improvement a second is tried next, of the families from which a problem has the most to expect; where that is little
for every config, the search of the space ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields

import numpy as np
from threadpoolctl import ThreadpoolController

from autotune.families.base import Config
from autotune.ir import Problem
from autotune.search.space import Seconds, Space, Study, axes, spread

Array = np.ndarray

FIRST = 6
"""How many of the prior's best are tried before the process is asked."""
MOST = 250
"""Measurements that the process is fitted to: the problem's own, then those of the problems nearest to it."""
CANDIDATES = 128
"""Configs whose improvement is worked out: those of the lowest expected times."""
SHY = 0.6
"""A family that expects less than this share of what another expects to gain on a problem lets that one go first."""
PATIENCE = 3
"""A space rests until so many more measurements of its family came in since it had nothing worth a trial."""

# Variances of the logarithm of a time, and lengths. scripts/replay.py shows on a recording how they do.
_OFFSET = 9.0  # of a problem's level, which is not known before the first measurement
_SLOPE = 0.3  # of how far the prior is to be trusted, around 1
_CONFIG = 0.11  # of what a config's values do beyond the prior
_NOISE = 2e-4
_CONFIG_LENGTH = 1.6
_PROBLEM_LENGTH = 16.0
_FLOOR = 0.6  # of what configs do alike on all problems


class Lessons:
    """Everything that was measured on the spaces of one family, with the shared terms of its covariances.

    Configs of all spaces have one numbering: those of a space begin at its start.
    """

    def __init__(self, spaces: Sequence[Space]) -> None:
        self._codes = _codes(spaces)
        self._squares = (self._codes**2).sum(1)
        self._priors = np.concatenate([_log_costs(space) for space in spaces])
        self._starts = np.cumsum([0, *(len(space.configs) for space in spaces)])
        self._space_of = np.repeat(np.arange(len(spaces)), np.diff(self._starts))
        self._near = np.array([[_nearness(a.problem, b.problem) for b in spaces] for a in spaces])
        self._nearest = np.argsort(-self._near, axis=1, kind="stable")
        self._measured: list[dict[int, float]] = [{} for _ in spaces]
        self._threads = ThreadpoolController()
        self.count = 0

    def add(self, space: int, config: int, value: float) -> None:
        """A measurement; the better one counts where there are several."""
        known = self._measured[space].get(config, math.inf)
        self._measured[space][config] = min(known, math.log(value))
        self.count += 1

    def best(self, space: int) -> float:
        """The lowest logarithm that was measured in a space; infinite where there is none."""
        return min(self._measured[space].values(), default=math.inf)

    def posterior(self, space: int, configs: Array, pending: Sequence[int]) -> tuple[Array, Array, Array]:
        """The most promising of some configs, and their means and covariances, as if what is pending were known."""
        with self._threads.limit(limits=1, user_api="blas"):  # the other cores are the compilers'
            return self._posterior(space, configs, pending)

    def _posterior(self, space: int, configs: Array, pending: Sequence[int]) -> tuple[Array, Array, Array]:
        start = self._starts[space]
        known, values = self._data(space)
        level = values.mean()
        inverse = np.linalg.inv(self._covariance(known, known) + _NOISE * np.eye(len(values)))
        # The prior is taken at its word; what it misses is the process's.
        weights = inverse @ (values - level - self._priors[known])
        means = self._covariance(start + configs, known) @ weights + level + self._priors[start + configs]
        order = np.argsort(means, kind="stable")[:CANDIDATES]
        chosen = start + np.concatenate([np.array(pending, dtype=int), configs[order]])
        across = self._covariance(chosen, known)
        covariance = self._covariance(chosen, chosen) - across @ inverse @ across.T
        for i in range(len(pending)):
            _condition(covariance, i)
        return configs[order], means[order], covariance[len(pending) :, len(pending) :]

    def _data(self, space: int) -> tuple[Array, Array]:
        """The numbers and the values of the measurements nearest to a space's problem, the fastest of each first."""
        rows: list[tuple[int, float]] = []
        for other in self._nearest[space]:
            fastest = sorted(self._measured[other].items(), key=lambda one: one[1])
            rows += [(self._starts[other] + config, value) for config, value in fastest]
            if len(rows) >= MOST:
                break
        configs, values = zip(*rows[:MOST], strict=True)
        return np.array(configs), np.array(values)

    def _covariance(self, a: Array, b: Array) -> Array:
        """Of the configs with these numbers."""
        steps = self._squares[a][:, None] + self._squares[b][None] - 2 * self._codes[a] @ self._codes[b].T
        alike = np.exp(steps.clip(0) / -_CONFIG_LENGTH) * _CONFIG
        alike += _SLOPE * np.outer(self._priors[a], self._priors[b])
        at_a, at_b = self._space_of[a], self._space_of[b]
        return self._near[at_a][:, at_b] * alike + _OFFSET * (at_a[:, None] == at_b[None])


@dataclass
class Contest:
    """The families that serve one problem.

    best: the lowest logarithm of all, which is to be improved upon. promises: the largest improvement that each
    family expected when it was asked last; a family is left waiting while another promises much more.
    """

    best: float = math.inf
    promises: dict[str, float] = field(default_factory=dict)


class Transfer(Study):
    """Asks for the largest expected improvement a second.

    gain: the search rests where no config is expected to be better than the problem's best by this share of it.
    """

    def __init__(self, space: Space, lessons: Lessons, place: int, contest: Contest, gain: float) -> None:
        super().__init__(space)
        self._lessons, self._place, self._contest, self._gain = lessons, place, contest, gain
        self._queue = spread(space, FIRST)
        self._rests_until = 0
        self._weighed_at = -1

    def ask(self, count: int, seconds: Seconds = lambda _: 1.0) -> list[Config]:
        """As in Study; the process is asked once for all of them."""
        asked = super().ask(count, seconds)
        return asked + (self._improving(count - len(asked), seconds) if self._lessons.count else [])

    def choose(self, seconds: Seconds) -> int | None:
        """One of the prior's best; more of them only if these came to nothing."""
        while self._queue:
            if (first := self._queue.pop(0)) in self.free:
                return first
        return None if self._lessons.count or self.pending else next(iter(self.free))

    def suggest(self, configs: Sequence[Config]) -> None:
        """Try these, those of them that are of this space, before the prior's best."""
        known = (self._index.get(self._key(config)) for config in configs)
        self._queue = [i for i in known if i is not None] + self._queue

    def learn(self, i: int, value: float) -> None:
        """Remember it for this space, for its problem and for all spaces of the family."""
        self._lessons.add(self._place, i, value)
        self._contest.best = min(self._contest.best, math.log(value))

    def _improving(self, count: int, seconds: Seconds) -> list[Config]:
        """The configs of the largest expected improvement a second, each as if those before it were measured."""
        if not self.free:
            self._promise(0.0)
        if not self.free or self._lessons.count < self._rests_until:
            return []
        if self._lessons.count == self._weighed_at and self._yields():
            return []  # nothing has come in that could change its promise
        free = np.fromiter(self.free, dtype=int)
        configs, means, covariance = self._lessons.posterior(self._place, free, list(self.pending))
        known = math.isfinite(self._lessons.best(self._place))
        best = min(self._contest.best, math.inf if known else means.min())
        cost = np.array([seconds(self.space.configs[i]) for i in configs])
        taken = np.zeros(len(configs), dtype=bool)
        asked: list[Config] = []
        for _ in range(min(count, len(configs))):
            improvement = _expected_improvement(best - means, np.sqrt(np.diag(covariance).clip(1e-12)))
            improvement[taken] = 0.0
            self._promise(improvement.max())
            self._weighed_at = self._lessons.count
            if known and improvement.max() < self._gain:
                self._rests_until = self._lessons.count + PATIENCE
                self._promise(0.0)
                break
            if self._yields():
                break
            at = int(np.where(taken, -1.0, improvement / cost).argmax())
            taken[at] = True
            i = int(configs[at])
            del self.free[i]
            self.pending[i] = None
            asked.append(self.space.configs[i])
            _condition(covariance, at)
        return asked

    def _promise(self, improvement: float) -> None:
        self._contest.promises[self.space.family] = float(improvement)

    def _yields(self) -> bool:
        """Whether another family promises so much more that it should be asked first."""
        promises = self._contest.promises
        return promises[self.space.family] < SHY * max(promises.values())


def _condition(covariance: Array, i: int) -> None:
    """The covariances once the i-th value is known, in place."""
    column = covariance[:, i].copy()
    covariance -= np.outer(column, column) / (column[i] + _NOISE)


def _expected_improvement(gap: Array, deviation: Array) -> Array:
    """E[max(0, X)] of normal X with these means and deviations."""
    z = gap / deviation
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))
    return gap * below + deviation * density


def _codes(spaces: Sequence[Space]) -> Array:
    """The configs of all spaces as points whose squared distance counts the steps between their values, over all axes.

    Neighbours among numbers are one step apart, and at most two lie between the ends of an axis; words are one apart.
    """
    found = axes([config for space in spaces for config in space.configs])
    columns = []
    for name, values in found.items():
        if isinstance(values[0], str):
            codes = np.eye(len(values)) * math.sqrt(0.5)
        else:
            step = math.sqrt(min(len(values) - 1, 2) / (len(values) - 1))
            codes = np.tri(len(values), len(values) - 1, -1) * step
        columns.append((name, {value: codes[i] for i, value in enumerate(values)}))

    def point(config: Config) -> Array:
        return np.concatenate([[0.0], *(codes[config[name]] for name, codes in columns)])

    return np.array([point(config) for space in spaces for config in space.configs], ndmin=2)


def _log_costs(space: Space) -> Array:
    """The prior's opinion as a logarithm of a time, up to a constant; ranks where its costs are no amounts."""
    costs = np.array(space.costs)
    if not len(costs):
        return costs
    logs = np.log(costs) if costs.min() > 0 and np.isfinite(costs).all() else np.linspace(0, 1, len(costs))
    return logs - logs.mean()


def _nearness(a: Problem, b: Problem) -> float:
    """1 for the same sizes, less the more they differ; never nothing, for some of what is fast is fast everywhere."""
    if a is b or a == b:
        return 1.0
    if type(a) is not type(b):
        return _FLOOR
    steps = math.dist(_sizes(a), _sizes(b)) / _PROBLEM_LENGTH
    return _FLOOR + (0.97 - _FLOOR) * math.exp(-steps)


def _sizes(problem: Problem) -> list[float]:
    """Every number of a problem, as a logarithm."""
    values = [value for field, value in zip(fields(problem), astuple(problem), strict=True) if field.name != "epilogue"]
    flat = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
    return [math.log2(1 + part) for part in flat if isinstance(part, int)]
