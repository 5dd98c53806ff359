"""Other ways to compute a captured network's layers give what those layers give."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from architectures import ARCHITECTURES, ResNet, images, random_model
from network_error import network_error
from torch import nn

from autotune.ir import WHOLE
from autotune.ir.operators import (
    Concat,
    ConcatConv2d,
    Conv2dPair,
    Conv2dSkip,
    ExpandDepthwise,
    InvertedResidual,
    PointwisePair,
    SeGates,
)
from fused_resnet.capture import capture
from fused_resnet.networks import se_resnet9_fixup
from tuning_db import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with Store.create(tmp_path_factory.mktemp("alternatives") / "empty.db") as opened:
        yield opened


def pooled_projection():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.AvgPool2d(3, 2, 1), nn.Conv2d(8, 5, 1), nn.BatchNorm2d(5))


def transposed():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 6, 2, 2), nn.BatchNorm2d(6), nn.ConvTranspose2d(6, 5, (1, 3), (1, 3)),
        nn.ReLU(), nn.ConvTranspose2d(5, 4, 2, 2, output_padding=1), nn.ConvTranspose2d(4, 4, 2, 2, groups=2),
    )  # fmt: skip


def with_alternatives(network, names):
    """Return the network with some alternatives taken."""
    return dataclasses.replace(network, layers=network.layers_with(names), alternatives=())


@pytest.mark.parametrize(
    ("make", "size", "names"),
    [
        (lambda: ResNet("basic"), 32, ["conv1.c4", "conv1.c8", "conv1.stem", "conv1.stem_pool"]),
        (ARCHITECTURES["senet"], 16, ["stem.0.c4", "stem.0.c8", "stem.0.stem", "block.se.folded", "block.body.block"]),
        (pooled_projection, 16, ["0.c4", "0.c8", "0.stem", "2.pooled"]),
        (transposed, 16, ["0.c4", "0.c8", "0.stem", "1.shuffle", "3.shuffle"]),
    ],
)
def test_each_alternative_computes_what_it_replaces(make, size, names, store):
    model, x = random_model(make(), size=size), images(2, size)
    network = capture(model, tuple(x.shape), "f32")
    names = [*names, WHOLE]
    assert [alternative.name for alternative in network.alternatives] == names
    for name in names:
        taken = with_alternatives(network, [name])
        assert len(taken.layers) < len(network.layers) or name.endswith(("c4", "c8", "shuffle"))
        assert network_error(taken, model, x, store) < 1e-5, name


@pytest.mark.parametrize(
    ("channels", "out", "groups", "names"),
    [(128, 128, 32, ["0.g4", "0.g2"]), (64, 128, 4, ["0.g2", "0.g1"]), (64, 64, 64, []), (48, 48, 2, [])],
)
def test_groups_of_few_channels_are_also_taken_together(channels, out, groups, names, store):
    model = se_resnet9_fixup.randomize(
        nn.Sequential(nn.Conv2d(channels, out, 3, stride=2, padding=1, groups=groups)).half()
    )
    x = torch.randn(2, channels, 7, 7, generator=torch.Generator().manual_seed(1)).half()
    network = capture(model.eval(), tuple(x.shape), "f16")
    names = [*names, WHOLE]
    assert [alternative.name for alternative in network.alternatives] == names
    for name in names:
        assert network_error(with_alternatives(network, [name]), model, x, store) < 1e-3, name


def test_a_widening_convolution_is_also_taken_with_the_depthwise_one_after_it(store):
    parts = (nn.Conv2d(8, 8, 3), nn.Conv2d(8, 24, 1), nn.ReLU6(), nn.Conv2d(24, 24, 3, 2, 1, groups=24), nn.SiLU())
    model = se_resnet9_fixup.randomize(nn.Sequential(*parts).half())
    x = torch.randn(2, 8, 11, 9, generator=torch.Generator().manual_seed(1)).half()
    network = capture(model.eval(), tuple(x.shape), "f16")
    taken = with_alternatives(network, ["3.expanded"])
    [both] = [layer.problem for layer in taken.layers if isinstance(layer.problem, ExpandDepthwise)]
    assert str(both.epilogue) == "bias,relu6,conv,bias,silu" and len(taken.layers) == len(network.layers) - 1
    assert network_error(taken, model, x, store) < 2e-3
    single = capture(model.float(), tuple(x.shape), "f32")
    assert not [one for one in single.alternatives if one.name.endswith(".expanded")], "for halves alone"


class Inverted(nn.Module):
    """An inverted residual block whose input the end adds; `apart`: whether another layer reads a tensor inside it."""

    def __init__(self, apart=False):
        super().__init__()
        self.first, self.expand = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 24, 1)
        self.depthwise, self.project = nn.Conv2d(24, 24, 3, 1, 1, groups=24), nn.Conv2d(24, 8, 1)
        self.apart = apart

    def forward(self, x):
        x = self.first(x)
        narrow = F.hardswish(self.depthwise(F.relu6(self.expand(x))))
        y = self.project(narrow) + x
        return torch.cat([y, narrow], 1) if self.apart else y


def test_the_convolutions_of_an_inverted_residual_block_are_also_taken_together(store):
    model = se_resnet9_fixup.randomize(Inverted().half()).eval()
    x = torch.randn(2, 8, 11, 9, generator=torch.Generator().manual_seed(1)).half()
    network = capture(model, tuple(x.shape), "f16")
    taken = with_alternatives(network, ["project.inverted"])
    [block] = [layer for layer in taken.layers if isinstance(layer.problem, InvertedResidual)]
    assert str(block.problem.epilogue) == "bias,relu6,conv,bias,hardswish,conv,bias,add"
    assert block.buffers["add3"] == block.buffers["x"] and len(taken.layers) == len(network.layers) - 2
    assert network_error(taken, model, x, store) < 2e-3
    apart = capture(Inverted(apart=True).half().eval(), tuple(x.shape), "f16")
    single = capture(model.float(), tuple(x.shape), "f32")
    for other in (apart, single):
        assert not [one for one in other.alternatives if one.name.endswith(".inverted")]


class Basic(nn.Module):
    """A residual block of two 3x3 convolutions, the first with a stride, and a projection of its input."""

    def __init__(self):
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 1, 2)
        self.first, self.second = nn.Conv2d(16, 32, 3, 2, 1), nn.Conv2d(32, 32, 3, padding=1)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        return torch.relu(self.second(torch.relu(self.first(x))) + self.down(x))


class Bottleneck(nn.Module):
    """The 1x1 and the 3x3 convolution of a residual block."""

    def __init__(self):
        super().__init__()
        self.narrow, self.window, self.head = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 16, 3, 2, 1), nn.Conv2d(16, 8, 1)

    def forward(self, x):
        return self.head(torch.relu(self.window(torch.relu(self.narrow(x)))))


@pytest.mark.parametrize(
    ("make", "channels", "name", "chain"),
    [
        (Basic, 3, "second.chained", "bias,relu,conv,bias,add,relu"),
        (Bottleneck, 8, "window.chained", "bias,relu,conv,bias,relu"),
        (Bottleneck, 8, "head.chained", "bias,relu,conv,bias"),
    ],
)
def test_two_convolutions_are_also_taken_together(make, channels, name, chain, store):
    model = se_resnet9_fixup.randomize(make().half()).eval()
    x = torch.randn(2, channels, 11, 9, generator=torch.Generator().manual_seed(1)).half()
    network = capture(model, tuple(x.shape), "f16")
    taken = with_alternatives(network, [name])
    [both] = [layer.problem for layer in taken.layers if isinstance(layer.problem, Conv2dPair)]
    assert str(both.epilogue) == chain and len(taken.layers) == len(network.layers) - 1
    assert network_error(taken, model, x, store) < 3e-3
    single = capture(model.float(), tuple(x.shape), "f32")
    assert not [one for one in single.alternatives if one.name.endswith(".chained")], "for halves alone"


class Boundary(nn.Module):
    """The ends of two residual blocks with a product between them: its input is also the second sum's operand."""

    def __init__(self):
        super().__init__()
        self.narrow, self.wide = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 24, 1)
        self.last, self.first, self.end = nn.Conv2d(8, 24, 1), nn.Conv2d(24, 8, 1), nn.Conv2d(8, 24, 3, padding=1)

    def forward(self, x):
        x = self.narrow(x)
        y = torch.relu(self.last(torch.relu(x)) + self.wide(x))
        return torch.relu(self.end(torch.relu(self.first(y))) + y)


class Perceptron(nn.Module):
    """Two linear layers on channels last, with a residual sum."""

    def __init__(self):
        super().__init__()
        self.conv, self.up, self.down = nn.Conv2d(4, 8, 3), nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        x = self.conv(x)
        return x + self.down(F.gelu(self.up(x.permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)


class Late(nn.Module):
    """A product that adds what is computed from its own input: it cannot run together with the one before."""

    def __init__(self):
        super().__init__()
        self.first, self.side, self.second = nn.Conv2d(4, 16, 1), nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(16, 8, 1)

    def forward(self, x):
        y = torch.relu(self.first(x))
        return self.second(y) + torch.relu(self.side(y))


@pytest.mark.parametrize(
    ("make", "name", "chain"),
    [
        (Boundary, "first.paired", "bias,add,relu,store,conv,bias,relu"),
        (Perceptron, "down.paired", "bias,gelu,conv,bias,add"),
    ],
)
def test_two_products_are_also_taken_together(make, name, chain, store):
    model = se_resnet9_fixup.randomize(make().half()).eval()
    x = torch.randn(2, 4, 7, 9, generator=torch.Generator().manual_seed(1)).half()
    network = capture(model, tuple(x.shape), "f16")
    taken = with_alternatives(network, [name])
    [both] = [layer.problem for layer in taken.layers if isinstance(layer.problem, PointwisePair)]
    assert str(both.epilogue) == chain and len(taken.layers) == len(network.layers) - 1
    assert network_error(taken, model, x, store) < 3e-3
    single = capture(model.float(), tuple(x.shape), "f32")
    assert not [one for one in single.alternatives if one.name.endswith(".paired")], "for halves alone"


def test_a_product_that_waits_for_a_reader_of_the_first_is_not_taken_with_it():
    model = se_resnet9_fixup.randomize(Late().half()).eval()
    assert not [one for one in capture(model, (2, 4, 7, 9), "f16").alternatives if one.name.endswith(".paired")]


class Projected(nn.Module):
    """The end of a residual block with a projection; which convolution is the projection, the order decides."""

    def __init__(self, first_is_projection):
        super().__init__()
        self.conv, self.end = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.down, self.norm = nn.Conv2d(3, 16, 1, 2), nn.BatchNorm2d(16)
        self.first_is_projection = first_is_projection

    def forward(self, x):
        if self.first_is_projection:
            skip = self.norm(self.down(x))
            return torch.relu(self.end(torch.relu(self.conv(x))) + skip)
        y = self.end(torch.relu(self.conv(x)))
        y = torch.relu(y + self.norm(self.down(x)))
        return y


@pytest.mark.parametrize("first_is_projection", [False, True])
def test_a_convolution_is_also_taken_with_the_projection_that_is_added(first_is_projection, store):
    model = random_model(Projected(first_is_projection), size=14).half().eval()
    x = images(2, 14).half()
    network = capture(model.eval(), tuple(x.shape), "f16")
    [name] = [one.name for one in network.alternatives if one.name.endswith(".projected")]
    taken = with_alternatives(network, [name])
    [both] = [layer.problem for layer in taken.layers if isinstance(layer.problem, Conv2dSkip)]
    assert str(both.epilogue) == "bias,relu" and (both.r, both.skip_stride) == (3, (2, 2))
    assert len(taken.layers) == len(network.layers) - 1
    assert network_error(taken, model, x, store) < 3e-3
    single = capture(model.float(), tuple(x.shape), "f32")
    assert not [one for one in single.alternatives if one.name.endswith(".projected")], "for halves alone"


class Gated(nn.Module):
    """The last part of an inverted residual: gates of any activations, and a narrowing convolution."""

    def __init__(self, act, gate):
        super().__init__()
        self.act, self.gate = act, gate
        self.wide, self.narrow = nn.Conv2d(4, 24, 3, padding=1), nn.Conv2d(24, 8, 1)
        self.down, self.up = nn.Conv2d(24, 6, 1), nn.Conv2d(6, 24, 1)

    def forward(self, x):
        y = torch.relu(self.wide(x))
        gate = self.gate(self.up(self.act(self.down(y.mean((2, 3), keepdim=True)))))
        return self.narrow(gate * y)


@pytest.mark.parametrize(
    ("act", "gate"), [(torch.relu, torch.sigmoid), (F.silu, torch.sigmoid), (F.relu, F.hardsigmoid)]
)
def test_a_product_also_scales_its_input_by_gates(store, act, gate):
    model = se_resnet9_fixup.randomize(Gated(act, gate).half()).eval()
    x = torch.randn(2, 4, 7, 9, generator=torch.Generator().manual_seed(1)).half()
    network = capture(model, tuple(x.shape), "f16")
    taken = with_alternatives(network, ["narrow.scaled"])
    kinds = [type(layer.problem) for layer in taken.layers]
    assert kinds[-2:] == [SeGates, ConcatConv2d] and str(taken.layers[-1].problem.epilogue) == "mul_image,conv,bias"
    assert network_error(taken, model, x, store) < 3e-3


class Dense(nn.Module):
    """A dense layer behind two others, and a 1x1 convolution."""

    def __init__(self):
        super().__init__()
        self.wide, self.more = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1)
        self.norm, self.narrow, self.last = nn.BatchNorm2d(24), nn.Conv2d(24, 16, 1), nn.Conv2d(16, 8, 1, bias=False)

    def forward(self, x):
        first = self.wide(x)
        both = torch.cat([first, self.more(first)], 1)
        narrow = self.narrow(torch.relu(self.norm(both)))
        return self.last(torch.relu(first * narrow))


def test_a_product_is_also_taken_with_the_concatenation_before_it(store):
    model = se_resnet9_fixup.randomize(Dense().half()).eval()
    x = torch.randn(2, 4, 7, 9, generator=torch.Generator().manual_seed(1)).half()
    network = capture(model, tuple(x.shape), "f16")
    names = [one.name for one in network.alternatives if one.name.endswith(".concat")]
    taken = with_alternatives(network, names)
    chains = [str(layer.problem.epilogue) for layer in taken.layers if isinstance(layer.problem, ConcatConv2d)]
    assert chains == ["scale,bias,relu,conv,bias,mul,relu"]
    assert not [layer for layer in taken.layers if isinstance(layer.problem, Concat)]
    assert network_error(taken, model, x, store) < 3e-3
    assert len(taken.layers) == len(network.layers) - len(names)


@pytest.mark.parametrize(
    "between",
    [
        nn.functional.silu,  # falls before it rises
        lambda x: torch.cat([nn.functional.relu(x), x], 1),  # read by two
    ],
)
def test_a_pool_is_not_fused_with_what_may_not_trade_places(between):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x):
            return nn.functional.max_pool2d(between(self.conv(x)), 2)

    network = capture(Model().eval(), (1, 3, 12, 12), "f32")
    assert "conv.stem_pool" not in [alternative.name for alternative in network.alternatives]


def test_pools_that_are_not_square_stay_apart():
    for pool in (
        nn.MaxPool2d((3, 2)),
        nn.MaxPool2d(2, (2, 1)),
        nn.MaxPool2d(3, 2, (1, 0)),
        nn.MaxPool2d(2, ceil_mode=True),
    ):
        network = capture(nn.Sequential(nn.Conv2d(3, 8, 3), pool).eval(), (1, 3, 13, 13), "f32")
        assert "0.stem_pool" not in [alternative.name for alternative in network.alternatives]


class ChannelsOfBins(nn.Module):
    """Reads the bins of a spectrogram as channels."""

    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(40, 8, (3, 1))

    def forward(self, x):
        return torch.relu(self.c(x.transpose(1, 3)))


class ImageOfChannels(nn.Module):
    """Reads channels as the pixels of an image."""

    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(1, 8, 3)

    def forward(self, x):
        return torch.relu(self.c(x.view(x.shape[0], 1, 16, 16)))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (ChannelsOfBins(), (2, 1, 16, 40)),
        (ImageOfChannels(), (2, 256, 1, 1)),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 4, 3, 3, 1, output_padding=2)), (2, 3, 8, 8)),
        (
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 4, 2, 2, 1, dilation=2, output_padding=1)),
            (2, 3, 8, 8),
        ),
    ],
)
def test_layers_that_only_look_alike_are_not_replaced(model, shape, store):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    network = capture(model.eval(), shape, "f32")
    for alternative in network.alternatives:
        assert network_error(with_alternatives(network, [alternative.name]), model, x, store) < 1e-5, alternative.name


class OwnSum(nn.Module):
    """A product that adds what the product before it has stored."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 64), nn.Linear(64, 64)

    def forward(self, x):
        y = self.a(x)
        return self.b(torch.relu(y)) + y


class ReadTwice(nn.Module):
    """A projection whose result is added, and multiplied with the sum."""

    def __init__(self):
        super().__init__()
        self.c, self.d, self.e = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        y = torch.relu(self.c(x))
        s = self.d(y)
        return (self.e(y) + s) * s


def long(value):
    return ((value * 0.5 + 0.1).clamp(-1, 1) * 2 + 0.3).clamp(-2, 2)


class LongChains(nn.Module):
    """A widening and a depthwise convolution, whose chains have more scalars than one kernel takes."""

    def __init__(self):
        super().__init__()
        self.c, self.up, self.depth = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 1), nn.Conv2d(16, 16, 3, groups=16)

    def forward(self, x):
        return long(self.depth(long(self.up(self.c(x)))))


class LongPair(nn.Module):
    """Two products, whose chains have more scalars than one kernel takes."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(32, 64, 1), nn.Conv2d(64, 32, 1)

    def forward(self, x):
        return long(self.b(long(self.a(x))))


@pytest.mark.parametrize(
    ("make", "shape", "never"),
    [
        (OwnSum, (6, 32), ".paired"),
        (ReadTwice, (2, 8, 9, 9), ".projected"),
        (LongChains, (2, 3, 9, 9), ".expanded"),
        (LongPair, (2, 32, 5, 5), ".paired"),
    ],
)
def test_layers_that_cannot_be_one_stay_apart(make, shape, never, store):
    model = se_resnet9_fixup.randomize(make().half())
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).half()
    network = capture(model.eval(), shape, "f16")
    assert not [one.name for one in network.alternatives if one.name.endswith(never)]
    assert network_error(network, model, x, store) < 3e-3
