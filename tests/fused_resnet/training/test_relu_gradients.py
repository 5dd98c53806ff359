"""Gradients of ReLUs with sums over images, against the same network in float64 on torch's operators."""

import copy

import pytest
import torch
import torch.nn.functional as F
from architectures import Function
from step_databases import tuned_step
from torch import nn
from training_networks import Gated, images, relative_error

from autotune.ir import parse
from autotune.ir.operators import GlobalAvgPool2d, ReluGradientSums
from fused_resnet.training import step_problems

pytestmark = [
    pytest.mark.compile,
    pytest.mark.filterwarnings("ignore:a training step runs on torch's operators", "ignore:of the"),
]


def biased():
    """Return a bias of channels before a ReLU, a pool whose window is no square, and a mean that keeps its axes."""

    def forward(m, x):
        x = F.relu(m.first(x) + m.bias) + m.bias
        y = m.last(x) / 2
        return F.avg_pool2d(m.last(x), (3, 2), (2, 1)).mean((-1, -2), keepdim=True) * y + (x * m.scale).mean()

    bias, scale = nn.Parameter(0.3 * torch.randn(1, 16, 1, 1)), nn.Parameter(1 + 0.3 * torch.randn(16, 1, 1))
    parts = {"first": nn.Conv2d(3, 16, 3, padding=1, bias=False), "last": nn.Conv2d(16, 8, 1, bias=False)}
    return Function(forward, **parts, bias=bias, scale=scale)


def plain():
    """Return ReLUs without a sum next to them; the last one's gradient is a mask of another dtype's gradient."""

    def forward(m, x):
        return F.relu(m.last(F.relu(m.first(x)))).double() + m.scalar

    parts = {"first": nn.Conv2d(3, 16, 3, bias=False), "last": nn.Conv2d(16, 16, 1, bias=False)}
    return Function(forward, **parts, scalar=nn.Parameter(torch.randn(1)))


FOUND = {Gated: [(0, 0), (1, 0), (1, 3)], biased: [(0, 0)], plain: []}
"""Network -> the fields product and pool of its gradients with sums."""
MEANS = {Gated: [(10, 9, 16), (5, 5, 24)], biased: [], plain: []}


@pytest.fixture(scope="module", params=FOUND, ids=lambda network: network.__name__)
def network(request):
    return request.param


@pytest.fixture(scope="module")
def found(network):
    return step_problems(network().train(), [images()])


@pytest.fixture(scope="module")
def tuned(found, tmp_path_factory):
    """Return a database of the network with one config for each problem."""
    return str(tuned_step(tmp_path_factory.mktemp("sums") / "sums.db", found.to_tune()))


def gradients(problems):
    return sorted((one.product, one.pool) for one in problems if isinstance(one, ReluGradientSums))


def means(problems):
    return [(one.h, one.w, one.c) for one in problems if isinstance(one, GlobalAvgPool2d)]


def test_the_problems_of_a_step_have_sums_where_something_adds_pixels_up(network, found):
    assert gradients(found.with_sums.values()) == FOUND[network]
    assert means(found.with_sums.values()) == MEANS[network]


@pytest.mark.daily(2)
@pytest.mark.parametrize("inductor", ["0", "1"])
def test_sums_of_kernels_give_the_gradients_of_gates_scales_and_scalars(network, tuned, solved, monkeypatch, inductor):
    monkeypatch.setenv("AUTOTUNE_INDUCTOR", inductor)
    torch.manual_seed(0)
    trained = network().train()
    exact, x = copy.deepcopy(trained).double(), images()
    y = torch.compile(trained, backend="autotune", options={"tuning_db": tuned})(x)
    weight = torch.randn_like(y)
    (y * weight).sum().backward()
    (exact(x.double()) * weight.double()).sum().backward()
    problems = [parse(text) for text in dict.fromkeys(solved)]
    assert gradients(problems) == FOUND[network] and means(problems) == MEANS[network]
    for (name, parameter), reference in zip(trained.named_parameters(), exact.parameters(), strict=True):
        assert relative_error(parameter.grad, reference.grad) < 1e-5, name


def test_a_step_of_which_no_graph_can_be_made_has_its_other_problems():
    class Once(Gated):
        def forward(self, x):
            assert not hasattr(self, "called")
            self.called = True
            return super().forward(x)

    found = step_problems(Once().train(), [images()])
    assert len(found.named) == 11 and not found.with_sums
