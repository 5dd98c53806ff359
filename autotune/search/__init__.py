"""Which configs to try next: strategies by name, each a function from all spaces of a run to a study of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.core import require_one_of
from autotune.ir import Problem
from autotune.search.fixed import Prior, Random
from autotune.search.schedule import Schedule
from autotune.search.space import Space, Study, spread
from autotune.search.tpe import Tpe
from autotune.search.transfer import FIRST, Contest, Lessons, Transfer

__all__ = ["DEFAULT", "STRATEGIES", "Schedule", "Space", "Strategy", "Studies", "Study", "spread", "strategy"]

Studies = list[Study]
DEFAULT = "transfer"


@dataclass(frozen=True)
class Strategy:
    """studies: (spaces, seed, gain) -> a study of each space, in order. meaning: for --help.

    gain: the expected improvement below which a search may end, as a share of the best; 0 never ends one.
    bounded: whether the number of trials ends it; else only the end of the space does.
    first: so many configs of each space are asked for before anything is known: those of space.spread.
    """

    studies: Callable[[Sequence[Space], int, float], Studies]
    meaning: str
    bounded: bool = True
    first: int = 0


def _transfer(spaces: Sequence[Space], _: int, gain: float) -> Studies:
    by_family: dict[str, list[Space]] = {}
    for space in spaces:
        by_family.setdefault(space.family, []).append(space)
    lessons = {family: Lessons(group) for family, group in by_family.items()}
    contests: dict[Problem, Contest] = {space.problem: Contest() for space in spaces}
    return [
        Transfer(space, lessons[space.family], by_family[space.family].index(space), contests[space.problem], gain)
        for space in spaces
    ]


STRATEGIES = {
    "transfer": Strategy(_transfer, "a Gaussian process that learns across layers", first=FIRST),
    "tpe": Strategy(lambda spaces, seed, _: [Tpe(space, seed) for space in spaces], "Optuna's TPE, layer by layer"),
    "prior": Strategy(lambda spaces, *_: [Prior(space) for space in spaces], "the prior's best first"),
    "random": Strategy(
        lambda spaces, seed, _: [Random(space, seed + i) for i, space in enumerate(spaces)], "by chance"
    ),
    "exhaustive": Strategy(lambda spaces, *_: [Prior(space) for space in spaces], "everything there is", bounded=False),
}


def strategy(name: str) -> Strategy:
    """Look a strategy up by name; raises UnknownNameError."""
    return STRATEGIES[require_one_of("strategy", name, list(STRATEGIES))]
