"""NaN and infinities come out of a network where they come out of PyTorch, through both doors."""

import pytest
import torch
from torch import nn

from fused_resnet import FusedResNet
from fused_resnet.compile_backend import autotune

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned", "ignore:.*LeafSpec", "ignore::DeprecationWarning")
NAN, INF = float("nan"), float("inf")


def conv(spoil=None):
    """Return a convolution, with a special value in its weight or bias."""
    made = nn.Conv2d(6, 6, 3, padding=1)
    if spoil:
        tensor, value = spoil
        getattr(made, tensor).data.view(-1)[4] = value
    return made


def norm(tensor):
    made = nn.BatchNorm2d(6)
    getattr(made, tensor)[2] = NAN
    return made


class Ways(nn.Module):
    """Ways of NaN and infinities: from weights, biases, statistics and inputs, through the operators of networks."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Sequential(conv(("weight", NAN)), nn.ReLU())
        self.bias = nn.Sequential(conv(("bias", NAN)), nn.ReLU6())
        self.infinite = nn.Sequential(conv(("weight", INF)), nn.BatchNorm2d(6), nn.ReLU())
        self.mean = nn.Sequential(conv(), norm("running_mean"), nn.Hardswish())
        self.variance = nn.Sequential(conv(), norm("running_var"), nn.SiLU())
        self.pools = nn.ModuleList([nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1)])
        self.conv, self.gate = conv(), nn.Conv2d(6, 6, 1)
        self.linear = nn.Linear(6, 5)
        self.linear.weight.data[1, 1] = NAN

    def forward(self, x):
        ways = [way(x) for way in (self.weight, self.bias, self.infinite, self.mean, self.variance, *self.pools)]
        residual = (self.conv(x) + x).relu()
        gated = residual * self.gate(x.mean((2, 3), keepdim=True)).sigmoid()
        results = [*ways, residual, gated, self.linear(x.amax((2, 3))).relu()]
        return torch.cat([result.flatten(1) for result in results], 1)


def inputs():
    """Return images without special values, and with NaN and infinities in the second one."""
    x = torch.randn(2, 6, 10, 10, generator=torch.Generator().manual_seed(0))
    yield x
    for value in (NAN, INF, -INF):
        spoilt = x.clone()
        spoilt[1, 3, 4, 5] = value
        yield spoilt


DOORS = {
    "from_model": FusedResNet.from_model,
    "compile": lambda model, db: torch.compile(model, backend=autotune, options={"tuning_db": db}),
}


@torch.no_grad()
def check(door, db):
    torch.manual_seed(0)
    plain = Ways().eval()
    network = DOORS[door](plain, db)
    for x in inputs():
        torch.testing.assert_close(network(x), plain(x), rtol=1e-4, atol=1e-5, equal_nan=True)
    return network


@pytest.mark.compile
@pytest.mark.parametrize("door", DOORS)
def test_inductor_runs_by_itself(door, empty_db, monkeypatch):
    monkeypatch.delenv("AUTOTUNE_INDUCTOR", raising=False)
    network = check(door, empty_db)
    if door == "from_model":
        assert [row.kernel.split()[0] for row in network.explain(next(inputs()))] == ["inductor"]


@pytest.mark.parametrize("door", DOORS)
def test_torchs_operators_run(door, empty_db, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_INDUCTOR", "0")
    check(door, empty_db)
