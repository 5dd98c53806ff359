"""The launch values that a large run leaves for later: only those of kernels that may be the fastest are tried."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import NamedTuple, Protocol

PROMISING = 1.3
"""A kernel whose first launch takes more than this many times the best first launch gets no others. In a tune of
MobileNetV2 no other launch of such a kernel of sm90_conv2d was a new best."""


class FirstLaunch(Protocol):
    """A kernel whose first launch was tried."""

    def try_others(self) -> None:
        """Try its other launches."""

    def leave(self) -> None:
        """Try no more launches."""


class _Kernel(NamedTuple):
    """A kernel whose first launch was tried; those nearest to the best one come first."""

    ratio: float
    number: int
    us: float
    space: Hashable
    tried: FirstLaunch


class OtherLaunches:
    """Kernels whose first launch was tried and whose others wait.

    First launches are compared with each other, not with the best time of the problem: the first launch of a family may
    be slower than its others by the same factor for all kernels.
    """

    def __init__(self) -> None:
        self._best_us: dict[Hashable, float] = {}
        self._waiting: list[_Kernel] = []  # a heap
        self._num_added = 0

    def add(self, space: Hashable, us: float, tried: FirstLaunch) -> None:
        """Let a kernel wait, or leave it at once if it is too slow.

        Args:
            space: Kernels of one space are compared with each other: those of a family for a problem.
            us: Microseconds of its first launch.
            tried: The kernel.
        """
        best = self._best_us[space] = min(us, self._best_us.get(space, us))
        if us > PROMISING * best:
            tried.leave()
            return
        self._num_added += 1
        heapq.heappush(self._waiting, _Kernel(us / best, self._num_added, us, space, tried))

    def advance(self, count: int | None = None) -> bool:
        """Try the other launches of up to `count` kernels (None: of all), and leave those that are too slow by now.

        Returns:
            Whether a kernel waited.
        """
        found = bool(self._waiting)
        while self._waiting and count != 0:
            kernel = heapq.heappop(self._waiting)
            if kernel.us > PROMISING * self._best_us[kernel.space]:
                kernel.tried.leave()
                continue
            kernel.tried.try_others()
            count = None if count is None else count - 1
        return found
