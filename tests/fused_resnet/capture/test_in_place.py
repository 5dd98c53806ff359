"""Changes in place: captured networks compute what the module does, and change no state."""

import pytest
import torch
import torch.nn.functional as F
from architectures import Of, images
from torch import nn

from autotune.core import CaptureError
from fused_resnet import FusedResNet
from fused_resnet.capture import capture

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


def of(function):
    weight = torch.rand(1, 8, 1, 1, generator=torch.Generator().manual_seed(3)) + 1
    return Of(function, weight=nn.Parameter(weight)).eval()


def compares(m, y):
    y.gt_(0)
    return y.flatten(2) @ y.flatten(2).transpose(1, 2)


def counts_twice(m, y):
    z = (y * 9).int()
    z.gt_(2)
    return z + z


def masks_a_copy(m, y):
    weight = m.conv.weight.transpose(0, 1).clone()
    weight[:, :, 1, 1] -= weight.sum((2, 3))
    return F.conv2d(y, weight)


def changes_a_constant(m, y):
    scale = torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8])
    scale[2:4] = 7
    scale.mul_(2)
    return y * scale.view(8, 1, 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda m, y: y.pow_(2) + 1,
        lambda m, y: (y * 9).long().pow_(3),
        lambda m, y: y.abs().pow_(y),
        compares,
        counts_twice,
        masks_a_copy,
        changes_a_constant,
        lambda m, y: y * m.weight.clone().add_(1) + m.weight,
        lambda m, y: y * m.weight.detach().clone().view(-1).relu_().view(8, 1, 1),
        lambda m, y: y + m.weight.expand(len(y), 8, 8, 8).contiguous().sub_(y).relu_(),
    ],
)
def test_what_is_changed_in_place_comes_out_right(function, empty_db):
    model, x = of(function), images(2, 8)
    with torch.no_grad():
        torch.testing.assert_close(FusedResNet.from_model(model, empty_db)(x), model(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda m, y: y * m.weight.contiguous().add_(1),
        lambda m, y: y * m.weight.detach().view(-1).add_(1).view(8, 1, 1),
        lambda m, y: y * m.weight.chunk(2, 1)[0].relu_()[:, :1],
    ],
)
def test_a_copy_that_torch_does_not_make_is_state(function):
    with pytest.raises(CaptureError, match="forward changes 'weight'"):
        capture(of(function), (2, 3, 8, 8), "f32")
