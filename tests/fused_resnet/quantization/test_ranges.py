"""Ranges of activations: histograms over batches, and methods against the values themselves."""

import pytest
import torch

from autotune.core import UnknownNameError
from autotune.ir import BYTE_FORMATS, E4M3, S8
from fused_resnet.quantization import METHODS
from fused_resnet.quantization.calibrate import calibrate
from fused_resnet.quantization.ranges import BINS, PERCENTILE, MagnitudeHistogram, range_of


def batches(generator, tail=3.0):
    """Return batches of values with few large ones; later batches are larger, so that the histogram has to grow."""
    return [scale * torch.randn(4, 50, 100, generator=generator) ** tail for scale in (0.1, 1.0, 0.5, 40.0, 3.0)]


def histogram_of(tensors):
    histogram = MagnitudeHistogram()
    for tensor in tensors:
        histogram.add(tensor)
    return histogram


def square_error(values, limit, form=S8):
    scale = limit / form.largest
    return float((form.quantized(values, scale).double() * scale - values.double()).square().sum())


def test_a_histogram_that_grows_counts_as_one_that_knew_its_end(generator):
    tensors = batches(generator)
    histogram = histogram_of(tensors)
    magnitudes = torch.cat([one.flatten() for one in tensors]).abs()
    assert histogram.largest == float(magnitudes.max()) <= histogram.limit < 2 * histogram.largest
    assert histogram.limit > float(tensors[0].abs().max())
    edges = torch.arange(BINS + 1, dtype=torch.float64) * (histogram.limit / BINS)
    expected = torch.histogram(magnitudes.double(), edges)[0]
    assert histogram.counts.sum() == magnitudes.numel()
    assert (histogram.counts.cumsum(0) - expected.cumsum(0)).abs().max() <= 2  # values on an edge


def test_a_percentile_is_that_of_the_values(generator):
    tensors = batches(generator)
    histogram = histogram_of(tensors)
    magnitudes = torch.cat([one.flatten() for one in tensors]).abs()
    exact = float(magnitudes.quantile(PERCENTILE / 100))
    assert exact <= range_of(histogram, "percentile", S8) + histogram.limit / BINS
    assert range_of(histogram, "percentile", S8) == pytest.approx(exact, abs=2 * histogram.limit / BINS)
    assert range_of(histogram, "percentile", S8) < 0.8 * range_of(histogram, "max", S8) == 0.8 * float(magnitudes.max())


@pytest.mark.parametrize("form", BYTE_FORMATS.values(), ids=BYTE_FORMATS)
@pytest.mark.parametrize("tail", [1.0, 3.0, 5.0])
def test_the_least_square_error_is_that_of_the_values(generator, tail, form):
    values = torch.randn(20000, generator=generator) ** tail
    histogram = histogram_of(values.split(5000))
    found = range_of(histogram, "mse", form)
    tried = [histogram.largest * i / 300 for i in range(2, 301)]
    assert square_error(values, found, form) <= 1.03 * min(square_error(values, one, form) for one in tried)
    assert square_error(values, found, form) <= square_error(values, histogram.largest, form) * 1.005


def test_the_steps_of_a_format_decide_its_range(generator):
    """Steps of e4m3 shrink with the values, so a range up to an outlier costs nothing; those of int8 do not."""
    values = torch.randn(1_000_000, generator=generator)
    values[0] = 30
    of_bytes, of_floats = (range_of(histogram_of([values]), "mse", form) for form in (S8, E4M3))
    assert of_bytes < 10 and of_floats > 28
    assert square_error(values, of_floats, E4M3) < square_error(values, of_bytes, E4M3)


def test_values_that_are_zero_have_no_range():
    histogram = histogram_of([torch.zeros(10), torch.zeros(3)])
    assert [range_of(histogram, method, S8) for method in METHODS] == [0.0] * len(METHODS)
    histogram.add(torch.tensor([0.5]))
    assert range_of(histogram, "max", S8) == 0.5 and histogram.counts.sum() == 14


def test_no_method_has_a_larger_range_than_the_largest_magnitude(generator):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3)).eval()
    images = [torch.randn(8, 3, 40, 40, generator=generator) ** 3 for _ in range(3)]
    scales = {method: calibrate(model, images, method) for method in METHODS}
    assert scales["max"] == calibrate(model, images)
    for method in ("percentile", "mse"):
        assert scales[method].keys() == scales["max"].keys()
        assert all(scales[method][name] <= scale for name, scale in scales["max"].items())
        assert any(scales[method][name] < 0.95 * scale for name, scale in scales["max"].items())
    with pytest.raises(UnknownNameError, match="entropy"):
        calibrate(model, images, "entropy")
    with pytest.raises(UnknownNameError, match="unknown calibrated precision 'tf32': choose one of int8, fp8"):
        calibrate(model, images, precision="tf32")
