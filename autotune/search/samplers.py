"""The search strategies by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.core import require_one_of
from autotune.ir import Problem
from autotune.search.fixed_order import PriorStudy, RandomStudy
from autotune.search.space import Space
from autotune.search.study import Study
from autotune.search.tpe import TpeStudy
from autotune.search.transfer import WARM_START, FamilyRace, TransferData, TransferStudy

DEFAULT_STRATEGY = "transfer"


@dataclass(frozen=True)
class Strategy:
    """A way to choose the next configs.

    Attributes:
        make_studies: Maps (spaces, seed, gain) to a study of each space, in order. `gain` is the expected improvement
            below which a study rests, as a share of the best time; 0 never lets one rest.
        meaning: A phrase for --help.
        is_bounded: Whether the number of trials ends a search; if not, only the end of its space does.
        warm_start: Number of configs of each space, those of `spread`, that are asked for before any result is known.
    """

    make_studies: Callable[[Sequence[Space], int, float], list[Study]]
    meaning: str
    is_bounded: bool = True
    warm_start: int = 0


def _transfer_studies(spaces: Sequence[Space], _: int, gain: float) -> list[Study]:
    by_family: dict[str, list[Space]] = {}
    for space in spaces:
        by_family.setdefault(space.family, []).append(space)
    data = {family: TransferData(group) for family, group in by_family.items()}
    races: dict[Problem, FamilyRace] = {space.problem: FamilyRace() for space in spaces}
    return [
        TransferStudy(
            space,
            data=data[space.family],
            index=by_family[space.family].index(space),
            race=races[space.problem],
            gain=gain,
        )
        for space in spaces
    ]


def _tpe_studies(spaces: Sequence[Space], seed: int, _: float) -> list[Study]:
    return [TpeStudy(space, seed) for space in spaces]


def _prior_studies(spaces: Sequence[Space], _seed: int, _gain: float) -> list[Study]:
    return [PriorStudy(space) for space in spaces]


def _random_studies(spaces: Sequence[Space], seed: int, _: float) -> list[Study]:
    return [RandomStudy(space, seed + i) for i, space in enumerate(spaces)]


STRATEGIES = {
    "transfer": Strategy(_transfer_studies, "a Gaussian process that learns across layers", warm_start=WARM_START),
    "tpe": Strategy(_tpe_studies, "Optuna's TPE, each layer on its own"),
    "prior": Strategy(_prior_studies, "ascending predicted cost"),
    "random": Strategy(_random_studies, "random order"),
    "exhaustive": Strategy(_prior_studies, "all configs, whatever --trials says", is_bounded=False),
}


def strategy(name: str) -> Strategy:
    """Return a strategy by name.

    Raises:
        UnknownNameError: There is no strategy of that name.
    """
    return STRATEGIES[require_one_of("strategy", name, list(STRATEGIES))]
