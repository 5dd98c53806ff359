"""Two databases side by side: the times of the problems and networks that both hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from autotune.report.records import DeviceReport, Report
from autotune.report.sentences import size

TIE = 0.01
"""Times that differ by less than this share count as equal: the spread of repeated tuning runs is about 1 %."""

FULL_BAR = 2.0
"""A longer bar would hide the differences of a few percent, which are the usual ones."""


@dataclass(frozen=True)
class ComparedTime:
    """A problem or a network in two databases.

    Attributes:
        name: Short text of the problem, or the key of the network.
        about: Text of the problem; empty for a network.
        layer_id: Id of the problem's layer in the first database; empty for a network.
        first_us: Time in the first database; None if it has none.
        second_us: Time in the second database; None if it has none.
    """

    name: str
    about: str
    layer_id: str
    first_us: float | None
    second_us: float | None

    @property
    def ratio(self) -> float | None:
        """Return the second time over the first one."""
        return self.second_us / self.first_us if self.first_us and self.second_us else None

    @property
    def bar(self) -> float:
        """Return the length of the ratio's bar from 0 to 1, on a logarithmic scale that ends at a ratio of FULL_BAR."""
        return min(abs(math.log(self.ratio)) / math.log(FULL_BAR), 1.0) if self.ratio else 0.0


@dataclass(frozen=True)
class Comparison:
    """A device in two databases.

    Attributes:
        first: Name of the device in the first database.
        second: Name of the device in the second one.
        networks: Networks that both have a time of.
        problems: The problems of both, those that differ most first; then those of one alone.
    """

    first: str
    second: str
    networks: tuple[ComparedTime, ...]
    problems: tuple[ComparedTime, ...]

    @property
    def ratios(self) -> list[float]:
        """Return the ratios of the problems that both have a time of."""
        return [one.ratio for one in self.problems if one.ratio is not None]

    @property
    def faster(self) -> tuple[int, int]:
        """Return for how many problems the first database, and the second one, has the shorter time."""
        ratios = self.ratios
        return sum(ratio > 1 + TIE for ratio in ratios), sum(ratio < 1 / (1 + TIE) for ratio in ratios)

    @property
    def mean_ratio(self) -> float | None:
        """Return the geometric mean of the ratios."""
        logs = [math.log(ratio) for ratio in self.ratios]
        return math.exp(math.fsum(logs) / len(logs)) if logs else None


def compare(first: Report, second: Report) -> tuple[Comparison, ...]:
    """Return a comparison for each device of the first database that the second one has a counterpart of.

    The counterpart has the same name; if both databases have one device only, it is that one.
    """
    return tuple(_compared(mine, other) for mine, other in _pairs(first, second))


def _pairs(first: Report, second: Report) -> Iterator[tuple[DeviceReport, DeviceReport]]:
    if len(first.devices) == len(second.devices) == 1:
        yield first.devices[0], second.devices[0]
        return
    others = {device.name: device for device in second.devices}
    for device in first.devices:
        if device.name in others:
            yield device, others[device.name]


def _compared(first: DeviceReport, second: DeviceReport) -> Comparison:
    mine = {layer.problem: layer for layer in first.layers if layer.us}
    others = {layer.problem: layer for layer in second.layers if layer.us}
    problems = [
        ComparedTime(
            (mine.get(text) or others[text]).name,
            text,
            mine[text].id if text in mine else "",
            mine[text].us if text in mine else None,
            others[text].us if text in others else None,
        )
        for text in dict.fromkeys((*mine, *others))
    ]
    plans = {network.key: network.us for network in second.networks if network.us}
    networks = [
        ComparedTime(f"{network.key}, {size(network)}", network.key, "", network.us, plans[network.key])
        for network in first.networks
        if network.us and network.key in plans
    ]
    return Comparison(first.name, second.name, tuple(networks), tuple(sorted(problems, key=_least_alike)))


def _least_alike(one: ComparedTime) -> float:
    return -abs(math.log(one.ratio)) if one.ratio else math.inf
