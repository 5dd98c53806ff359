"""Captured normalizations, resizes, shuffles and transposed convolutions: layers of ours with torch's results."""

import copy

import pytest
import torch
import torch.nn.functional as F
from architectures import Of, random_model
from comparison import relative_error
from torch import nn

from autotune.ir import operators as op
from fused_resnet import FusedResNet
from fused_resnet.capture import capture

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")

X = torch.randn(2, 3, 8, 6, generator=torch.Generator().manual_seed(3))


class ConvNextBlock(nn.Module):
    """The block of ConvNeXt (Liu et al., arXiv 2201.03545)."""

    def __init__(self, c):
        super().__init__()
        self.depthwise = nn.Conv2d(c, c, 7, padding=3, groups=c)
        self.norm = nn.LayerNorm(c, eps=1e-6)
        self.expand, self.project = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.scale = nn.Parameter(torch.randn(c, 1, 1))

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.project(F.gelu(self.expand(y)))
        return x + self.scale * y.permute(0, 3, 1, 2)


class Tokens(nn.Module):
    """The same products on (n, pixels, channels), as transformers have it, with scales of channels on the last axis."""

    def __init__(self, c):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(c), nn.Linear(c, c)
        self.scale = nn.Parameter(torch.randn(c))

    def forward(self, x):
        n, c, h, w = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        tokens = tokens + self.scale * F.relu(self.fc(self.norm(tokens)))
        return tokens.transpose(1, 2).reshape(n, c, h, w)


def checked(model, database, x=X, limit=1e-5):
    """Compare a model's result with its own in float64; return the classes of its problems behind the first two."""
    model = random_model(model, size=8)
    with torch.no_grad():
        y, expected = FusedResNet.from_model(model, database)(x), copy.deepcopy(model).double()(x.double())
    assert y.shape == expected.shape and relative_error(y, expected) < limit
    layers = capture(model, tuple(x.shape), "f32").layers
    assert isinstance(layers[0].problem, op.ToChannelsLast) and isinstance(layers[1].problem, op.Conv2d)
    return layers[2:]


def kinds(layers):
    return [type(layer.problem) for layer in layers]


def chains(layers):
    return [str(layer.problem.epilogue) for layer in layers]


CASES = {
    "ConvNeXt": (lambda m, x: m.a(x), {"a": ConvNextBlock(8)}, [op.Conv2d, op.LayerNorm, op.Gemm, op.Gemm]),
    "tokens": (lambda m, x: m.a(x), {"a": Tokens(8)}, [op.LayerNorm, op.Gemm]),
    "LayerNorm2d": (
        lambda m, x: F.relu(m.a(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)),
        {"a": nn.LayerNorm(8)},
        [op.LayerNorm],
    ),
    "of features": (
        lambda m, x: m.a(x.mean((2, 3))),
        {"a": nn.LayerNorm(8, bias=False)},
        [op.GlobalAvgPool2d, op.LayerNorm],
    ),
    "other order": (
        lambda m, x: F.linear(x.permute(0, 3, 2, 1), m.w, m.b).relu().permute(0, 3, 2, 1),
        {"w": nn.Parameter(torch.randn(5, 8)), "b": nn.Parameter(torch.randn(5))},
        [op.Gemm],
    ),
    "GroupNorm": (lambda m, x: F.silu(m.a(x)) + x, {"a": nn.GroupNorm(4, 8)}, [op.GroupNorm]),
    "InstanceNorm": (lambda m, x: m.a(x), {"a": nn.InstanceNorm2d(8, affine=True)}, [op.GroupNorm]),
    "softmax": (lambda m, x: x.softmax(1), {}, [op.Softmax]),
    "softmax of features": (lambda m, x: F.softmax(x.amax((2, 3)), -1), {}, [op.TorchCall, op.Softmax]),
    "nearest": (lambda m, x: F.interpolate(x, scale_factor=2).relu(), {}, [op.Upsample]),
    "nearest, odd": (lambda m, x: F.interpolate(x, size=(11, 7)), {}, [op.Upsample]),
    "nearest-exact": (lambda m, x: F.interpolate(x, size=(5, 13), mode="nearest-exact"), {}, [op.Upsample]),
    "bilinear": (lambda m, x: F.interpolate(x, size=(20, 13), mode="bilinear"), {}, [op.Upsample]),
    "corners": (lambda m, x: F.interpolate(x, size=(20, 1), mode="bilinear", align_corners=True), {}, [op.Upsample]),
    "factor": (lambda m, x: F.interpolate(x, scale_factor=(1.3, 0.7), mode="bilinear") * 2, {}, [op.Upsample]),
    "shuffle": (lambda m, x: F.pixel_shuffle(x, 2) * m.g, {"g": nn.Parameter(torch.randn(2, 1, 1))}, [op.DepthToSpace]),
    "transposed 2x2": (
        lambda m, x: F.relu(m.n(m.a(x))),
        {"a": nn.ConvTranspose2d(8, 6, 2, 2), "n": nn.BatchNorm2d(6)},
        [op.Conv2dDgrad],
    ),
    "transposed 3x3": (lambda m, x: m.a(x), {"a": nn.ConvTranspose2d(8, 5, 3, 2, 1, 1, bias=False)}, [op.Conv2dDgrad]),
    "transposed, dilated": (
        lambda m, x: m.a(x) * 2,
        {"a": nn.ConvTranspose2d(8, 6, (3, 2), (1, 2), (1, 0), groups=2, dilation=(2, 1))},
        [op.Conv2dDgrad],
    ),
}


@pytest.mark.parametrize(("function", "parts", "wanted"), CASES.values(), ids=CASES)
def test_results_are_torchs_and_the_layers_are_ours(function, parts, wanted, empty_db):
    assert kinds(checked(Of(function, **parts), empty_db)) == wanted


def test_the_block_of_convnext_has_its_steps_in_epilogues(empty_db):
    layers = checked(Of(lambda m, x: m.a(x), a=ConvNextBlock(8)), empty_db)
    assert chains(layers) == ["bias", "scale,bias", "bias,gelu", "bias,add"]
    assert layers[2].problem.m == 2 * 8 * 6 and layers[3].buffers["add1"] == layers[0].buffers["x"]


def test_a_batch_norm_behind_a_transposed_convolution_is_folded(empty_db):
    parts = {"a": nn.ConvTranspose2d(8, 6, 2, 2, bias=False), "n": nn.BatchNorm2d(6)}
    assert chains(checked(Of(lambda m, x: m.n(m.a(x)).relu(), **parts), empty_db)) == ["bias,relu"]


def test_vectors_of_another_axis_than_the_makers_channels_are_no_steps_of_its_epilogue(empty_db):
    """Behind a permutation the vector runs along the width, where the convolution's epilogue has channels."""
    gain, x = nn.Parameter(torch.randn(8)), torch.randn(2, 3, 8, 8)
    layers = checked(Of(lambda m, x: (x.permute(0, 2, 3, 1).transpose(2, 3) * m.g).relu(), g=gain), empty_db, x)
    assert kinds(layers) == [op.TorchCall, op.Elementwise]  # the product, then the activation


def test_layouts_are_told_apart_where_all_sizes_agree(empty_db):
    """x + x^T of 8 x 8 x 8: equal shapes, other elements."""
    x = torch.randn(2, 3, 8, 8)
    model = Of(lambda m, x: x + F.relu(x).permute(0, 2, 3, 1))
    assert op.TorchCall in kinds(checked(model, empty_db, x))
    model = Of(lambda m, x: m.norm(x.permute(0, 2, 3, 1)) + x, norm=nn.LayerNorm(8))
    assert op.TorchCall in kinds(checked(model, empty_db, x))


def test_a_transposed_gate_is_no_squeeze_and_excitation(empty_db):
    """As many images as channels: the gate of image i and channel j stands at image j and channel i."""

    def gated(m, x):
        gate = torch.sigmoid(m.b(F.relu(m.a(x.mean((2, 3))))))
        return x * gate.t()[:, :, None, None]

    x = torch.randn(8, 3, 4, 4)
    layers = checked(Of(gated, a=nn.Linear(8, 2), b=nn.Linear(2, 8)), empty_db, x)
    assert not any(layer.problem.operator in ("se_tail", "squeeze_excite") for layer in layers)


def test_a_transposed_flattened_image_is_not_taken_for_the_image(empty_db):
    x = torch.randn(32, 3, 2, 2)
    checked(Of(lambda m, x: m.a(x.flatten(1).t()), a=nn.Linear(32, 3)), empty_db, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: x.permute(0, 2, 3, 1),
        lambda m, x: F.relu(m.norm(x.permute(0, 2, 3, 1))),
        lambda m, x: m.norm(x.permute(0, 2, 3, 1)).flatten(1, 2),
        lambda m, x: F.linear(x.permute(0, 2, 3, 1), m.norm.weight[None]).sum(-1),
        lambda m, x: F.layer_norm(x, x.shape[1:]),
        lambda m, x: F.layer_norm(x, x.shape[3:]),
        lambda m, x: m.conv1d(x.flatten(2)),
        lambda m, x: x.permute(1, 0, 2, 3) * 2,
        lambda m, x: m.norm(x.permute(0, 2, 3, 1)).unflatten(1, (4, 2)).transpose(2, 3).flatten(1),
        lambda m, x: x.flatten(2).transpose(1, 2).softmax(1),
        lambda m, x: F.conv_transpose2d(x, x.new_ones(8, 3, 2, 2), dilation=3, output_padding=2),
        lambda m, x: F.group_norm(x.flatten(2), 2),
        lambda m, x: m.bn1d(x.flatten(2)),
        lambda m, x: m.bn1d(x.flatten(2).transpose(1, 2).transpose(1, 2)),
    ],
)
def test_what_has_no_layer_is_right_too(function, empty_db):
    parts = {"norm": nn.LayerNorm(8), "conv1d": nn.Conv1d(8, 4, 3), "bn1d": nn.BatchNorm1d(8)}
    checked(Of(function, **parts), empty_db)


def test_decomposed_norms_are_captured(empty_db):
    """A change of a view in place makes torch decompose the graph's operators."""

    def changed(m, x):
        half = x[:, :4]
        half.mul_(2)
        return m.group(m.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))

    layers = checked(Of(changed, norm=nn.LayerNorm(8), group=nn.GroupNorm(2, 8)), empty_db)
    assert kinds(layers)[-2:] == [op.LayerNorm, op.GroupNorm]


def test_other_batches_have_the_layers_of_a_capture():
    model = random_model(Of(lambda m, x: m.a(x), a=ConvNextBlock(8)), size=8)
    two, five = (capture(model, (n, *X.shape[1:]), "f32") for n in (2, 5))
    assert two.with_batch(5).key == five.key


class NormOfPixels(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("resize", [nn.Upsample(scale_factor=2), nn.PixelShuffle(2)])
@pytest.mark.parametrize("shape", [(1, 8, 3, 3), (2, 8, 1, 1), (2, 4, 5, 3)])
def test_a_permuted_norm_may_be_resized(resize, shape, empty_db):
    model = nn.Sequential(NormOfPixels(shape[1]), resize).eval()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(FusedResNet.from_model(model, empty_db)(x), model(x))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear"])
@pytest.mark.parametrize("factor", [1.3, (1.1, 1.6), 0.9])
def test_a_factor_may_leave_a_size_as_it_is(mode, factor, empty_db):
    model = nn.Upsample(scale_factor=factor, mode=mode).eval()
    x = torch.randn(2, 3, 2, 3, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(FusedResNet.from_model(model, empty_db)(x), model(x))


class OnePlus(nn.Module):
    def forward(self, weight):
        return 1 + weight


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_batch_norm_with_a_computed_parameter_keeps_it(name, empty_db):
    norm = nn.BatchNorm2d(8)
    nn.utils.parametrize.register_parametrization(norm, name, OnePlus())
    model = nn.Sequential(nn.Conv2d(8, 8, 3), norm).eval()
    x = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(FusedResNet.from_model(model, empty_db)(x), model(x), rtol=1e-4, atol=1e-5)
