"""conv2d problems against torch."""

import random

import pytest
import torch
from problems import random_conv

from autotune.ir import Epilogue, parse
from autotune.ir.operators import Conv2d


@pytest.mark.parametrize("seed", range(40))
def test_random_conv_round_trips_and_has_torchs_shape(seed):
    fields = random_conv(random.Random(seed))
    problem = Conv2d(**fields, dtype="f32", epilogue=Epilogue.parse("bias,add,store"))
    assert parse(str(problem)) == problem
    conv = torch.nn.Conv2d(
        fields["c"],
        fields["k"],
        (fields["r"], fields["s"]),
        fields["stride"],
        fields["pad"],
        fields["dilation"],
        fields["groups"],
    )
    n, k, p, q = conv(torch.randn(fields["n"], fields["c"], fields["h"], fields["w"])).shape
    assert problem.output_shape == (n, p, q, k)
    operands = {operand.name: operand for operand in problem.operands()}
    assert operands["weight"].shape == tuple(conv.weight.shape)
    assert problem.flops == 2 * n * p * q * conv.weight.numel()
