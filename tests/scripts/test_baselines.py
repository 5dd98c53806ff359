"""The baselines of `autotune bench` have the settings that their labels claim."""

import pytest
import torch
from torch import nn

from autotune_cli import baselines
from autotune_cli.models import Model


class Changeable(baselines.BaselineInput):
    """A case whose last network is kept, so that its weights can be changed after it was compiled."""

    def eager(self, layout=torch.contiguous_format):
        object.__setattr__(self, "network", super().eager(layout))
        return self.network


@pytest.mark.compile
@pytest.mark.parametrize(("variant", "freezes"), [("compile", False), ("compile_frozen", True)])
def test_freezing_makes_the_weights_constants_of_the_compiled_code(variant, freezes):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(4, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()).eval()
    x = torch.randn(2, 4, 8, 8)
    case = Changeable(Model("small", (4, 8, 8), module), "", None, x, torch.empty(0))
    (build,) = (one.build for one in baselines.VARIANTS if one.name == variant)
    run = build(case)
    with torch.inference_mode():
        before = run().clone()
        assert torch.allclose(before, module(x), atol=1e-5)
        case.network[0].weight.mul_(2)
        changed = not torch.equal(before, run())
    assert changed is not freezes
