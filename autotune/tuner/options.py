"""What a run of the tuner may do."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.core import Architecture
from autotune.libraries import cudnn
from autotune.search import DEFAULT_STRATEGY
from autotune.tuner.objectives import DEFAULT as BY_TIME


@dataclass(frozen=True)
class Options:
    """trials: configs that may be tried for one problem; budget: seconds for the search; jobs: compilers at once.

    allow: names of families.base.PERMISSIONS. only: names of the families that may try; if empty, all but those that
    must be named. strategy: of search.STRATEGIES.
    limit: most configs in a family's space for a problem; 0: all that are legal.
    gain: a search rests where it expects less than this share of the best time from any config.
    objectives: of objective.OBJECTIVES.
    vendor: whose plans are candidates on a GPU: "cudnn" or "none".
    """

    arch: Architecture
    target: str
    trials: int
    budget: float
    jobs: int
    seed: int = 0
    allow: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    strategy: str = DEFAULT_STRATEGY
    limit: int = 0
    gain: float = 0.01
    objectives: tuple[str, ...] = BY_TIME
    vendor: str = cudnn.FAMILY
