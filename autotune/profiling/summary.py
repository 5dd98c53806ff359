"""What a profile comes to: its totals against what was measured, and its time by library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autotune.profiling.attribution import Profile
from autotune.profiling.tree import Node


@dataclass(frozen=True)
class Totals:
    """Microseconds a call. measured: by device events around calls without the profiler; profiled: with it.

    as_used: the network as its users run it, where that is not what was profiled: FusedResNet's CUDA graph.
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
        """How much more the profile has than was measured without the profiler, as a share of that."""
        return self.total_us / self.measured_us - 1

    @property
    def profiled_difference(self) -> float:
        """The same against what was measured in the recorded calls themselves."""
        return self.total_us / self.profiled_us - 1


@dataclass(frozen=True)
class Library:
    """All kernels of one library. calls: launches in one call of the network."""

    name: str
    open: bool
    kernels: int
    calls: float
    us: float


def totals(profile: Profile) -> Totals:
    """A profile's sums, and what they must come to."""
    about = profile.about
    lost = sum(kernel.us for kernel in profile.unattributed.values())
    return Totals(
        profile.kernels_us, profile.wait_us, lost, profile.total_us,
        about["measured_us"], about["profiled_us"], about["as_used_us"],
    )  # fmt: skip


def libraries(root: Node) -> list[Library]:
    """The libraries that a tree's kernels come from, the most time first."""
    kernels: dict[tuple[str, bool], list[Node]] = {}
    for _, node in root.walk():
        if node.kind == "kernel":
            kernels.setdefault((node.library, bool(node.open)), []).append(node)
    found = []
    for (name, is_open), nodes in kernels.items():
        names, calls, us = {node.text for node in nodes}, sum(n.calls for n in nodes), sum(n.us for n in nodes)
        found.append(Library(name, is_open, len(names), calls, us))
    return sorted(found, key=lambda library: -library.us)


def side_by_side(before: Node, after: Node) -> list[tuple[str, Node | None, Node | None]]:
    """Modules of two trees by path: those that both have, each followed by what either has right below it.

    What only one has is, in the other, part of the layers around it: fused into them.
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
    """All of a profile."""
    sums = totals(profile)
    return {
        "about": {key: value for key, value in profile.about.items() if key not in ("modules", "layers")},
        "totals": vars(sums) | {"difference": sums.difference, "profiled_difference": sums.profiled_difference},
        "libraries": [vars(library) for library in libraries(root)],
        "layers": profile.about["layers"],
        "tree": root.as_dict(),
    }
