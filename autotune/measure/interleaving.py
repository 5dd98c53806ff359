"""Samples of several candidates side by side, and what is done about a GPU that is slowed down meanwhile."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_PAUSE_SECONDS = 0.1  # for a GPU to cool
_REPEATS = 5  # rounds that are taken again


@dataclass(frozen=True)
class Rounds:
    """Samples of each sampler, one a round. throttled: how many of the rounds were taken while the device was slowed.

    repeated: the samples of rounds that were taken again for that reason.
    """

    samples: list[list[float]]
    throttled: int = 0
    repeated: list[list[float]] = field(default_factory=list)


def interleave(
    samplers: Sequence[Callable[[], float]], rounds: int, slowed: Callable[[], object] = lambda: None
) -> Rounds:
    """A sample of each in every round, in a new random order, so that whatever drifts meets all alike.

    slowed: asked after each round; a round in which it says yes is taken again after a pause. Where that does not end,
    slowed rounds fill up the number, and the result says how many.
    """
    clean: list[list[float]] = []
    slow: list[list[float]] = []
    order, shuffle = list(range(len(samplers))), random.Random(0).shuffle
    while len(clean) < rounds and len(clean) + len(slow) < rounds + _REPEATS:
        shuffle(order)
        taken = [0.0] * len(samplers)
        for i in order:
            taken[i] = samplers[i]()
        if not slowed():
            clean.append(taken)
            continue
        slow.append(taken)
        if len(slow) <= _REPEATS:
            time.sleep(_PAUSE_SECONDS)
    missing = rounds - len(clean)
    kept, repeated = clean + slow[len(slow) - missing :], slow[: len(slow) - missing]
    return Rounds(_by_sampler(kept, len(samplers)), missing, _by_sampler(repeated, len(samplers)))


def _by_sampler(rounds: list[list[float]], count: int) -> list[list[float]]:
    return [[taken[i] for taken in rounds] for i in range(count)]
