"""Pool problems against torch."""

import random

import pytest
import torch

from autotune.ir.operators import AvgPool2d, MaxPool2d


@pytest.mark.parametrize("seed", range(10))
def test_pool_has_torchs_shape(seed):
    rng = random.Random(seed)
    window, stride = (rng.randint(2, 4), rng.randint(2, 4)), (rng.randint(1, 3), rng.randint(1, 3))
    problem = AvgPool2d(n=2, h=9, w=11, c=5, r=window[0], s=window[1], stride=stride, pad=(1, 1), dtype="f32")
    n, c, p, q = torch.nn.AvgPool2d(window, stride, 1)(torch.randn(2, 5, 9, 11)).shape
    assert problem.output_shape == (n, p, q, c)


@pytest.mark.parametrize("size", range(2, 14))
@pytest.mark.parametrize("ceil", [0, 1])
def test_max_pool_has_torchs_shape(size, ceil):
    for window, stride, pad in [(3, 2, 0), (3, 2, 1), (2, 2, 0), (2, 2, 1), (2, 3, 0), (2, 3, 1), (4, 3, 2), (1, 2, 0)]:
        if size + 2 * pad < window:
            continue
        expected = torch.nn.MaxPool2d(window, stride, pad, ceil_mode=bool(ceil))(torch.randn(1, 1, size, 9)).shape
        problem = MaxPool2d(
            n=1, h=size, w=9, c=1, r=window, s=window, stride=(stride,) * 2, pad=(pad,) * 2, ceil=ceil, dtype="f32"
        )
        assert problem.output_shape == (1, expected[2], expected[3], 1)
