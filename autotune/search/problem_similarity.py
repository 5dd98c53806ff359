"""How alike two problems are to the search: the correlation of the effects that a config has on their times.

The constants were chosen by benchmarks/programs/replay.py on tests/data/search_h200.json.gz (docs/internals/search.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache

import numpy as np

from autotune.ir import Problem
from autotune.search.gaussian_process import Matrix

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
