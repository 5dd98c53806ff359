"""Other ways to compute a captured network's layers give what those layers give."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from architectures import ARCHITECTURES, Function, ResNet, images, random_model
from network_error import network_error
from torch import nn

from autotune.ir import WHOLE
from autotune.ir import operators as op
from autotune.ir.alternatives import alternatives
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


class Decoder(nn.Module):
    """Upsamples before a convolution with a chain, before one without, and before four that stay as they are."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 6, 3, padding=1, bias=False)
        self.shrinking, self.wide = nn.Conv2d(6, 6, 3), nn.Conv2d(6, 6, 5, padding=2)
        self.last = nn.Conv2d(6, 6, 3, padding=1)

    def forward(self, x):
        x = F.interpolate(x, scale_factor=2.0)
        x = F.silu(self.first(x)) + 1.0
        x = self.second(F.interpolate(x, scale_factor=2.0))
        x = self.shrinking(F.interpolate(x, scale_factor=2.0))
        x = self.wide(F.interpolate(x, scale_factor=2.0))
        x = self.last(F.interpolate(x, size=(x.shape[2] + 1, x.shape[3] + 1)))
        return self.last(F.interpolate(x, scale_factor=2.0, mode="bilinear"))


class Gated(nn.Module):
    """Scales by gates of a linear 1x1 convolution's result in a residual block, and before a 1x1 convolution."""

    def __init__(self, linear=True):
        super().__init__()
        self.first, self.wide = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 1, bias=False)
        self.norm, self.linear, self.last = nn.BatchNorm2d(16), linear, nn.Conv2d(16, 8, 1)
        self.squeeze, self.excite = nn.Conv2d(16, 6, 1), nn.Conv2d(6, 16, 1)
        self.narrow, self.widen = nn.Linear(16, 4), nn.Linear(4, 16)

    def forward(self, x):
        x = torch.relu(self.first(x))
        y = self.norm(self.wide(x))
        y = y if self.linear else F.silu(y)
        y = y * torch.sigmoid(self.excite(torch.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        y = torch.relu(y + torch.cat([x, x], 1))
        gates = F.hardsigmoid(self.widen(F.silu(self.narrow(y.mean((2, 3))))))
        return self.last(y * gates[:, :, None, None])


def with_alternatives(network, names):
    """Return the network with some alternatives taken."""
    return dataclasses.replace(network, layers=network.layers_with(names), alternatives=())


@pytest.mark.parametrize(
    ("make", "size", "names"),
    [
        (lambda: ResNet("basic"), 32, ["conv1.c4", "conv1.c8", "conv1.stem", "conv1.stem_pool"]),
        (ARCHITECTURES["senet"], 16, ["stem.0.c4", "stem.0.c8", "stem.0.stem", "block.se.folded", "block.body.block"]),
        (pooled_projection, 16, ["0.c4", "0.c8", "0.stem", "2.pooled", "2.padded"]),
        (transposed, 16, ["0.c4", "0.c8", "0.stem", "1.shuffle", "3.shuffle"]),
        (Decoder, 4, ["first.upsampled", "second.upsampled", "second.padded"]),
    ],
)
def test_each_alternative_computes_what_it_replaces(make, size, names, store):
    model, x = random_model(make(), size=size), images(2, size)
    network = capture(model, tuple(x.shape), "f32")
    names = [*names, WHOLE]
    assert [alternative.name for alternative in network.alternatives] == names
    for name in names:
        taken = with_alternatives(network, [name])
        assert len(taken.layers) < len(network.layers) or name.endswith(("c4", "c8", "shuffle", "padded"))
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


def widening():
    return nn.Sequential(
        nn.Conv2d(8, 8, 3), nn.Conv2d(8, 24, 1), nn.ReLU6(), nn.Conv2d(24, 24, 3, 2, 1, groups=24), nn.SiLU()
    )


def captured_halves(make, channels, h, w):
    """Return a model of random weights in float16, an input, and the network."""
    model = se_resnet9_fixup.randomize(make().half()).eval()
    x = torch.randn(2, channels, h, w, generator=torch.Generator().manual_seed(1)).half()
    return model, x, capture(model, tuple(x.shape), "f16")


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


def basic():
    """Return a residual block of two 3x3 convolutions, the first with a stride, and a projection of its input."""

    def forward(m, x):
        x = torch.relu(m.stem(x))
        return torch.relu(m.second(torch.relu(m.first(x))) + m.down(x))

    sides = {"stem": nn.Conv2d(3, 16, 3, padding=1), "down": nn.Conv2d(16, 32, 1, 2)}
    return Function(forward, **sides, first=nn.Conv2d(16, 32, 3, 2, 1), second=nn.Conv2d(32, 32, 3, padding=1))


def bottleneck():
    """Return the 1x1 and the 3x3 convolution of a residual block."""
    parts = {"narrow": nn.Conv2d(8, 16, 1), "window": nn.Conv2d(16, 16, 3, 2, 1), "head": nn.Conv2d(16, 8, 1)}
    return Function(lambda m, x: m.head(torch.relu(m.window(torch.relu(m.narrow(x))))), **parts)


def perceptron():
    """Return two linear layers on channels last, with a residual sum."""

    def forward(m, x):
        x = m.conv(x)
        return x + m.down(F.gelu(m.up(x.permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)

    return Function(forward, conv=nn.Conv2d(4, 8, 3), up=nn.Linear(8, 32), down=nn.Linear(32, 8))


def late():
    """Return a product that adds what is computed from its own input: it cannot run together with the one before."""
    sides = {"side": nn.Conv2d(16, 8, 3, padding=1), "second": nn.Conv2d(16, 8, 1)}
    last = Function(lambda m, y: m.second(y) + torch.relu(m.side(y)), **sides)
    return nn.Sequential(nn.Conv2d(4, 16, 1), nn.ReLU(), last)


def boundary():
    """Return the ends of two residual blocks with a product between them: its input is also added by the second."""

    def forward(m, x):
        x = m.narrow(x)
        y = torch.relu(m.last(torch.relu(x)) + m.wide(x))
        return torch.relu(m.end(torch.relu(m.first(y))) + y)

    before = {"narrow": nn.Conv2d(4, 8, 3, padding=1), "wide": nn.Conv2d(8, 24, 1), "last": nn.Conv2d(8, 24, 1)}
    return Function(forward, **before, first=nn.Conv2d(24, 8, 1), end=nn.Conv2d(8, 24, 3, padding=1))


@pytest.mark.parametrize(
    ("make", "sizes", "name", "kind", "chain", "limit"),
    [
        (widening, (8, 11, 9), "3.expanded", op.ExpandDepthwise, "bias,relu6,conv,bias,silu", 2e-3),
        (
            Inverted,
            (8, 11, 9),
            "project.inverted",
            op.InvertedResidual,
            "bias,relu6,conv,bias,hardswish,conv,bias,add",
            2e-3,
        ),
        (basic, (3, 11, 9), "second.chained", op.Conv2dPair, "bias,relu,conv,bias,add,relu", 3e-3),
        (bottleneck, (8, 11, 9), "window.chained", op.Conv2dPair, "bias,relu,conv,bias,relu", 3e-3),
        (bottleneck, (8, 11, 9), "head.chained", op.Conv2dPair, "bias,relu,conv,bias", 3e-3),
        (boundary, (4, 7, 9), "first.paired", op.PointwisePair, "bias,add,relu,store,conv,bias,relu", 3e-3),
        (perceptron, (4, 7, 9), "down.paired", op.PointwisePair, "bias,gelu,conv,bias,add", 3e-3),
    ],
)
def test_several_layers_are_also_taken_as_one(make, sizes, name, kind, chain, limit, store):
    model, x, network = captured_halves(make, *sizes)
    taken = with_alternatives(network, [name])
    [one] = [layer for layer in taken.layers if isinstance(layer.problem, kind)]
    assert str(one.problem.epilogue) == chain
    assert len(taken.layers) == len(network.layers) - (2 if kind is op.InvertedResidual else 1)
    if kind is op.InvertedResidual:
        assert one.buffers["add3"] == one.buffers["x"]
    assert network_error(taken, model, x, store) < limit
    single = capture(model.float(), tuple(x.shape), "f32")
    assert not [other for other in single.alternatives if other.name.endswith(name[name.index(".") :])], (
        "for halves alone"
    )


def test_an_inverted_residual_block_is_not_taken_as_one_where_another_layer_reads_inside_it():
    network = capture(Inverted(apart=True).half().eval(), (2, 8, 11, 9), "f16")
    assert not [one for one in network.alternatives if one.name.endswith(".inverted")]


def test_a_product_that_waits_for_a_reader_of_the_first_is_not_taken_with_it():
    _, _, network = captured_halves(late, 4, 7, 9)
    assert not [one for one in network.alternatives if one.name.endswith(".paired")]


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
    [both] = [layer.problem for layer in taken.layers if isinstance(layer.problem, op.Conv2dSkip)]
    assert str(both.epilogue) == "bias,relu" and (both.r, both.skip_stride) == (3, (2, 2))
    assert len(taken.layers) == len(network.layers) - 1
    assert network_error(taken, model, x, store) < 3e-3
    single = capture(model.float(), tuple(x.shape), "f32")
    assert not [one for one in single.alternatives if one.name.endswith(".projected")], "for halves alone"


def gated(act, gate):
    """Return the last part of an inverted residual: gates of any activations, and a narrowing convolution."""

    def forward(m, x):
        y = torch.relu(m.wide(x))
        return m.narrow(gate(m.up(act(m.down(y.mean((2, 3), keepdim=True))))) * y)

    around = {"wide": nn.Conv2d(4, 24, 3, padding=1), "narrow": nn.Conv2d(24, 8, 1)}
    return Function(forward, **around, down=nn.Conv2d(24, 6, 1), up=nn.Conv2d(6, 24, 1))


@pytest.mark.parametrize(
    ("act", "gate"), [(torch.relu, torch.sigmoid), (F.silu, torch.sigmoid), (F.relu, F.hardsigmoid)]
)
def test_a_product_also_scales_its_input_by_gates(store, act, gate):
    model, x, network = captured_halves(lambda: gated(act, gate), 4, 7, 9)
    taken = with_alternatives(network, ["narrow.scaled"])
    kinds = [type(layer.problem) for layer in taken.layers]
    assert (
        kinds[-2:] == [op.SeGates, op.ConcatConv2d] and str(taken.layers[-1].problem.epilogue) == "mul_image,conv,bias"
    )
    assert network_error(taken, model, x, store) < 3e-3


def dense():
    """Return a dense layer behind two others, and a 1x1 convolution."""

    def forward(m, x):
        first = m.wide(x)
        narrow = m.narrow(torch.relu(m.norm(torch.cat([first, m.more(first)], 1))))
        return m.last(torch.relu(first * narrow))

    before = {"wide": nn.Conv2d(4, 16, 3, padding=1), "more": nn.Conv2d(16, 8, 3, padding=1)}
    behind = {"narrow": nn.Conv2d(24, 16, 1), "last": nn.Conv2d(16, 8, 1, bias=False)}
    return Function(forward, **before, norm=nn.BatchNorm2d(24), **behind)


def test_a_product_is_also_taken_with_the_concatenation_before_it(store):
    model, x, network = captured_halves(dense, 4, 7, 9)
    names = [one.name for one in network.alternatives if one.name.endswith(".concat")]
    taken = with_alternatives(network, names)
    chains = [str(layer.problem.epilogue) for layer in taken.layers if isinstance(layer.problem, op.ConcatConv2d)]
    assert chains == ["scale,bias,relu,conv,bias,mul,relu"]
    assert not [layer for layer in taken.layers if isinstance(layer.problem, op.Concat)]
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
    model = Function(lambda m, x: F.max_pool2d(between(m.conv(x)), 2), conv=nn.Conv2d(3, 8, 3))
    network = capture(model.eval(), (1, 3, 12, 12), "f32")
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


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        # the bins of a spectrogram as channels
        (Function(lambda m, x: torch.relu(m.c(x.transpose(1, 3))), c=nn.Conv2d(40, 8, (3, 1))), (2, 1, 16, 40)),
        # channels as the pixels of an image
        (Function(lambda m, x: torch.relu(m.c(x.view(x.shape[0], 1, 16, 16))), c=nn.Conv2d(1, 8, 3)), (2, 256, 1, 1)),
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


def long(value):
    """Return a chain of so many scalars that no kernel takes the scalars of two such chains."""
    return ((value * 0.5 + 0.1).clamp(-1, 1) * 2 + 0.3).clamp(-2, 2)


def own_sum():
    """Return a product that adds what the product before it has stored."""
    both = Function(lambda m, y: m.b(torch.relu(y)) + y, b=nn.Linear(64, 64))
    return nn.Sequential(nn.Linear(32, 64), both)


def read_twice():
    """Return a projection whose result is added, and multiplied with the sum."""

    def forward(m, x):
        y = torch.relu(m.c(x))
        s = m.d(y)
        return (m.e(y) + s) * s

    return Function(forward, c=nn.Conv2d(8, 8, 3, padding=1), d=nn.Conv2d(8, 8, 1), e=nn.Conv2d(8, 8, 3, padding=1))


def long_chains():
    """Return a widening and a depthwise convolution."""
    parts = {"c": nn.Conv2d(3, 8, 3), "up": nn.Conv2d(8, 16, 1), "depth": nn.Conv2d(16, 16, 3, groups=16)}
    return Function(lambda m, x: long(m.depth(long(m.up(m.c(x))))), **parts)


def long_pair():
    """Return two products."""
    return Function(lambda m, x: long(m.b(long(m.a(x)))), a=nn.Conv2d(32, 64, 1), b=nn.Conv2d(64, 32, 1))


@pytest.mark.parametrize(
    ("make", "shape", "never"),
    [
        (own_sum, (6, 32), ".paired"),
        (read_twice, (2, 8, 9, 9), ".projected"),
        (long_chains, (2, 3, 9, 9), ".expanded"),
        (long_pair, (2, 32, 5, 5), ".paired"),
    ],
)
def test_layers_that_cannot_be_one_stay_apart(make, shape, never, store):
    model = se_resnet9_fixup.randomize(make().half())
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).half()
    network = capture(model.eval(), shape, "f16")
    assert not [one.name for one in network.alternatives if one.name.endswith(never)]
    assert network_error(network, model, x, store) < 3e-3


@pytest.mark.parametrize("linear", [True, False])
def test_gates_of_large_images_are_computed_by_layers_of_their_own(linear, store):
    model = random_model(Gated(linear), size=40)
    x = images(2, 40)
    network = capture(model, tuple(x.shape), "f32")
    kinds = {one.name: [layer.problem.operator for layer in one.layers] for one in network.alternatives}
    ends = (".apart", ".early", ".joined", "_apart")
    apart = [kind for kind in kinds if kind.endswith(ends)]
    assert len(apart) == (4 if linear else 2)
    for name in apart:
        assert kinds[name][:3] == ["global_avg_pool2d", "conv2d", "conv2d"]
        assert network_error(with_alternatives(network, [name]), model, x, store) < 1e-5, name
    early = [layer for one in network.alternatives if one.name.endswith(".early") for layer in one.layers]
    assert [layer.problem.c for layer in early[:3]] == ([8, 8, 8] if linear else [])  # six hidden values are padded
    (*_, joined), *_ = [one.layers for one in network.alternatives if one.name.endswith(".joined")] or [[None]]
    assert (str(joined.problem.epilogue) if joined else "") == ("bias,mul_image,add,relu" if linear else "")
    small = capture(model, (2, 3, 16, 16), "f32")
    assert not [one.name for one in small.alternatives if one.name.endswith(ends)]


@pytest.mark.parametrize("alone", [True, False])
def test_a_convolution_multiplies_by_gates_if_nothing_else_reads_its_result(alone, store):
    def forward(m, x):
        y = m.wide(torch.relu(m.first(x)))
        scaled = y * torch.sigmoid(m.excite(torch.relu(m.squeeze(y.mean((2, 3), keepdim=True)))))
        return scaled if alone else scaled + m.other(y)

    parts = {"first": nn.Conv2d(3, 8, 3), "wide": nn.Conv2d(8, 16, 1), "other": nn.Conv2d(16, 16, 1)}
    model = random_model(Function(forward, **parts, squeeze=nn.Conv2d(16, 8, 1), excite=nn.Conv2d(8, 16, 1)), size=40)
    x = images(2, 40)
    network = capture(model, tuple(x.shape), "f32")
    ends = [one.name.rpartition(".")[2] for one in network.alternatives]
    assert ("early" in ends, "joined" in ends) == (True, alone)
    for one in network.alternatives:
        if one.name.endswith((".early", ".joined")):
            assert network_error(with_alternatives(network, [one.name]), model, x, store) < 1e-5, one.name


@pytest.mark.parametrize("norm", [nn.GroupNorm(4, 16, eps=1e-2), nn.InstanceNorm2d(16, eps=1e-2, affine=True)])
def test_norms_of_large_images_have_statistics_of_their_own(norm, store):
    model = random_model(nn.Sequential(nn.Conv2d(3, 16, 3), norm, nn.SiLU()), size=40)
    x = images(2, 40)
    network = capture(model, tuple(x.shape), "f32")
    (apart,) = [one for one in network.alternatives if one.name.endswith(".apart")]
    assert [layer.problem.operator for layer in apart.layers] == ["group_statistics", "normalize"]
    assert network_error(with_alternatives(network, [apart.name]), model, x, store) < 1e-5
    small = capture(model, (2, 3, 16, 16), "f32")
    assert not [one.name for one in small.alternatives if one.name.endswith(".apart")]


def test_the_mean_of_a_quantized_convolutions_input_is_not_taken():
    model = random_model(Gated(), size=40).half()
    layers = capture(model, (2, 3, 48, 48), "f16").layers
    in_bytes = tuple(
        dataclasses.replace(layer, problem=dataclasses.replace(layer.problem, dtype="s8"))
        if layer.name == "wide"
        else layer
        for layer in layers
    )
    found = [[one.name for one in alternatives(given) if one.name.endswith(".early")] for given in (layers, in_bytes)]
    assert found == [["se.early"], []]


@pytest.mark.parametrize(("k", "act", "padded"), [(3, torch.tanh, 8), (21, torch.relu, 24), (16, torch.relu, 0)])
def test_channels_that_fit_no_vector_are_the_first_of_some_that_do(k, act, padded, store):
    model = random_model(
        Function(lambda m, x: act(m.last(torch.relu(m.c(x)))), c=nn.Conv2d(3, 8, 3), last=nn.Conv2d(8, k, 3))
    )
    x = images(2, 16)
    network = capture(model, tuple(x.shape), "f32")
    found = [one for one in network.alternatives if one.name == "last.padded"]
    assert [one.layers[0].problem.k for one in found] == ([padded] if padded else [])
    for one in found:
        taken = with_alternatives(network, [one.name])
        assert [layer.problem.operator for layer in taken.layers][-2:] == ["conv2d", "concat"]
        assert network_error(taken, model, x, store) < 1e-5


def test_a_convolution_that_adds_a_tensor_is_not_padded():
    model = Function(
        lambda m, x: m.first(x) + m.second(x), first=nn.Conv2d(8, 3, 1), second=nn.Conv2d(8, 3, 3, padding=1)
    )
    network = capture(model.eval(), (1, 8, 9, 9), "f32")
    (adds,) = [layer.name for layer in network.layers if "add" in layer.problem.epilogue.names]
    found = [one.name for one in network.alternatives if one.name.endswith(".padded")]
    assert found == [f"{name}.padded" for name in ("first", "second") if name != adds]
