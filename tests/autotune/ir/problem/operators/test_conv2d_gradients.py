"""conv2d_dgrad and conv2d_wgrad problems against the forward pass."""

import random

import pytest
from comparison import relative_error
from kernels import random_inputs
from problems import random_conv
from reference import solve

from autotune.ir import Epilogue, parse, turn_weight
from autotune.ir.operators import Conv2d, Conv2dDgrad, Conv2dWgrad


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


@pytest.mark.parametrize(
    "sizes",
    [
        "n=2 h=5 w=7 c=3 k=4",
        "n=2 h=5 w=7 c=4 k=6 r=3 s=3 pad=1 groups=2",
        "n=1 h=9 w=8 c=2 k=3 r=5 s=2 pad=1,0",
        "n=1 h=9 w=11 c=6 k=3 r=3 s=3 pad=0,2 dilation=2,1 groups=3",
    ],
)
def test_a_gradient_by_the_input_is_a_convolution_with_the_turned_weight(sizes):
    problem = parse(f"conv2d_dgrad {sizes} dtype=f32")
    convolution = problem.as_convolution()
    tensors, _ = random_inputs(problem)
    turned = {"x": tensors["dy"], "weight": turn_weight(tensors["weight"], problem.groups)}
    assert [tuple(operand.shape) for operand in convolution.operands()[:2]] == [one.shape for one in turned.values()]
    found, expected = solve(convolution, turned, ())["y"], solve(problem, tensors, ())["y"]
    assert relative_error(found, expected) < 1e-12


@pytest.mark.parametrize("sizes", ["stride=2", "r=1 s=1 pad=1", "r=3 s=3 pad=1,3", "epilogue=relu"])
def test_other_gradients_by_the_input_are_none(sizes):
    assert parse(f"conv2d_dgrad n=1 h=8 w=8 c=4 k=4 {sizes} dtype=f32").as_convolution() is None
