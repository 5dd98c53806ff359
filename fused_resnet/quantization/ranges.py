"""Ranges of activations in 8-bit formats: the magnitude that becomes the largest number.

Larger magnitudes saturate. A smaller range loses outliers and resolves all other values more finely, so it pays where
few values are far larger than the rest.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from autotune.ir import ByteFormat
from fused_resnet.precisions import DEFAULT_METHOD, METHODS, PERCENTILE

__all__ = ["DEFAULT_METHOD", "METHODS", "MagnitudeHistogram", "range_of"]

BINS = 2048
_CANDIDATES = 128
"""Ranges that the method "mse" compares: from 1/_CANDIDATES of the largest magnitude up to it, in equal steps."""


class MagnitudeHistogram:
    """A histogram of the magnitudes of a tensor's values, over any number of batches.

    The bins have equal widths from 0 to `limit`, which doubles when a larger magnitude comes: pairs of bins are then
    added up.

    Attributes:
        largest: The largest magnitude.
        limit: Upper end of the last bin, at least `largest`.
        counts: Number of values in each of the BINS bins, float64.
    """

    def __init__(self) -> None:
        self.largest, self.limit = 0.0, 0.0
        self.counts = torch.zeros(BINS, dtype=torch.float64)

    def add(self, values: torch.Tensor) -> None:
        """Count the values of a tensor of any shape; all must be finite."""
        magnitudes = values.detach().abs().float().flatten()
        largest = float(magnitudes.amax())
        if largest < torch.finfo(torch.float32).tiny:
            largest = 0.0
        self.largest = max(self.largest, largest)
        if not self.limit:
            self.limit = largest
        while largest > self.limit:
            merged = self.counts.reshape(-1, 2).sum(1)
            self.counts = torch.cat([merged, torch.zeros_like(merged)])
            self.limit *= 2
        if self.limit:
            places = (magnitudes / self.limit * BINS).long().clamp_(max=BINS - 1)
            self.counts += torch.bincount(places, minlength=BINS).cpu()
        else:
            self.counts[0] += magnitudes.numel()


def _largest(histogram: MagnitudeHistogram, form: ByteFormat) -> float:
    return histogram.largest


def _percentile(histogram: MagnitudeHistogram, form: ByteFormat) -> float:
    """Return the upper end of the bin that the percentile lies in."""
    wanted = PERCENTILE / 100 * histogram.counts.sum()
    number = int(torch.searchsorted(histogram.counts.cumsum(0), wanted))
    return min(histogram.largest, (number + 1) * histogram.limit / BINS)


def _least_square_error(histogram: MagnitudeHistogram, form: ByteFormat) -> float:
    """Return the range with the least sum of squared errors of all values, each taken as the middle of its bin."""
    middles = (torch.arange(BINS, dtype=torch.float64) + 0.5) * (histogram.limit / BINS)
    ranges = histogram.largest * torch.arange(1, _CANDIDATES + 1, dtype=torch.float64) / _CANDIDATES
    scales = (ranges / form.largest)[:, None]
    errors = form.quantized(middles, scales) * scales - middles
    return float(ranges[int((histogram.counts * errors.square()).sum(1).argmin())])


_FUNCTIONS: dict[str, Callable[[MagnitudeHistogram, ByteFormat], float]] = {
    "max": _largest,
    "percentile": _percentile,
    "mse": _least_square_error,
}


def range_of(histogram: MagnitudeHistogram, method: str, form: ByteFormat) -> float:
    """Return the range in a format by one of METHODS; 0 if all values are 0."""
    return _FUNCTIONS[method](histogram, form) if histogram.largest else 0.0
