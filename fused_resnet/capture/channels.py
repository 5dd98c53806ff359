"""Concatenations, slices and shuffles of channels in a traced graph: no layers, until another node reads them.

`rearranged` says of each such node which channels of which other nodes it has. A chain of them is one rearrangement of
the values that it begins with, so chunk(shuffle(cat(a, b))) reads parts of a and b.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fused_resnet.capture.nodes import arguments, name_of


@dataclass(frozen=True)
class ChannelRange:
    """Channels `first` to `end` of the value of a node."""

    node: fx.Node
    first: int
    end: int


@dataclass(frozen=True)
class Channels:
    """A value of channels of other values.

    Attributes:
        ranges: The channels of other nodes, in order; none of these nodes is itself rearranged, unless a shuffle
            stands in the way.
        interleave: Groups of equal size of them, of which the value has one channel each in turn; 1 for no shuffle.
    """

    ranges: tuple[ChannelRange, ...]
    interleave: int = 1

    @property
    def count(self) -> int:
        """Return the number of channels."""
        return sum(part.end - part.first for part in self.ranges)

    def cut(self, first: int, end: int) -> Channels | None:
        """Return channels `first` to `end`; None if they divide a shuffle's groups unevenly."""
        groups = self.interleave
        if first % groups or end % groups:
            return None
        size, first, end = self.count // groups, first // groups, end // groups
        ranges = [
            part for group in range(groups) for part in _cut(self.ranges, group * size + first, group * size + end)
        ]
        return Channels(_joined(ranges), groups)


def rearranged(
    graph: fx.Graph, sources: Collection[fx.Node], is_constant: Callable[[fx.Node], bool], dtype: torch.dtype
) -> dict[fx.Node, Channels]:
    """Return the channels of each node of a graph that rearranges them.

    Args:
        graph: The graph of aten operators.
        sources: The graph's inputs; a rearrangement of values that do not depend on them is none.
        is_constant: Whether a node yields a constant.
        dtype: Dtype of the network; a rearrangement of values of another dtype is none.
    """
    fed = set(sources)
    found: dict[fx.Node, Channels] = {}

    def channels(node: Any) -> Channels | None:
        """Return the channels of a node, which may be its own; None for anything else than channels."""
        if not isinstance(node, fx.Node) or node not in fed or is_constant(node):
            return None
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.dtype != dtype or value.dim() not in (2, 4):
            return None
        return found.get(node) or Channels((ChannelRange(node, 0, value.shape[1]),))

    for node in graph.nodes:
        if node.op == "call_function" and fed.intersection(node.all_input_nodes):
            fed.add(node)
            if channels(node) and (rule := _RULES.get(name_of(node))) and (value := rule(node, channels)):
                assert value.count == node.meta["val"].shape[1]
                found[node] = value
    return {node: value for node, value in found.items() if node.meta["val"].numel()}  # no layer makes nothing


Lookup = Callable[[Any], Channels | None]


def _concatenation(node: fx.Node, channels: Lookup) -> Channels | None:
    given = arguments(node)
    parts = [channels(part) for part in given["tensors"]]
    dim = node.meta["val"].dim()
    if int(given.get("dim", 0)) % dim != 1 or None in parts:
        return None
    ranges: list[ChannelRange] = []
    for part, value in zip(given["tensors"], parts, strict=True):
        assert value is not None
        ranges += value.ranges if value.interleave == 1 else (ChannelRange(part, 0, value.count),)
    return Channels(_joined(ranges))


def _slice(node: fx.Node, channels: Lookup) -> Channels | None:
    given = arguments(node)
    source = channels(given["self"])
    if source is None or int(given["dim"]) % node.meta["val"].dim() != 1 or given["step"] != 1:
        return None
    first = _from_start(given["start"] or 0, source.count)
    return _part(given["self"], source, first, first + node.meta["val"].shape[1])


def _narrow(node: fx.Node, channels: Lookup) -> Channels | None:
    given = arguments(node)
    source = channels(given["self"])
    if source is None or int(given["dim"]) % node.meta["val"].dim() != 1:
        return None
    first = _from_start(given["start"], source.count)
    return _part(given["self"], source, first, first + given["length"])


def _chunk(node: fx.Node, channels: Lookup) -> Channels | None:
    """Return an element of the list that chunk, split or unsafe_split yields."""
    split, i = node.args
    if not isinstance(split, fx.Node) or name_of(split) not in _SPLITS or not isinstance(i, int):
        return None
    given = arguments(split)
    source = channels(given["self"])
    if source is None or int(given["dim"]) % node.meta["val"].dim() != 1:
        return None
    sizes = [part.shape[1] for part in split.meta["val"]]
    first = sum(sizes[: i % len(sizes)])
    return _part(given["self"], source, first, first + sizes[i])


def _selected(node: fx.Node, channels: Lookup) -> Channels | None:
    """Return one channel that select(x, 1, i) takes and unsqueeze(1) makes a dimension again."""
    given = arguments(node)
    select, dim = given["self"], int(given["dim"])
    if name_of(select) != "select" or dim % node.meta["val"].dim() != 1:
        return None
    given = arguments(select)
    source = channels(given["self"])
    if source is None or int(given["dim"]) % given["self"].meta["val"].dim() != 1:
        return None
    first = _from_start(given["index"], source.count)
    return _part(given["self"], source, first, first + 1)


def _channel_shuffle(node: fx.Node, channels: Lookup) -> Channels | None:
    given = arguments(node)
    return _shuffled(given["self"], channels, given["groups"])


def _reshaped(node: fx.Node, channels: Lookup) -> Channels | None:
    """Return a shuffle: view(n, g, c/g, h, w), its axes 1 and 2 exchanged, and view(n, c, h, w)."""
    turned = node.args[0]
    if not isinstance(turned, fx.Node) or not _exchanges(turned):
        return None
    grouped = turned.args[0]
    if not isinstance(grouped, fx.Node) or name_of(grouped) not in _VIEWS or not grouped.args:
        return None
    n, groups, size, *image = grouped.meta["val"].shape
    if 1 in (groups, size):
        return None  # no channel moves, so the node is a view
    if [n, groups * size, *image] != list(node.meta["val"].shape) or not isinstance(grouped.args[0], fx.Node):
        return None
    if grouped.args[0].meta["val"].shape != node.meta["val"].shape:
        return None
    return _shuffled(grouped.args[0], channels, groups)


def _exchanges(node: fx.Node) -> bool:
    """Return whether a node exchanges the axes 1 and 2 of a tensor of five dimensions, or of three."""
    name, value = name_of(node), node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() not in (3, 5):
        return False
    if name == "permute":
        axes = [int(axis) % value.dim() for axis in node.args[1]]  # type: ignore[union-attr, arg-type]
        return axes == [0, 2, 1, *range(3, value.dim())]
    return name in ("transpose", "swapaxes") and {int(axis) % value.dim() for axis in node.args[1:]} == {1, 2}  # type: ignore[arg-type]


def _shuffled(node: fx.Node, channels: Lookup, groups: int) -> Channels | None:
    source = channels(node)
    if source is None:
        return None
    ranges = source.ranges if source.interleave == 1 else (ChannelRange(node, 0, source.count),)
    return Channels(ranges, groups)


def _part(node: fx.Node, source: Channels, first: int, end: int) -> Channels:
    """Return channels of a node that has the channels `source`."""
    return source.cut(first, end) or Channels((ChannelRange(node, first, end),))


def _from_start(index: int, size: int) -> int:
    """Return a start of a slice as a number from 0 to size."""
    return max(0, index + size) if index < 0 else min(index, size)


def _cut(ranges: Sequence[ChannelRange], first: int, end: int) -> Iterator[ChannelRange]:
    begin = 0
    for part in ranges:
        size = part.end - part.first
        low, high = max(first - begin, 0), min(end - begin, size)
        if low < high:
            yield ChannelRange(part.node, part.first + low, part.first + high)
        begin += size


def _joined(ranges: Sequence[ChannelRange]) -> tuple[ChannelRange, ...]:
    """Return ranges without empty ones, and with neighbouring ones of the same node joined."""
    joined: list[ChannelRange] = []
    for part in (part for part in ranges if part.first < part.end):
        if joined and joined[-1].node is part.node and joined[-1].end == part.first:
            joined[-1] = ChannelRange(part.node, joined[-1].first, part.end)
        else:
            joined.append(part)
    return tuple(joined)


_SPLITS = {"chunk", "split", "split_with_sizes", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes"}
_VIEWS = {"view", "reshape", "_unsafe_view", "unflatten"}
_RULES: Mapping[str, Callable[[fx.Node, Lookup], Channels | None]] = {
    "cat": _concatenation,
    "concat": _concatenation,
    "concatenate": _concatenation,
    "slice": _slice,
    "narrow": _narrow,
    "getitem": _chunk,
    "unsqueeze": _selected,
    "channel_shuffle": _channel_shuffle,
    "flatten": _reshaped,
    **dict.fromkeys(("view", "reshape", "_unsafe_view"), _reshaped),
}
