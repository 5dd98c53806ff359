"""The samplers by name, and the studies that search with them."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, RandomSampler, TPESampler

from autotune.core import AutotuneError, UnknownNameError
from autotune.families import Config
from autotune.ir import Problem
from autotune.search.scalarization import ParetoFront
from autotune.search.space import CostModelSampler, LegalSampler, NearestSampler, Space
from autotune.search.study import SpaceStudy
from autotune.search.transfer_history import TransferHistory
from autotune.search.transfer_sampler import WARM_START, FamilyRace, TransferSampler

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
