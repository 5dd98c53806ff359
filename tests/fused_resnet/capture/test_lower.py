"""Captured modules: the layers that come out, and results equal to the module's own."""

import copy

import pytest
import torch
import torch.nn.functional as F
from architectures import ARCHITECTURES, Function, Of, ResNet, images, random_model
from comparison import relative_error
from torch import nn

from autotune.ir.operators import Concat, Conv2d, Elementwise, Gemm, GlobalAvgPool2d, SeTail, SqueezeExcite, TorchCall
from fused_resnet import FusedResNet
from fused_resnet.capture import capture

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")

LIMIT = 1e-5


@torch.no_grad()
def precise(model, x):
    return copy.deepcopy(model).double().eval()(x.double())


def assert_right(model, database, x=None):
    x = images(2) if x is None else x
    network = FusedResNet.from_model(model, database)
    y, expected = network(x), precise(model, x)
    assert y.shape == expected.shape
    assert relative_error(y, expected) < LIMIT
    return network


def layers_of(model, x=None):
    return {layer.name: layer for layer in capture(model, tuple((images(2) if x is None else x).shape), "f32").layers}


def chains(layers, kind=Conv2d):
    return [str(layer.problem.epilogue) for layer in layers.values() if isinstance(layer.problem, kind)]


def left_to_torch(layers):
    return [name for name, layer in layers.items() if isinstance(layer.problem, TorchCall)]


def of(function, **parts):
    return random_model(Of(function, **parts), size=8)


X = images(2, 8)


# -- architectures -------------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_results_are_the_models(name, empty_db):
    model = random_model(ARCHITECTURES[name]())
    network = assert_right(model, empty_db)
    assert set(network.state_dict()) == set(model.state_dict())


def test_a_residual_network_is_convolutions_with_epilogues():
    layers = layers_of(random_model(ResNet("bottleneck")))
    assert [name for name in layers if "." not in name] == ["input", "conv1", "maxpool", "avgpool", "fc"]
    assert left_to_torch(layers) == [] and len(layers) == 5 + 3 * 3 + 2
    assert str(layers["layer1.1.conv3"].problem.epilogue) == "bias,add,relu"
    assert layers["layer1.1.conv3"].buffers["add1"] == layers["layer1.1.conv1"].buffers["x"]
    assert str(layers["layer1.0.downsample.0"].problem.epilogue) == "bias"
    order = list(layers)
    assert order.index("layer1.0.downsample.0") < order.index("layer1.0.conv3")
    assert layers["fc"].problem == Gemm(m=2, n=10, k=32, dtype="f32", epilogue=layers["fc"].problem.epilogue)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_nothing_is_left_to_torch(name):
    assert left_to_torch(layers_of(random_model(ARCHITECTURES[name]()))) == []


def test_squeeze_and_excitation_is_one_layer_where_it_is_that_problem():
    layers = layers_of(random_model(ARCHITECTURES["senet"]()))
    assert chains(layers, SeTail) == ["add,relu", "none"]
    assert not [layer for layer in layers.values() if isinstance(layer.problem, GlobalAvgPool2d)]
    layers = layers_of(random_model(ARCHITECTURES["mobilenet_v3"]()))
    assert not chains(layers, SeTail) and not left_to_torch(layers)
    gates = [layer.problem for layer in layers.values() if isinstance(layer.problem, SqueezeExcite)]
    assert [(gate.act, gate.gate) for gate in gates] == [("relu", "hardsigmoid")] * 2


def gated(first, second, view=lambda mean: mean, between=lambda hidden: hidden):
    """Return a convolution whose result a gate scales; the products of the gate read views of the mean."""

    def forward(m, y):
        hidden = torch.relu(m.first(view(y.mean((2, 3), keepdim=True))))
        return y * torch.sigmoid(m.second(between(hidden))).view(len(y), -1, 1, 1)

    return Of(forward, first=first, second=second).eval()


@pytest.mark.parametrize(
    "make",
    [
        lambda: gated(nn.Conv2d(8, 4, 1, padding=1, stride=3), nn.Conv2d(4, 8, 1)),
        lambda: gated(nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1, padding=1, stride=3)),
        lambda: gated(nn.Conv2d(8, 4, 1, padding=1), nn.Conv2d(4, 8, 1, stride=3)),
        lambda: gated(nn.Linear(4, 3), nn.Linear(3, 4), lambda mean: mean.view(-1, 4)),
        lambda: gated(nn.Linear(16, 3), nn.Linear(3, 16), lambda mean: mean.view(1, 16)),
        lambda: gated(nn.Linear(8, 4), nn.Linear(2, 4), lambda mean: mean.flatten(1), lambda hidden: hidden.view(4, 2)),
        lambda: gated(nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1), lambda mean: mean.view(1, 8, 2, 1)),
    ],
)
def test_gates_that_only_look_like_squeeze_and_excitation(make, empty_db):
    model = make()
    assert not chains(layers_of(model, X), SeTail)
    assert_right(model, empty_db, X)


def test_a_gate_may_pass_through_views(empty_db):
    model = gated(
        nn.Conv2d(8, 4, 1, stride=2),
        nn.Linear(4, 8),
        lambda mean: mean.view(2, 8).view(2, 8, 1, 1),
        lambda hidden: hidden.view(2, 2, 2).flatten(1),
    )
    assert chains(layers_of(model, X), SeTail) == ["none"]
    assert_right(model, empty_db, X)


def test_a_gate_of_the_mean_of_all_values(empty_db):
    def forward(m, y):
        return y * torch.sigmoid(m.second(torch.relu(m.first(y.mean(None, keepdim=True))))).view(1, 8, 1, 1)

    model = Of(forward, first=nn.Conv2d(1, 4, 1), second=nn.Conv2d(4, 8, 1)).eval()
    assert_right(model, empty_db, X[:1])


def test_normalisations_without_a_product_before_them_are_layers():
    layers = layers_of(random_model(ARCHITECTURES["densenet"]()))
    assert "scale,bias,relu" in chains(layers, Concat)
    assert {"bias,relu", "none"} <= set(chains(layers))


# -- pieces -------------------------------------------------------------------


ACTIVATIONS = {
    "relu": nn.ReLU(),
    "relu6": nn.ReLU6(),
    "leaky_relu": nn.LeakyReLU(0.2),
    "sigmoid": nn.Sigmoid(),
    "hardsigmoid": nn.Hardsigmoid(),
    "silu": nn.SiLU(),
    "hardswish": nn.Hardswish(),
    "tanh": nn.Tanh(),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
    "clamp": nn.Hardtanh(-0.5, 0.75),
    "prelu": nn.PReLU(8, init=0.3),
    "elu": nn.ELU(0.7),
    "elu,mul_scalar": nn.SELU(),
    "softplus": nn.Softplus(2.0, 5.0),
    "mish": nn.Mish(),
}


def test_every_activation_of_the_epilogues_is_found(empty_db):
    """Each on values of its own range: one module with all of them on a slice would hide which failed."""

    def forward(m, x):
        return torch.cat([act(conv(x)) for conv, act in zip(m.convs, m.acts, strict=True)], 1)

    convs = nn.ModuleList([nn.Conv2d(3, 8, 1) for _ in ACTIVATIONS])
    model = random_model(Function(forward, convs=convs, acts=nn.ModuleList(ACTIVATIONS.values())), size=8)
    assert chains(layers_of(model, X)) == [f"bias,{name}" for name in ACTIVATIONS]
    network = FusedResNet.from_model(model, empty_db)
    parts = zip(network(X).split(8, 1), precise(model, X).split(8, 1), ACTIVATIONS, strict=True)
    assert {name for y, expected, name in parts if relative_error(y, expected) > LIMIT} == set()


@pytest.mark.parametrize(
    ("function", "chain"),
    [
        (lambda m, x: x * 2 - 1, "bias"),
        (lambda m, x: (1 - x / 4).clamp(min=0), "bias,relu"),
        (lambda m, x: x * m.gain + m.shift, "bias"),
        (lambda m, x: F.relu(x) * m.gain, "bias,relu,scale"),
        (lambda m, x: (F.relu(x) + 3) * m.single, "bias,relu,add_scalar,mul_scalar"),
        (lambda m, x: x * torch.sigmoid(x), "bias,silu"),
        (lambda m, x: -torch.clamp(F.relu(x), -1, 6), "bias,relu,clamp,mul_scalar"),
        (lambda m, x: F.celu(x, 0.5).abs().neg().exp(), "bias,elu,abs,mul_scalar,exp"),
        (lambda m, x: F.prelu(x, m.single), "bias,leaky_relu"),
    ],
)
def test_constants_are_folded_or_become_steps(function, chain, empty_db):
    parts = {"gain": nn.Parameter(torch.ones(8, 1, 1)), "shift": nn.Parameter(torch.ones(1, 8, 1, 1))}
    model = of(function, **parts, single=nn.Parameter(torch.ones(1)))
    assert chains(layers_of(model, X)) == [chain]
    assert_right(model, empty_db, X)


def test_a_clamp_by_a_tensor_is_torchs(empty_db):
    floor = nn.Parameter(torch.randn(8, 1, 1))
    assert_right(of(lambda m, x: torch.clamp(x, min=m.floor), floor=floor), empty_db, X)


SOBEL = [[1.0, 0, -1, 2, 0, -2, 1, 0, -1] * 8, [1.0, 2, 1, 0, 0, 0, -1, -2, -1] * 8]


@pytest.mark.parametrize(
    "function",
    [
        lambda m, y: m.norm(F.conv2d(y, m.flat.view(4, 8, 3, 3))),
        lambda m, y: F.conv_transpose2d(y, m.flat.view(8, 4, 3, 3)) * m.four.view(1, 4, 1, 1),
        lambda m, y: m.norm(F.conv2d(y, torch.tensor(SOBEL * 2).to(y.dtype).view(4, 8, 3, 3))),
        lambda m, y: F.conv2d(y, torch.tensor([[[SOBEL[0][:3]]] * 8] * 4).to(y.dtype)) * m.four.view(4, 1, 1) + 1,
        lambda m, y: F.linear(F.adaptive_avg_pool2d(y, (2, 3)).flatten(1), m.flat.view(6, 48)) * 3,
        lambda m, y: F.batch_norm(y, m.wide.running_mean, m.wide.running_var, m.eight.view(8), m.wide.bias),
    ],
)
def test_weights_may_be_views(function, empty_db):
    generator = torch.Generator().manual_seed(1)
    flat, four, eight = (torch.rand(shape, generator=generator) for shape in ((288,), (4,), (1, 8, 1, 1)))
    parameters = {"flat": nn.Parameter(flat), "four": nn.Parameter(four), "eight": nn.Parameter(eight)}
    model = of(function, norm=nn.BatchNorm2d(4), wide=nn.BatchNorm2d(8), **parameters)
    network = assert_right(model, empty_db, X)
    with torch.no_grad():
        for tensor in (*network.parameters(), *model.parameters()):
            tensor.mul_(1.5)
    assert relative_error(network(X), precise(model, X)) < LIMIT


@pytest.mark.parametrize(
    ("function", "chain"),
    [
        (lambda m, x: x * m.gate(x.mean((2, 3), keepdim=True)), ["mul_image"]),
        (lambda m, x: F.relu(m.gate(F.adaptive_avg_pool2d(x, 1)).expand_as(x) + x), ["add_image,relu"]),
        (lambda m, x: x * m.spatial(x).sigmoid(), ["mul_pixel"]),
        (lambda m, x: m.spatial(x).expand(-1, 8, -1, -1) + x, ["add_pixel"]),
        (lambda m, x: F.relu(x * m.other(x) - m.third(x)), []),
        (lambda m, x: m.other(x) - m.third(x) * x, []),
        (lambda m, x: x * x, ["mul"]),
    ],
)
def test_products_and_differences_of_activations_are_steps(function, chain, empty_db):
    kernels = {"gate": nn.Conv2d(8, 8, 1), "spatial": nn.Conv2d(8, 1, 3, padding=1)}
    model = of(function, **kernels, other=nn.Conv2d(8, 8, 1), third=nn.Conv2d(8, 8, 1))
    layers = layers_of(model, X)
    assert chains(layers, Elementwise) == chain and not left_to_torch(layers)
    assert_right(model, empty_db, X)


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda m, x: F.avg_pool2d(x, 3, 2, 1), "avg_pool2d"),
        (lambda m, x: F.avg_pool2d(x, 2, 2, ceil_mode=True), "avg_pool2d"),
        (lambda m, x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), "clipped_avg_pool2d"),
        (lambda m, x: F.avg_pool2d(x, 3, 2, ceil_mode=True), "clipped_avg_pool2d"),
        (lambda m, x: F.avg_pool2d(x, 3, 3, 1, ceil_mode=True), "avg_pool2d"),
        (lambda m, x: F.avg_pool2d(x, (3, 2), (3, 4), 1, True, False), "clipped_avg_pool2d"),
        (lambda m, x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), "torch"),
        (lambda m, x: F.avg_pool2d(x, 2, divisor_override=3), "torch"),
        (lambda m, x: F.adaptive_avg_pool2d(x, (4, 2)), "avg_pool2d"),
        (lambda m, x: F.adaptive_avg_pool2d(x, (3, 5)), "adaptive_avg_pool2d"),
        (lambda m, x: F.adaptive_avg_pool2d(x, (12, 3)), "adaptive_avg_pool2d"),
    ],
)
def test_average_pools_are_problems(function, operator, empty_db):
    model = of(function)
    assert [layer.problem.operator for layer in layers_of(model, X).values()][2:] == [operator]
    assert_right(model, empty_db, X)


def test_a_value_with_several_users_is_kept(empty_db):
    def branches(m, x):
        y = F.relu(x)
        z = m.bn(y)  # of y, which others need too
        return m.second(F.relu(z)) + y + z

    model = of(branches, bn=nn.BatchNorm2d(8), second=nn.Conv2d(8, 8, 3, padding=1))
    assert chains(layers_of(model, X)) == ["bias,relu,store,scale,bias,store,relu", "bias,add,add"]
    assert_right(model, empty_db, X)


def test_a_step_waits_for_no_layer_that_needs_it(empty_db):
    """relu(x) + conv(relu(x)): the sum belongs to the second convolution, whichever operand comes first."""
    for function in (lambda m, x: x + m.second(x), lambda m, x: m.second(x) + x):
        model = of(lambda m, x, f=function: f(m, F.relu(x)), second=nn.Conv2d(8, 8, 1))
        assert chains(layers_of(model, X)) == ["bias,relu", "bias,add"]
        assert_right(model, empty_db, X)


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: F.interpolate(F.relu(x), scale_factor=2),
        lambda m, x: torch.cat([x, F.elu(x)], 1),
        lambda m, x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        lambda m, x: F.max_pool2d(x, 3, 2, ceil_mode=True),
        lambda m, x: F.max_pool2d(x, 3, 1, dilation=2),
        lambda m, x: F.adaptive_avg_pool2d(x, 3),
        lambda m, x: F.adaptive_avg_pool2d(x, (4, 2)),
        lambda m, x: F.conv2d(F.pad(x, (0, 1, 0, 1)), m.two.weight),
        lambda m, x: F.conv_transpose2d(x, m.conv.weight.transpose(0, 1).transpose(0, 1), stride=2),
        lambda m, x: x.reshape(-1, 4, 2, 8, 8).transpose(1, 2).reshape(-1, 8, 8, 8) * 2,
        lambda m, x: x.chunk(2, 1)[1] * x.chunk(2, 1)[0],
        lambda m, x: x.amax((2, 3)),
        lambda m, x: x.mean((1, 2)),
        lambda m, x: x.mean((2, 3)),
        lambda m, x: x.mean((2, 3), keepdim=True),
        lambda m, x: x.flatten(1),
        lambda m, x: x.flatten(2).transpose(1, 2).softmax(-1),
        lambda m, x: m.bn1d(x.mean((2, 3))),
        lambda m, x: torch.where(x > 0, x, x * 0.5),
        lambda m, x: x - torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]).view(1, -1, 1, 1),
        lambda m, x: F.instance_norm(x),
        lambda m, x: x.add(F.relu(x), alpha=2),
        lambda m, x: x + x,
        lambda m, x: F.linear(x.flatten(1), m.wide.weight).relu(),
        lambda m, x: F.linear(F.relu(x).permute(0, 2, 3, 1), m.rows.weight, m.rows.bias).permute(0, 3, 1, 2),
        lambda m, x: F.linear(x.flatten(2).transpose(1, 2), m.rows.weight, m.rows.bias),
    ],
)
def test_what_is_known_and_what_is_not_come_out_right(function, empty_db):
    parts = {"bn1d": nn.BatchNorm1d(8), "wide": nn.Linear(512, 4), "rows": nn.Linear(8, 5), "two": nn.Conv2d(8, 4, 2)}
    assert_right(of(function, **parts), empty_db, X)


def test_changes_in_place(empty_db):
    def changes(m, x):
        y = x.flatten(1)  # shares memory with x
        x = x.clone()
        x += 1
        x.mul_(2)
        z = F.relu(x, inplace=True)
        return z + x + y.reshape(x.shape)

    def through_a_view(m, x):
        half = x[:, :4]
        half.mul_(3)
        return x * 2

    def dropped(m, x):
        y = F.dropout(x, training=False)  # x itself
        y.relu_()
        return x * 2

    for function in (changes, through_a_view, dropped):
        assert_right(of(function), empty_db, X)


def test_shared_modules_and_dead_branches(empty_db):
    def twice(m, x):
        m.second(x)
        return m.first(m.act(m.first(m.act(x))))

    model = of(twice, first=nn.Conv2d(8, 8, 1), second=nn.Conv2d(8, 8, 1), act=nn.ReLU(inplace=True))
    assert list(layers_of(model, X)) == ["input", "conv", "first", "first:2"]
    assert_right(model, empty_db, X)


def test_other_inputs(empty_db):
    features = random_model(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))[:1])
    assert_right(features, empty_db, torch.randn(5, 6))
    assert_right(random_model(nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU())), empty_db, torch.randn(2, 3, 9))
    assert_right(nn.Identity().eval(), empty_db, X)


def test_models_made_and_converted_in_inference_mode(empty_db):
    with torch.inference_mode():
        model = random_model(ResNet("basic"))
        assert_right(model, empty_db)
        network = FusedResNet.from_model(model, empty_db).bfloat16()
        assert any(parameter.is_inference() for parameter in network.parameters())
        assert relative_error(network(images(2).bfloat16()), precise(model, images(2))) < 2e-2


def test_the_key_tells_networks_apart():
    model = random_model(ResNet("basic"))
    found = {(n, size): capture(model, (n, 3, size, size), "f32") for n in (1, 2) for size in (32, 48)}
    keys = {network.key for network in found.values()}
    assert len(keys) == 4 and all(key.startswith("ResNet n=") for key in keys)
    assert {found[2, 32].with_batch(n).key for n in (1, 2, 7)} & keys == {found[n, 32].key for n in (1, 2)}
    assert capture(random_model(ResNet("basic"), seed=5), (2, 3, 32, 32), "f32").key in keys
    other = copy.deepcopy(model)
    other.layer1[1].relu = nn.SiLU().eval()
    assert capture(other, (2, 3, 32, 32), "f32").key not in keys
