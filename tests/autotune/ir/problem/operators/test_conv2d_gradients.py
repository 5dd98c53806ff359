"""conv2d_dgrad and conv2d_wgrad problems against the forward pass."""

import random

import pytest
from problems import random_conv

from autotune.ir import (
    Conv2d,
    Conv2dDgrad,
    Conv2dWgrad,
    Epilogue,
)


@pytest.mark.parametrize("seed", range(10))
def test_gradients_exchange_the_operands_of_the_forward_pass(seed):
    fields = random_conv(random.Random(seed))
    forward, dgrad, wgrad = (cls(**fields, dtype="f32") for cls in (Conv2d, Conv2dDgrad, Conv2dWgrad))
    x, weight, y = (operand.shape for operand in forward.operands())
    listed = [[(o.name, o.role, o.shape) for o in problem.operands()] for problem in (dgrad, wgrad)]
    last = (weight[0], weight[2], weight[3], weight[1])
    assert listed[0] == [("dy", "input", y), ("weight", "weight", weight), ("y", "output", x)]
    assert listed[1] == [("dy", "input", y), ("x", "input", x), ("y", "output", last)]
    assert forward.flops == dgrad.flops == wgrad.flops
    assert forward.bytes == dgrad.bytes == wgrad.bytes


def test_channels_of_a_gradients_epilogue_are_its_last_axis():
    fields = {"n": 1, "h": 5, "w": 5, "c": 12, "k": 6, "groups": 2, "dtype": "f16", "epilogue": Epilogue.parse("bias")}
    assert Conv2dDgrad(**fields).operands()[-1].shape == (12,)
    assert Conv2dWgrad(**fields).operands()[-1].shape == (6,)
