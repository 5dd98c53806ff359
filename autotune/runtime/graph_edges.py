"""Edges of a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterable


class GraphEdges:
    """The edges of a CUDA graph whose nodes are added one after the other, without those that a path implies.

    The last kernel of a residual block reads the block's input, and it waits for the kernel before it, which has
    waited for that input. A kernel with one predecessor starts while that one ends. A kernel with a second edge, from
    the input, starts later (docs/experiments/graph-order.md).
    """

    def __init__(self) -> None:
        self._ancestors: list[int] = []  # of each node, as a set of bits

    def add(self, before: Iterable[int]) -> list[int]:
        """Add a node.

        Args:
            before: Numbers of the nodes that have to end before it starts, counted from 0.

        Returns:
            The nodes from which it needs an edge, ascending: those of `before` that are no ancestors of others.
        """
        nodes = sorted(set(before))
        implied = 0
        for node in nodes:
            implied |= self._ancestors[node]
        self._ancestors.append(implied | sum(1 << node for node in nodes))
        return [node for node in nodes if not implied >> node & 1]
