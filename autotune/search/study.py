"""Studies of Optuna, each of which searches one space by ask and tell, and the samplers that users choose by name."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from autotune.core import AutotuneError, UnknownNameError
from autotune.families import Config
from autotune.ir import Problem
from autotune.search.space import CostModelSampler, LegalSampler, NearestSampler, Space, spread
from autotune.search.transfer_history import ParetoFront, TransferHistory
from autotune.search.transfer_sampler import WARM_START, FamilyRace, TransferSampler

ERROR = "error"
"""User attribute of a failed trial: the reason of the failure."""


class SpaceStudy:
    """Searches one space; no config is asked for twice.

    Args:
        space: The space that is searched.
        sampler: Chooses the configs.
        warm_start: Number of configs, those of `spread`, that are enqueued before the sampler is asked.
        num_objectives: Number of objectives, which are all minimized.

    Attributes:
        space: The space that is searched.
        sampler: Chooses the configs.
        study: The study of Optuna, in memory. Its trials are the configs that were asked for or told.
        num_observed: Number of configs whose result was told, whether they were asked for or not.
        pending: The running trials, by the index of their config.
    """

    def __init__(self, space: Space, sampler: LegalSampler, warm_start: int = 0, num_objectives: int = 1) -> None:
        self.space, self.sampler = space, sampler
        self.study = optuna.create_study(
            sampler=sampler,
            study_name=f"{space.family} | {space.problem}",
            directions=["minimize"] * num_objectives,
        )
        self.num_observed = 0
        self.pending: dict[int, Trial] = {}
        self._tried: set[int] = set()
        self._queue = spread(space, warm_start)

    @property
    def total(self) -> int:
        """Return the number of configs in the space."""
        return len(self.space.configs)

    @property
    def num_started(self) -> int:
        """Return the number of configs that are pending or observed."""
        return self.num_observed + len(self.pending)

    def ask(self, count: int) -> list[Config]:
        """Return up to `count` configs to try next, whose trials run from now on.

        Returns:
            Configs; fewer than `count`, or none, if the sampler expects nothing of more trials.
        """
        asked: list[Config] = []
        while len(asked) < count and (self._enqueue_next() or self.sampler.wants_trial(self.study)):
            trial = self.study.ask(self.space.distributions)
            i = self.space.index_of(trial.params)
            assert i is not None, "the sampler proposes legal configs only"
            self.pending[i] = trial
            self._tried.add(i)
            asked.append(self.space.configs[i])
        return asked

    def tell(
        self,
        config: Config,
        value: float | Sequence[float] | None,
        error: str | None = None,
        *,
        is_pruned: bool = False,
        others: Sequence[Sequence[float]] = (),
    ) -> None:
        """Record the result of a config, asked for or not.

        With several objectives a pruned trial is complete. Optuna prunes by intermediate values, which only a study of
        one objective has (`Trial.report`). A slow config has a value of each objective, and may be best by another one
        than time; a failed trial would teach the sampler nothing.

        Args:
            config: The config; one that is not in the space is ignored.
            value: The objective, or one value for each, > 0, lower is better; None if the config failed.
            error: The reason of a failure.
            is_pruned: Whether the trial was ended early because the config is slow; its value is then less exact.
            others: Objectives of other launches of the config, which `value` does not dominate; each is a trial, too.
        """
        i = self.space.index_of(config)
        if i is None:
            return
        values = [value] if isinstance(value, (int, float)) else value
        is_pruned = is_pruned and len(self.study.directions) == 1
        self.num_observed += 1
        self._tried.add(i)
        if trial := self.pending.pop(i, None):
            if error:
                trial.set_user_attr(ERROR, error)
            if values is not None and is_pruned:
                trial.report(values[0], 0)  # which becomes the trial's value
            self.study.tell(trial, None if is_pruned else values, ended_state(values, is_pruned=is_pruned))
        else:
            self._add(self.space.configs[i], values, error, is_pruned)
        for other in others:
            self._add(self.space.configs[i], other)

    def wants(self, config: Config) -> bool:
        """Return whether a config is pending."""
        return self.space.index_of(config) in self.pending

    def enqueue(self, configs: Sequence[Config]) -> None:
        """Try these configs, the most promising first, in place of as many of the warm start."""
        known = dict.fromkeys(i for i in map(self.space.index_of, configs) if i is not None)
        rest = [i for i in self._queue if i not in known]
        self._queue = [*known, *rest[: max(0, len(self._queue) - len(known))]]

    def _enqueue_next(self) -> bool:
        """Enqueue the next config that has no trial; return whether there was one.

        One at a time: a config may be told while it waits, which a trial of Optuna's queue cannot be.
        """
        while self._queue:
            if (first := self._queue.pop(0)) not in self._tried:
                self.study.enqueue_trial(dict(self.space.configs[first]))
                return True
        return False

    def _add(
        self, config: Config, values: Sequence[float] | None, error: str | None = None, is_pruned: bool = False
    ) -> None:
        """Add the trial of a config that was not asked for."""
        attributes = {ERROR: error} if error else {}
        self.study.add_trial(ended_trial(config, self.space.distributions, values, attributes, is_pruned=is_pruned))
        trial: FrozenTrial = self.study.get_trials(deepcopy=False)[-1]
        self.sampler.after_trial(
            self.study, trial, trial.state, trial.values
        )  # which Optuna only calls for told trials


def ended_trial(
    params: Mapping[str, Any],
    distributions: Mapping[str, BaseDistribution],
    values: Sequence[float] | None,
    attributes: Mapping[str, object],
    *,
    is_pruned: bool = False,
) -> FrozenTrial:
    """Return a trial that has ended.

    Args:
        params: Its parameters.
        distributions: The distribution of each.
        values: Its value of each objective; None for a failed trial.
        attributes: Its user attributes.
        is_pruned: Whether a trial with a value of the only objective was pruned.
    """
    return create_trial(
        state=ended_state(values, is_pruned=is_pruned),
        values=values,
        intermediate_values={0: values[0]} if values is not None and is_pruned else None,
        params=dict(params),
        distributions=dict(distributions),
        user_attrs=dict(attributes),
    )


def ended_state(values: Sequence[float] | None, *, is_pruned: bool) -> TrialState:
    """Return the state of a trial that has ended: it failed if it has no values."""
    if values is None:
        return TrialState.FAIL
    return TrialState.PRUNED if is_pruned else TrialState.COMPLETE


DEFAULT_SAMPLER = "transfer"
OPTUNA_WARM_START = 10
"""Number of configs with low predicted costs that are tried before a sampler of Optuna is asked."""

KnownTimes = tuple[Space, Sequence[tuple[Config, float]]]
"""A space outside the search, and configs of it with their times, which stand for each of several objectives."""


@dataclass(frozen=True)
class SamplerChoice:
    """A sampler that users can choose by name.

    Attributes:
        make: Makes a sampler of Optuna from a seed, for `NearestSampler`; None for a sampler of this project.
        warm_start: Number of configs of each space, those of `spread`, that are asked for before any result is known.
        is_bounded: Whether the number of trials ends a search; if not, only the end of its space does.
    """

    make: Callable[[int], BaseSampler] | None = None
    warm_start: int = 0
    is_bounded: bool = True


def _tpe(seed: int) -> BaseSampler:
    with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
        return TPESampler(seed=seed, n_startup_trials=OPTUNA_WARM_START, constant_liar=True, multivariate=True)


def _gp(seed: int) -> BaseSampler:
    return GPSampler(seed=seed, n_startup_trials=OPTUNA_WARM_START)


def _cmaes(seed: int) -> BaseSampler:
    if find_spec("cmaes") is None:
        raise AutotuneError("the sampler cmaes needs a package: pip install cmaes")
    # It draws words, which have no order, at random: that is no reason for a warning.
    return CmaEsSampler(seed=seed, warn_independent_sampling=False)


SAMPLERS = {
    "transfer": SamplerChoice(warm_start=WARM_START),
    "tpe": SamplerChoice(_tpe, OPTUNA_WARM_START),
    "gp": SamplerChoice(_gp, OPTUNA_WARM_START),
    "cmaes": SamplerChoice(_cmaes, OPTUNA_WARM_START),
    "random": SamplerChoice(RandomSampler),
    "cost-model": SamplerChoice(),
    "brute-force": SamplerChoice(is_bounded=False),
}
ANY_SAMPLER = "module:Class"
"""The form in which --sampler names a class that is not in SAMPLERS."""


def sampler_choice(name: str, num_objectives: int = 1) -> SamplerChoice:
    """Return what a name of SAMPLERS, or "module:Class" for any other sampler of Optuna, stands for.

    Args:
        name: The name.
        num_objectives: Number of objectives of the studies.

    Raises:
        UnknownNameError: There is no sampler of that name.
        AutotuneError: The sampler cannot be imported or made, or does not support several objectives.
    """
    if name in SAMPLERS:
        choice = SAMPLERS[name]
    elif ":" in name:
        choice = SamplerChoice(partial(_imported, name), OPTUNA_WARM_START)
    else:
        raise UnknownNameError(
            f"unknown sampler '{name}': choose one of {', '.join(SAMPLERS)}, or {ANY_SAMPLER}, such as "
            "optuna.samplers:QMCSampler"
        )
    if choice.make:
        _check_objectives(name, choice.make(0), num_objectives)  # errors are told before anything else is done
    return choice


def _check_objectives(name: str, sampler: BaseSampler, num_objectives: int) -> None:
    """Sample for a trial of several objectives: samplers of Optuna that do not support them raise ValueError.

    Raises:
        AutotuneError: The sampler does not support several objectives.
    """
    if num_objectives == 1:
        return
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(sampler=sampler, directions=["minimize"] * num_objectives)
        study.ask()
        [trial] = study.trials
        # Before Optuna 5 only the first parameter of a trial calls this.
        sampler.sample_relative(study, trial, sampler.infer_relative_search_space(study, trial))
    except ValueError as error:
        raise AutotuneError(
            f"the sampler {name} supports one objective only: give --objective once, or another sampler, such as "
            f"{DEFAULT_SAMPLER} or tpe"
        ) from error


def create_studies(
    name: str,
    spaces: Sequence[Space],
    seed: int = 0,
    gain: float = 0.0,
    known: Sequence[KnownTimes] = (),
    num_objectives: int = 1,
) -> list[SpaceStudy]:
    """Return a study of each space, in order.

    Args:
        name: Name of the sampler, as for `sampler_choice`.
        spaces: The spaces.
        seed: Seed of the samplers; each study has its own.
        gain: Expected improvement below which `TransferSampler` wants no trial, as a share of the best time; with 0 it
            always wants one.
        known: What is known of spaces outside the search; only `TransferSampler` learns from it.
        num_objectives: Number of objectives of each study.

    Raises:
        AutotuneError: As for `sampler_choice`.
    """
    choice = sampler_choice(name, num_objectives)
    samplers: Sequence[LegalSampler]
    if choice.make:
        samplers = [NearestSampler(space, choice.make(seed + i)) for i, space in enumerate(spaces)]
    elif name == "transfer":
        samplers = _transfer_samplers(spaces, gain, known, num_objectives)
    else:
        samplers = [CostModelSampler(space) for space in spaces]
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a study prints a line for each trial otherwise
    return [
        SpaceStudy(space, sampler, choice.warm_start, num_objectives)
        for space, sampler in zip(spaces, samplers, strict=True)
    ]


def _transfer_samplers(
    spaces: Sequence[Space], gain: float, known: Sequence[KnownTimes], num_objectives: int
) -> list[LegalSampler]:
    by_family: dict[str, list[Space]] = {}
    for space in (*spaces, *(other for other, _ in known)):
        by_family.setdefault(space.family, []).append(space)
    fronts = {space.problem: ParetoFront() for group in by_family.values() for space in group}
    histories = {family: TransferHistory(group, fronts) for family, group in by_family.items()}
    for space, values in known:
        for config, value in values:
            if (i := space.index_of(config)) is not None:
                histories[space.family].add(space, i, [value] * num_objectives)
    races: dict[Problem, FamilyRace] = {space.problem: FamilyRace() for space in spaces}
    return [TransferSampler(space, histories[space.family], races[space.problem], gain) for space in spaces]


def _imported(name: str, seed: int) -> BaseSampler:
    """Return the sampler of Optuna that "module:Class" names, with a seed where its constructor takes one."""
    module, _, class_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), class_name)
    except (ImportError, ValueError, AttributeError) as error:
        raise AutotuneError(f"cannot import the sampler {name}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, BaseSampler)):
        raise AutotuneError(f"{name} is no sampler: give a subclass of optuna.samplers.BaseSampler")
    arguments = {"seed": seed} if "seed" in inspect.signature(found).parameters else {}
    try:
        return found(**arguments)
    except TypeError as error:
        raise AutotuneError(
            f"cannot make the sampler {name}: {error}; give a class that needs no argument but seed"
        ) from error
