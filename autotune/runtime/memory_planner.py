"""Memory planning: place the activations of a network in one block, sharing memory where live ranges do not overlap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.core import round_up

ALIGNMENT = 256
"""Alignment of activations in bytes: that of CUDA's own allocator, and a multiple of every kernel's access width."""


@dataclass(frozen=True)
class LayerAccess:
    """The names of the activations that one layer reads and writes."""

    reads: frozenset[str]
    writes: frozenset[str]


@dataclass(frozen=True)
class Arena:
    """A memory plan.

    Attributes:
        offsets: Offset of each activation by name, in bytes.
        bytes: Size of the whole block.
    """

    offsets: Mapping[str, int]
    bytes: int


def plan_memory(sizes: Mapping[str, int], accesses: Sequence[LayerAccess]) -> Arena:
    """Place activations in one block of memory.

    Two activations share memory only if every layer that uses the first is an ancestor of the layer that writes the
    second, or the other way round. The order of launches alone frees nothing, because layers that do not depend on
    each other may run at the same time.

    The placement is greedy by size: the largest activation is placed first, each into the smallest gap between the
    activations that it interferes with.

    Args:
        sizes: Size of each activation by name, in bytes.
        accesses: The layers, each after those whose results it reads.
    """
    interference = _interference_graph(sizes, accesses)
    offsets: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        taken = sorted(
            (offsets[other], offsets[other] + sizes[other]) for other in interference[name] if other in offsets
        )
        offsets[name] = _best_fit(sizes[name], taken)
    return Arena(offsets, max((aligned(offsets[name] + sizes[name]) for name in sizes), default=0))


def aligned(size: int) -> int:
    """Return a size or an offset in bytes, rounded up to ALIGNMENT."""
    return round_up(size, ALIGNMENT)


def _best_fit(size: int, taken: Iterable[tuple[int, int]]) -> int:
    """Return the offset of the smallest gap of at least `size` bytes between ranges in ascending order."""
    gaps: list[tuple[int, int]] = []
    end = 0
    for first, last in taken:
        if first - end >= size:
            gaps.append((first - end, end))
        end = max(end, aligned(last))
    return min(gaps)[1] if gaps else end


def _interference_graph(names: Iterable[str], accesses: Sequence[LayerAccess]) -> dict[str, set[str]]:
    """Return for each activation the activations that must not share memory with it."""
    writer = {name: i for i, access in enumerate(accesses) for name in access.writes}
    ancestors = _ancestors(accesses, writer)
    users = {name: {i for i, access in enumerate(accesses) if name in access.reads | access.writes} for name in names}

    def ends_before(first: str, second: str) -> bool:
        """Return whether the live range of `first` has ended when `second` is written."""
        return users[first] <= ancestors[writer[second]]

    def interfere(one: str, other: str) -> bool:
        return one != other and not ends_before(one, other) and not ends_before(other, one)

    return {one: {other for other in users if interfere(one, other)} for one in users}


def _ancestors(accesses: Sequence[LayerAccess], writer: Mapping[str, int]) -> list[set[int]]:
    """Return for each layer the layers that have ended when it starts, because it depends on them.

    Args:
        accesses: The layers, each after those whose results it reads.
        writer: The layer that writes each activation, by name.
    """
    ancestors: list[set[int]] = []
    for access in accesses:
        parents = {writer[name] for name in access.reads if name in writer}
        ancestors.append(parents.union(*(ancestors[parent] for parent in parents)))
    return ancestors
