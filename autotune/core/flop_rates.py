"""Arithmetic rates in a unit that fits the device: TFLOP/s on a GPU, GFLOP/s on a CPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FlopUnit:
    """A unit of arithmetic rates.

    Attributes:
        name: Such as "TFLOP/s".
        flops_per_us: FLOP per microsecond in one unit.
    """

    name: str
    flops_per_us: float

    def text(self, flops_per_us: float, digits: int = 4) -> str:
        """Return a rate with the unit, such as "41.07 GFLOP/s"."""
        return f"{flops_per_us / self.flops_per_us:.{digits}g} {self.name}"


def flop_unit(peak: float) -> FlopUnit:
    """Return the unit for the rates of a device, by its highest rate in FLOP per microsecond."""
    return FlopUnit("TFLOP/s", 1e6) if peak >= 1e6 else FlopUnit("GFLOP/s", 1e3)
