"""The limits and choices of a tuning run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autotune.core import Architecture
from autotune.libraries import cudnn
from autotune.search import DEFAULT_SAMPLER
from autotune.tuner.objectives import DEFAULT_OBJECTIVES

ONLY, TRIALS = "only", "trials"
"""Details of a final measurement, of a search that the user has limited: the families and the number of configs."""


@dataclass(frozen=True)
class TunerOptions:
    """The limits and choices of a tuning run.

    Attributes:
        arch: The architecture to tune for.
        target: The compilation target, such as "sm_90".
        trials: Number of configs that may be tried for a problem.
        jobs: Number of compilers that run at the same time.
        seed: Seed of the search.
        allow: Names of families.base.PERMISSIONS.
        only: Names of the families to try; if empty, all apart from those that must be named.
        sampler: A name of search.SAMPLERS, or "module:Class" for another sampler of Optuna.
        limit: Largest number of configs in the space of a family and a problem; 0 for no limit.
        gain: A study rests while it expects no config to improve the best time by this share of it.
        objectives: Names of tuner.OBJECTIVES; several are minimized together, which finds their Pareto front.
        vendor: The library whose plans are candidates on a GPU: "cudnn" or "none".
        inductor: The modes in which Inductor compiles calls of torch's operators; none if it does not.
        baseline_first: Time torch's operators of all problems before the search, for a training step: that runs a
            kernel only where it is known to be faster than torch's operator.
        is_limited: Whether the user has given `trials`.
    """

    arch: Architecture
    target: str
    trials: int
    jobs: int
    seed: int = 0
    allow: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    sampler: str = DEFAULT_SAMPLER
    limit: int = 0
    gain: float = 0.01
    objectives: tuple[str, ...] = DEFAULT_OBJECTIVES
    vendor: str = cudnn.FAMILY
    inductor: tuple[str, ...] = ()
    baseline_first: bool = False
    is_limited: bool = False

    @property
    def limits(self) -> dict[str, Any]:
        """Return what the user has limited the search to, as final measurements record it."""
        only = {ONLY: list(self.only)} if self.only else {}
        return only | ({TRIALS: self.trials} if self.is_limited else {})
