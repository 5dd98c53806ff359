"""Strategies that learn nothing: the prior's order, and an order by chance."""

from __future__ import annotations

import random

from autotune.search.space import Seconds, Space, Study


class Prior(Study):
    """The prior's best first, to the end."""

    def choose(self, seconds: Seconds) -> int | None:
        """The best of the free ones."""
        return next(iter(self.free))


class Random(Study):
    """Any of the free ones, all alike."""

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__(space)
        self._order = random.Random(seed).sample(range(self.total), self.total)

    def choose(self, seconds: Seconds) -> int | None:
        """The next in an order by chance."""
        while self._order[-1] not in self.free:
            self._order.pop()
        return self._order.pop()
