"""Calls of torch's convolutions -> problems."""

import pytest
import torch

from fused_resnet.training.convolution_passes.passes import BACKWARD, FORWARD, passes

GEOMETRY = ([2, 1], [1, 0], [1, 1], False, [0, 0], 2)


def tensors(dtype=torch.float32):
    x, weight = torch.empty(4, 6, 9, 8, dtype=dtype), torch.empty(10, 3, 3, 1, dtype=dtype)
    return x, weight, torch.empty(4, 10, 5, 8, dtype=dtype)


def test_the_forward_pass():
    x, weight, _ = tensors()
    (found,) = passes(FORWARD, (x, weight, None, *GEOMETRY))
    assert str(found.problem) == (
        "conv2d n=4 h=9 w=8 c=6 k=10 r=3 s=1 stride=2,1 pad=1,0 dilation=1,1 groups=2 dtype=f32 epilogue=none"
    )
    assert found.operands == (x, weight) and found.result == 0


@pytest.mark.parametrize("mask", [(True, True, True), (False, True, False), (True, False, True), (False, False, True)])
def test_the_gradients_that_are_wanted(mask):
    x, weight, dy = tensors(torch.bfloat16)
    found = passes(BACKWARD, (dy, x, weight, [10], *GEOMETRY, list(mask)))
    assert [one.result for one in found] == [i for i in (0, 1) if mask[i]]
    for one in found:
        assert one.problem.operator == ("conv2d_dgrad", "conv2d_wgrad")[one.result]
        assert one.problem.dtype == "bf16" and (one.problem.h, one.problem.w, one.problem.k) == (9, 8, 10)
        assert all(a is b for a, b in zip(one.operands, ((dy, weight), (dy, x))[one.result], strict=True))
        shapes = [tuple(operand.shape) for operand in one.problem.operands()]
        assert shapes[0] == (4, 5, 8, 10)


@pytest.mark.parametrize(
    ("x", "weight", "geometry"),
    [
        ((4, 6, 9, 8), (6, 3, 3, 1), ([1, 1], [0, 0], [1, 1], True, [0, 0], 1)),
        ((4, 6, 9), (10, 6, 3), ([1], [0], [1], False, [0], 1)),
        ((4, 6, 2, 2), (10, 6, 3, 3), ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)),
    ],
)
def test_what_is_no_problem(x, weight, geometry):
    assert passes(FORWARD, (torch.empty(x), torch.empty(weight), None, *geometry)) == []


def test_other_dtypes_and_operators_have_no_passes():
    x, weight, _ = tensors(torch.float64)
    assert passes(FORWARD, (x, weight, None, *GEOMETRY)) == []
    assert passes(torch.ops.aten.relu.default, (x,)) == []
