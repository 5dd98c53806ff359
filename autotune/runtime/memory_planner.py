"""Where each activation of a plan lies in one block of memory: those that never live at once share their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.core import round_up

ALIGNMENT = 256
"""Bytes; more than any kernel's access, and what CUDA's own allocator promises."""


@dataclass(frozen=True)
class Use:
    """What one layer reads and writes, by the activations' names."""

    reads: frozenset[str]
    writes: frozenset[str]


@dataclass(frozen=True)
class Arena:
    """Places of activations. offsets: by name, in bytes; bytes: of the whole."""

    offsets: Mapping[str, int]
    bytes: int


def arrange(sizes: Mapping[str, int], uses: Sequence[Use]) -> Arena:
    """Place activations of these sizes (in bytes), which layers use in this order.

    Layers that do not depend on each other may run side by side, so order alone frees nothing: two activations share
    memory only if whatever uses the one must have ended, by what layers read of each other, before the other is
    written. The largest are placed first, each into the smallest gap that takes it.
    """
    conflicts = _conflicts(sizes, uses)
    offsets: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        taken = sorted((offsets[other], offsets[other] + sizes[other]) for other in conflicts[name] if other in offsets)
        offsets[name] = _best_fit(sizes[name], taken)
    return Arena(offsets, max((aligned(offsets[name] + sizes[name]) for name in sizes), default=0))


def aligned(size: int) -> int:
    """A size or an offset, rounded up to ALIGNMENT."""
    return round_up(size, ALIGNMENT)


def _best_fit(size: int, taken: Iterable[tuple[int, int]]) -> int:
    gaps: list[tuple[int, int]] = []
    end = 0
    for first, last in taken:
        if first - end >= size:
            gaps.append((first - end, end))
        end = max(end, aligned(last))
    return min(gaps)[1] if gaps else end


def _conflicts(names: Iterable[str], uses: Sequence[Use]) -> dict[str, set[str]]:
    """For each activation those that it must not share memory with. Sets of layers are bits of an int."""
    before: list[int] = []  # for each layer all that must have ended when it starts
    maker: dict[str, int] = {}
    users: dict[str, int] = dict.fromkeys(names, 0)
    for i, use in enumerate(uses):
        ended = 0
        for j in (maker[name] for name in use.reads if name in maker):
            ended |= before[j] | 1 << j
        before.append(ended)
        maker |= dict.fromkeys(use.writes, i)
        for name in (use.reads | use.writes) & users.keys():
            users[name] |= 1 << i

    def over(one: str, other: str) -> bool:
        """Whether all uses of `one` have ended when `other` is written."""
        return users[one] & ~before[maker[other]] == 0

    return {
        one: {other for other in users if other != one and not over(one, other) and not over(other, one)}
        for one in users
    }
