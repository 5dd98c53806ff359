"""Strategies that do not learn: the order of the prior, and a random order."""

from __future__ import annotations

import random

from autotune.search.space import Space
from autotune.search.study import Study, TrialSeconds


class PriorStudy(Study):
    """Tries all configs in ascending order of the predicted cost."""

    def propose(self, trial_seconds: TrialSeconds) -> int | None:
        """Return the free config with the lowest predicted cost."""
        return next(iter(self.free))


class RandomStudy(Study):
    """Tries all configs in a random order."""

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__(space)
        self._order = random.Random(seed).sample(range(self.total), self.total)

    def propose(self, trial_seconds: TrialSeconds) -> int | None:
        """Return the next free config of the random order."""
        while self._order[-1] not in self.free:
            self._order.pop()
        return self._order.pop()
