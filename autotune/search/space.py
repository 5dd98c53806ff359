"""The configs that a search chooses from, and samplers of Optuna that propose legal ones only, each at most once.

Optuna's search spaces are products of the parameters' values, of which only some configs are legal. A `LegalSampler`
chooses among the enumerated legal configs that no trial of its study has. `NearestSampler` makes one of any sampler of
Optuna.
"""

from __future__ import annotations

import copy
import random
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from autotune.families import Config, Kernel, Value
from autotune.ir import Epilogue, Problem

KernelGroup = tuple[str, str, Epilogue]
"""Family, dtype and epilogue: what spaces share that have kernels in common."""


@dataclass(frozen=True)
class Space:
    """The legal configs of one family for one problem, in the order of the family's cost model (the *prior*).

    Attributes:
        problem: The problem that is tuned.
        family: Name of the family.
        configs: The configs, the one with the lowest predicted cost first.
        costs: The predicted cost of each config; lower is better, the unit is the family's own.
    """

    problem: Problem
    family: str
    configs: tuple[Config, ...]
    costs: tuple[float, ...]

    @classmethod
    def ranked(cls, problem: Problem, family: str, configs: Sequence[Config], costs: Sequence[float]) -> Space:
        """Return a space of configs that are given in any order with their predicted costs."""
        order = sorted(range(len(configs)), key=costs.__getitem__)
        return cls(problem, family, tuple(configs[i] for i in order), tuple(costs[i] for i in order))

    @cached_property
    def name(self) -> str:
        """Return the problem and the family in a few words."""
        return f"{self.problem.short_name} {self.family}"

    def truncate(self, count: int, seed: int) -> Space:
        """Return a space of at most `count` configs.

        Three quarters of them have the lowest predicted costs; the others are drawn at random from the rest.
        """
        if len(self.configs) <= count:
            return self
        num_best = count - count // 4
        drawn = random.Random(seed).sample(range(num_best, len(self.configs)), count - num_best)
        kept = [*range(num_best), *sorted(drawn)]
        return Space(
            problem=self.problem,
            family=self.family,
            configs=tuple(self.configs[i] for i in kept),
            costs=tuple(self.costs[i] for i in kept),
        )

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Return Optuna's distribution of each parameter, in the order of the family's parameters.

        Words are categories. Numbers are a range, on a logarithmic scale unless 0 is among them: most are sizes that
        double from value to value. A sampler may therefore propose a number between two values.
        """
        names = self.configs[0] if self.configs else ()
        return {name: _distribution(dict.fromkeys(config[name] for config in self.configs)) for name in names}

    def index_of(self, config: Mapping[str, object]) -> int | None:
        """Return the index of a config; None for one that is not in the space or lacks a parameter."""
        return self._index.find(config)

    @cached_property
    def _index(self) -> _ConfigIndex:
        return _ConfigIndex(self.configs)

    def kernel(self, config: Config, target: str) -> Kernel:
        """Return the kernel of a config for this problem's dtype and epilogue."""
        return Kernel.of(self.family, config, self.problem.dtype, self.problem.epilogue, target)

    @property
    def kernel_group(self) -> KernelGroup:
        """The family, dtype and epilogue of its kernels."""
        return self.family, self.problem.dtype, self.problem.epilogue

    def contains(self, kernel: Kernel) -> bool:
        """Return whether a kernel has this space's family, dtype and epilogue."""
        return kernel_group(kernel) == self.kernel_group


_KEY_BYTES = 2  # for a value's number


class _ConfigIndex:
    """Finds configs by their values, in a few bytes for each config: a large run has millions of them."""

    def __init__(self, configs: Sequence[Config]) -> None:
        names = configs[0] if configs else ()
        self._numbers = {
            name: {value: number for number, value in enumerate(dict.fromkeys(config[name] for config in configs), 1)}
            for name in names
        }
        keys = np.array([self._key(config) for config in configs], dtype=f"S{max(1, _KEY_BYTES * len(self._numbers))}")
        self._order = np.argsort(keys, kind="stable").astype(np.int32)
        self._keys = keys[self._order]

    def find(self, config: Mapping[str, object]) -> int | None:
        """Return the index of a config; None if there is none with these values."""
        key = self._key(config)
        place = int(np.searchsorted(self._keys, np.bytes_(key))) if key is not None else len(self._keys)
        found = place < len(self._keys) and self._keys[place] == key
        return int(self._order[place]) if found else None

    def _key(self, config: Mapping[str, object]) -> bytes | None:
        """Return the numbers of a config's values, as numpy keeps bytes; None if a value occurs in no config."""
        numbers = [known.get(config.get(name, "")) for name, known in self._numbers.items()]  # type: ignore[call-overload]
        if None in numbers:
            return None
        return b"".join(number.to_bytes(_KEY_BYTES, "big") for number in numbers).rstrip(b"\0")


def kernel_group(kernel: Kernel) -> KernelGroup:
    """Return the group of a kernel."""
    return kernel.family, kernel.dtype, kernel.epilogue


def spread(space: Space, count: int) -> list[int]:
    """Return the indices of `count` configs that the prior ranks high and that are unlike each other.

    A config that differs from a better one in a single parameter is skipped, unless too few others remain.
    """
    chosen: dict[int, tuple[Value, ...]] = {}
    for i, config in enumerate(space.configs):
        if len(chosen) == count:
            break
        values = tuple(config.values())
        if all(sum(a != b for a, b in zip(values, other, strict=True)) > 1 for other in chosen.values()):
            chosen[i] = values
    rest = (i for i in range(len(space.configs)) if i not in chosen)
    return [*chosen, *islice(rest, count - len(chosen))]


def _distribution(values: Collection[Value]) -> BaseDistribution:
    if any(isinstance(value, str) for value in values):
        return CategoricalDistribution(tuple(values))
    low, high = min(map(int, values)), max(map(int, values))
    return IntDistribution(low, high, log=low > 0)


def axes(configs: Sequence[Config]) -> dict[str, list[Value]]:
    """Return the parameters that vary among some configs, each with its values in ascending order."""
    names = list(configs[0]) if configs else []
    found = {name: sorted({config[name] for config in configs}, key=_order) for name in names}
    return {name: values for name, values in found.items() if len(values) > 1}


def _order(value: Value) -> tuple[bool, Value]:
    return (isinstance(value, str), value)


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
