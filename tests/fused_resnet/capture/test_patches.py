"""A network that moves patches of its image to channels has the same layers, however it is written."""

import pytest
import torch
import torch.nn.functional as F
from architectures import Function
from network_error import network_error
from seed_network import network
from torch import nn

from autotune.ir import is_input
from autotune.ir.operators import SpaceToDepth
from fused_resnet.capture import capture
from fused_resnet.networks import se_resnet9_fixup
from tuning_db import Store


def as_module(function):
    return Function(lambda m, x: function(x))


def views(x):
    n, c, h, w = x.shape
    return x.view(n, c, h // 4, 4, w // 4, 4).permute(0, 3, 5, 1, 2, 4).contiguous().view(n, 16 * c, h // 4, w // 4)


def unfold(x):
    return F.unfold(x, 4, stride=4).view(len(x), -1, x.shape[2] // 4, x.shape[3] // 4)


class PooledGate(nn.Module):
    """Squeeze-and-excitation by modules: a pool, 1x1 convolutions with the weights of linear layers."""

    def __init__(self, gate):
        super().__init__()
        first, _, second, _ = gate.excite
        self.pool, self.sigmoid = nn.AdaptiveAvgPool2d(1), nn.Sigmoid()
        self.convs = nn.ModuleList(nn.Conv2d(one.in_features, one.out_features, 1) for one in (first, second))
        for conv, linear in zip(self.convs, (first, second), strict=True):
            conv.load_state_dict({"weight": linear.weight[:, :, None, None], "bias": linear.bias})

    def forward(self, x):
        return x * self.sigmoid(self.convs[1](F.relu(self.convs[0](self.pool(x)))))


SPELLINGS = {
    "reshape and permute": lambda model: None,
    "view, permute, contiguous": lambda model: model.stem.__setitem__(0, as_module(views)),
    "pixel_unshuffle": lambda model: model.stem.__setitem__(0, as_module(lambda x: F.pixel_unshuffle(x, 4))),
    "nn.PixelUnshuffle": lambda model: model.stem.__setitem__(0, nn.PixelUnshuffle(4)),
    "unfold": lambda model: model.stem.__setitem__(0, as_module(unfold)),
    "pools and 1x1 convolutions": lambda model: [
        setattr(part[0], "se", PooledGate(part[0].se)) for part in model.layers
    ],
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with Store.create(tmp_path_factory.mktemp("patches") / "empty.db") as opened:
        yield opened


@pytest.mark.daily(3)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_each_spelling_has_the_problems_of_the_network_and_computes_it(spelling, store):
    model = se_resnet9_fixup.randomize(se_resnet9_fixup.build(), seed=3)
    SPELLINGS[spelling](model)
    model.eval()
    captured = capture(model, (2, 3, 64, 64), "f32")
    assert {str(layer.problem) for layer in captured.without_whole.all_layers} == {
        str(layer.problem) for layer in network(2).all_layers
    }
    x = torch.randn(2, 3, 64, 64)
    assert network_error(captured, model, x, store) < 1e-5


def conversions(function, size=(2, 3, 8, 8), after=None):
    model = nn.Sequential(as_module(function), after or nn.Conv2d(4 * size[1], 5, 1)).eval()
    return [one for one in capture(model, size, "f32").layers if isinstance(one.problem, SpaceToDepth)]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.pixel_unshuffle(x.transpose(2, 3), 2),
        lambda x: F.unfold(x, 2, stride=2, padding=0).flip(1).view(2, 12, 4, 4),
        lambda x: x.reshape(2, 12, 4, 4),
        lambda x: F.pixel_unshuffle(x.transpose(0, 1).reshape(2, 3, 8, 8), 2),
    ],
)
def test_other_moves_are_left_to_torch(function):
    assert conversions(function) == []


def test_patches_in_another_order_are_taken_only_where_products_read_them():
    assert len(conversions(lambda x: F.pixel_unshuffle(x, 2))) == 1
    assert conversions(lambda x: F.pixel_unshuffle(x, 2), after=nn.Conv2d(12, 5, 3)) == []
    assert conversions(lambda x: F.pixel_unshuffle(x, 2), after=nn.ReLU()) == []
    assert len(conversions(lambda x: F.pixel_unshuffle(x, 2), size=(2, 1, 8, 8), after=nn.Conv2d(4, 5, 3))) == 1


def added(m, x):
    """Add the patches of an image to a 1x1 convolution of them, or of another tensor."""
    patches = se_resnet9_fixup.SpaceToDepth(2)(x)
    return F.relu(m.conv(patches if m.of is None else m.of(x)) + patches)


@pytest.mark.parametrize("own", [True, False])
def test_patches_that_are_added_stay_a_tensor(own, store):
    parts = {"of": None if own else nn.Conv2d(3, 12, 2, 2), "conv": nn.Conv2d(12, 12, 1)}
    model = se_resnet9_fixup.randomize(Function(added, **parts).eval())
    captured, x = capture(model, (2, 3, 8, 8), "f32"), torch.randn(2, 3, 8, 8)
    assert any(isinstance(one.problem, SpaceToDepth) for one in captured.layers)
    for alternative in captured.without_whole.alternatives:
        made = {name for one in captured.layers_with([alternative.name]) for name in one.writes}
        assert all(name in made or is_input(name) for one in alternative.layers for name in one.reads)
    assert network_error(captured, model, x, store) < 1e-5
