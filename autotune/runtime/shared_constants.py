"""The constants of a module's plans: a module has a plan for each size, and each packed weight once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from weakref import WeakValueDictionary

import torch

Pack = Callable[[str, torch.Tensor, str, int], torch.Tensor]
"""Function (operand, weight, layout, groups) -> the weight in that layout, as `pack_weight` returns it."""


class SharedConstants:
    """Constants and packed weights that some plan holds.

    They are valid for one state of the module's tensors: after a change of a weight another object takes its place.
    """

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Hashable, torch.Tensor] = WeakValueDictionary()

    def get(self, key: Hashable, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the constant of a key; `make` makes it if no plan holds it."""
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = make()
        return found

    def alive(self) -> list[torch.Tensor]:
        """Return the constants that some plan holds."""
        return list(self._known.values())
