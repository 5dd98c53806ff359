"""Summaries of a profile: its totals against the measured times, and its time by library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autotune.profiling.attribution import Profile
from autotune.profiling.tree import Node


@dataclass(frozen=True)
class Totals:
    """Sums of a profile and measured times, in microseconds per call.

    kernels_us, wait_us, unattributed_us: All kernels, all waits, and the kernels that no module launched.
    total_us: Kernels and waits.
    measured_us: Calls between device events, without the profiler.
    profiled_us: The recorded calls between device events.
    as_used_us: The network as its users run it, such as FusedResNet's CUDA graph; None if that is what was profiled.
    """

    kernels_us: float
    wait_us: float
    unattributed_us: float
    total_us: float
    measured_us: float
    profiled_us: float
    as_used_us: float | None

    @property
    def difference(self) -> float:
        """Relative difference of the profile's total from the measured time."""
        return self.total_us / self.measured_us - 1

    @property
    def profiled_difference(self) -> float:
        """Relative difference of the profile's total from the time of the recorded calls."""
        return self.total_us / self.profiled_us - 1


@dataclass(frozen=True)
class LibraryTotals:
    """All kernels of one library.

    open: Whether the source of the kernels can be read.
    kernels: Number of different kernels.
    calls: Launches in one call of the network.
    """

    name: str
    open: bool
    kernels: int
    calls: float
    us: float


def totals(profile: Profile) -> Totals:
    """Return the sums of a profile and the times that they are compared with."""
    about = profile.about
    lost = sum(kernel.us for kernel in profile.unattributed.values())
    return Totals(
        profile.kernels_us, profile.wait_us, lost, profile.total_us,
        about["measured_us"], about["profiled_us"], about["as_used_us"],
    )  # fmt: skip


def libraries(root: Node) -> list[LibraryTotals]:
    """Return the libraries that a tree's kernels come from, the one with most time first."""
    kernels: dict[tuple[str, bool], list[Node]] = {}
    for _, node in root.walk():
        if node.kind == "kernel":
            kernels.setdefault((node.library, bool(node.open)), []).append(node)
    found = []
    for (name, is_open), nodes in kernels.items():
        names, calls, us = {node.text for node in nodes}, sum(n.calls for n in nodes), sum(n.us for n in nodes)
        found.append(LibraryTotals(name, is_open, len(names), calls, us))
    return sorted(found, key=lambda library: -library.us)


def side_by_side(before: Node, after: Node) -> list[tuple[str, Node | None, Node | None]]:
    """Return the modules of two trees side by side, by path.

    A module that both trees have is followed by the modules directly below it in either tree. A module that only one
    tree has is, in the other one, fused into the layers around it.
    """
    left, right = before.modules(), after.modules()
    below: dict[str, list[str]] = {}
    for path in {**left, **right}:
        if path:
            below.setdefault(path.rpartition(".")[0], []).append(path)

    def rows(path: str) -> Iterator[tuple[str, Node | None, Node | None]]:
        yield path, left.get(path), right.get(path)
        if path in left and path in right:
            for inner in below.get(path, []):
                yield from rows(inner)

    return list(rows(""))


def as_json(profile: Profile, root: Node) -> dict[str, Any]:
    """Return everything in a profile as JSON has it."""
    sums = totals(profile)
    return {
        "about": {key: value for key, value in profile.about.items() if key not in ("modules", "layers")},
        "totals": vars(sums) | {"difference": sums.difference, "profiled_difference": sums.profiled_difference},
        "libraries": [vars(library) for library in libraries(root)],
        "layers": profile.about["layers"],
        "tree": root.as_dict(),
    }
