"""Gradients of ReLUs with sums over images, against the same network in float64 on torch's operators."""

import copy

import pytest
import torch
import torch.nn.functional as F
from step_databases import tuned_step
from torch import nn
from training_networks import images, relative_error

from autotune.ir import GlobalAvgPool2d, ReluGradientSums, parse
from fused_resnet.training import step_problems

pytestmark = [
    pytest.mark.compile,
    pytest.mark.filterwarnings("ignore:a training step runs on torch's operators", "ignore:of the"),
]


class Gated(nn.Module):
    """Two blocks with scalars, a scale and a gate; an average pool also reads the result of the first."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.second = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.third = nn.Conv2d(16, 24, 3, padding=1, stride=2, bias=False)
        self.shortcut = nn.Conv2d(16, 24, 1, bias=False)
        self.excite = nn.ModuleList([nn.Linear(16, 16), nn.Linear(24, 24)])
        self.scalars = nn.Parameter(0.3 * torch.randn(7, 1))
        self.scales = nn.Parameter(1 + 0.3 * torch.randn(2, 1))

    def gated(self, x, i):
        y = x * self.scales[i] + self.scalars[i]
        gate = torch.sigmoid(self.excite[i](y.mean((2, 3))))
        return y * gate[:, :, None, None]

    def forward(self, x):
        x = self.first(x)
        x = F.relu(x + self.scalars[2]) + self.scalars[3]
        x = F.relu(self.gated(self.second(x), 0) + x) + self.scalars[4]
        y = self.gated(self.third(x), 1)
        return F.relu(y + self.shortcut(F.avg_pool2d(x, 3, 2, 1))) + self.scalars[5]


@pytest.fixture(scope="module")
def found():
    return step_problems(Gated().train(), [images()])


@pytest.fixture(scope="module")
def tuned(found, tmp_path_factory):
    """Return a database of `Gated` with one config for each problem."""
    return str(tuned_step(tmp_path_factory.mktemp("gated") / "gated.db", found.to_tune()))


def gradients(solved):
    texts = {text for text in solved if text.startswith(ReluGradientSums.operator)}
    return sorted((one.product, one.pool) for one in map(parse, texts))


def test_the_problems_of_a_step_have_sums_where_something_adds_pixels_up(found):
    gradients = [one for one in found.with_sums.values() if isinstance(one, ReluGradientSums)]
    assert sorted((one.product, one.pool) for one in gradients) == [(0, 0), (1, 0), (1, 3)]
    means = [one for one in found.with_sums.values() if isinstance(one, GlobalAvgPool2d)]
    assert [(one.h, one.w, one.c) for one in means] == [(10, 9, 16), (5, 5, 24)]


@pytest.mark.parametrize("inductor", ["0", "1"])
def test_sums_of_kernels_give_the_gradients_of_gates_scales_and_scalars(tuned, solved, monkeypatch, inductor):
    monkeypatch.setenv("AUTOTUNE_INDUCTOR", inductor)
    torch.manual_seed(0)
    trained = Gated().train()
    exact, x = copy.deepcopy(trained).double(), images()
    y = torch.compile(trained, backend="autotune", options={"tuning_db": tuned})(x)
    weight = torch.randn_like(y)
    (y * weight).sum().backward()
    (exact(x.double()) * weight.double()).sum().backward()
    assert gradients(solved) == [(0, 0), (1, 0), (1, 3)]
    assert len({text for text in solved if text.startswith(GlobalAvgPool2d.operator)}) == 2
    for (name, parameter), reference in zip(trained.named_parameters(), exact.parameters(), strict=True):
        assert relative_error(parameter.grad, reference.grad) < 1e-5, name
