"""Output extents of windows against torch."""

import torch

from autotune.ir.problem import (
    output_extent,
)


def test_output_extent_is_torchs_for_every_small_window():
    for size in range(3, 12):
        for kernel, stride, pad, dilation in [(1, 1, 0, 1), (3, 2, 1, 1), (3, 1, 2, 2), (2, 3, 0, 1), (2, 2, 1, 2)]:
            x = torch.randn(1, 1, size)
            expected = torch.nn.functional.conv1d(x, torch.randn(1, 1, kernel), None, stride, pad, dilation).shape[-1]
            assert output_extent(size, kernel, stride, pad, dilation) == expected
