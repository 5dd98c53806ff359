"""Interleaved sampling: all candidates are sampled in every round, so that drift affects all of them alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

_PAUSE_SECONDS = 0.1
"""Pause after a round in which the device was slowed down, so that a GPU cools."""
_REPEATS = 5
"""Most rounds that are repeated because the device was slowed down."""

THROTTLED = "throttled"
"""Detail of a measurement: the number of its rounds in which the device was slowed down."""

Sample = TypeVar("Sample")


@dataclass(frozen=True)
class Rounds:
    """Samples in microseconds, one list for each sampler with one value for each round.

    throttled: number of rounds in `samples` during which the device was slowed down.
    repeated: samples of the rounds that were discarded and repeated because the device was slowed down.
    """

    samples: list[list[float]]
    throttled: int = 0
    repeated: list[list[float]] = field(default_factory=list)


def shuffled_rounds(samplers: Sequence[Callable[[], Sample]]) -> Iterator[list[Sample]]:
    """Yield rounds without end: one sample of each sampler, taken in a new random order in each round.

    Clocks, temperature and other users change over time; they affect all samples of one round alike, whatever the order
    of the samplers. The orders are the same in every run.

    Yields:
        The samples of one round, in the order of `samplers`.
    """
    order, shuffle = list(range(len(samplers))), random.Random(0).shuffle
    while True:
        shuffle(order)
        taken = {i: samplers[i]() for i in order}
        yield [taken[i] for i in range(len(samplers))]


def interleave(
    samplers: Sequence[Callable[[], float]], rounds: int, slowed: Callable[[], object] = lambda: None
) -> Rounds:
    """Take `rounds` samples of each sampler in interleaved rounds.

    Args:
        samplers: Each call takes one sample.
        rounds: Number of samples of each sampler.
        slowed: Called after each round; a true value means that the device was slowed down during the round. Such a
            round is repeated after a pause, at most _REPEATS times. If the device stays slow, slow rounds make up the
            number, and the result says how many.
    """
    clean: list[list[float]] = []
    slow: list[list[float]] = []
    for taken in shuffled_rounds(samplers):
        was_slowed = bool(slowed())
        (slow if was_slowed else clean).append(taken)
        if len(clean) >= rounds or len(clean) + len(slow) >= rounds + _REPEATS:
            break
        if was_slowed and len(slow) <= _REPEATS:
            time.sleep(_PAUSE_SECONDS)
    missing = rounds - len(clean)
    kept, repeated = clean + slow[len(slow) - missing :], slow[: len(slow) - missing]
    return Rounds(_by_sampler(kept, len(samplers)), missing, _by_sampler(repeated, len(samplers)))


def throttling(rounds: Rounds, index: int) -> dict[str, Any]:
    """Return the details of rounds in which the device was slowed down; empty if there were none."""
    details: dict[str, Any] = {THROTTLED: rounds.throttled} if rounds.throttled else {}
    if any(rounds.repeated):
        details["repeated_us"] = [round(sample, 4) for sample in rounds.repeated[index]]
    return details


def _by_sampler(rounds: list[list[float]], count: int) -> list[list[float]]:
    return [[taken[i] for taken in rounds] for i in range(count)]
