"""Axes of charts: from values to positions in an SVG picture."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Tick:
    """A labelled value of an axis.

    Attributes:
        at: Its position.
        label: Its text.
    """

    at: float
    label: str


@dataclass(frozen=True)
class Axis:
    """An axis with a linear or a logarithmic scale.

    Attributes:
        low: Lowest value.
        high: Highest value.
        start: Position of the lowest value.
        end: Position of the highest value.
        log: Whether the scale is logarithmic.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value, rounded to a tenth."""
        part = (
            math.log(value / self.low) / math.log(self.high / self.low)
            if self.log
            else (value - self.low) / (self.high - self.low)
        )
        return round(self.start + part * (self.end - self.start), 1)

    def ticks(self) -> tuple[Tick, ...]:
        """Return round values within the axis, about five to eight."""
        by_decades = self.log and self.high / self.low > 10
        values = _decades(self.low, self.high) if by_decades else _steps(self.low, self.high)
        return tuple(Tick(self.at(value), f"{value:,.10g}") for value in values)


def log_axis(values: Iterable[float], start: float, end: float, margin: float = 1.5) -> Axis:
    """Return a logarithmic axis from the least of positive values over `margin` to the greatest times `margin`."""
    found = list(values)
    return Axis(min(found) / margin, max(found) * margin, start, end, log=True)


def _decades(low: float, high: float) -> list[float]:
    """Return the powers of ten from low to high; with few of them also their double and fivefold."""
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    factors = (1,) if len(powers) > 4 else (1, 2, 5)
    return [factor * power for power in powers for factor in factors if low <= factor * power <= high]


def _steps(low: float, high: float) -> list[float]:
    """Return the multiples of 1, 2 or 5 times a power of ten that give at most eight values."""
    power = 10.0 ** math.floor(math.log10((high - low) / 8))
    step = next(factor * power for factor in (1, 2, 5, 10) if (high - low) / (factor * power) <= 8)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
