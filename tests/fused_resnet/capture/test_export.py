"""A capture leaves no reference to a parameter behind, and no export in progress."""

import copy
import weakref

import pytest
import torch
from architectures import Function
from comparison import relative_error
from torch import nn

from fused_resnet import FusedResNet

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


def from_model(model, database):
    return FusedResNet.from_model(model, database, compile=False)


def compiled(model, database):
    return torch.compile(model, backend="autotune", options={"tuning_db": database})


@pytest.mark.parametrize("door", [from_model, compiled])
@torch.no_grad()
def test_parameters_can_be_swapped_after_a_call(door, empty_db, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_INDUCTOR", "0")

    def changes(x):
        return x.chunk(2, 1)[0].add_(1)  # is replaced by torch's functionalization, which holds parameters, too

    def forward(m, x):
        y = m.conv(x)
        return y + changes(y).sum()

    model, x = Function(forward, conv=nn.Conv2d(3, 8, 3)).eval(), torch.randn(2, 3, 8, 8)
    fast = door(model, str(empty_db))
    fast(x)
    plain = fast._plain if isinstance(fast, FusedResNet) else model
    for parameter in plain.parameters():
        assert not weakref.getweakrefs(parameter)
        torch.utils.swap_tensors(parameter, nn.Parameter(torch.randn_like(parameter)))
    assert relative_error(fast(x), copy.deepcopy(plain).double()(x.double())) < 1e-5
