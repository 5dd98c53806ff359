"""stem problems against their two parts."""

import torch

from autotune.ir.operators import Stem


def test_a_stem_is_a_convolution_and_a_pool():
    conv, pool = torch.nn.Conv2d(3, 64, 7, 2, 3), torch.nn.MaxPool2d(3, 2, 1)
    problem = Stem(
        n=2, h=50, w=37, c=3, k=64, r=7, s=7, stride=(2, 2), pad=(3, 3), pool=3, pool_stride=2, pool_pad=1, dtype="f32"
    )
    between = conv(torch.randn(2, 3, 50, 37))
    n, k, p, q = pool(between).shape
    assert problem.output_shape == (n, p, q, k)
    assert problem.flops == 2 * between.numel() * 3 * 7 * 7
    assert [operand.shape for operand in problem.operands()] == [(2, 3, 50, 37), conv.weight.shape, (n, p, q, k)]
