"""Regions in modes that change nothing in inference are captured, by both doors."""

import warnings

import pytest
import torch
from comparison import relative_error
from torch import nn
from torch.utils.checkpoint import checkpoint

from fused_resnet import FusedResNet

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3)
        self.norm = nn.BatchNorm2d(8, track_running_stats=False)


class AutocastOff(Convolutions):
    """Has a region without autocast, with another region inside, several results, and a region behind it."""

    def forward(self, x):
        y = self.first(x)
        with torch.autocast(x.device.type, enabled=False):
            y = y.float()
            with torch.no_grad():
                z = self.second(y)
            mean = z.mean((2, 3))
        with torch.autocast(x.device.type, enabled=False):
            return self.second(y).relu(), z, mean


class Checkpointed(Convolutions):
    def forward(self, x):
        return checkpoint(lambda value: self.second(self.first(value)).relu(), x, use_reentrant=False) + 1


class OwnStatistics(Convolutions):
    """Normalizes by the statistics of the input in eval mode, too."""

    def forward(self, x):
        return self.norm(self.first(x))


@pytest.mark.parametrize("kind", [AutocastOff, Checkpointed, OwnStatistics])
@pytest.mark.parametrize("door", ["from_model", "compile"])
def test_they_are_captured(door, kind, empty_db):
    torch._dynamo.reset()
    model = kind().eval()
    if door == "compile":
        fast = torch.compile(model, backend="autotune", options={"tuning_db": str(empty_db)})
    else:
        fast = FusedResNet.from_model(model, empty_db, compile=False)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", "backend='autotune' ")  # no graph is left to Inductor
        for n in (2, 3):
            x = torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(n))
            found, expected = fast(x), model(x)
            for ours, theirs in zip(found, expected, strict=True):
                assert relative_error(ours, theirs.double()) < 1e-5
