"""Layers that run in an 8-bit format, and the reason for each that does not."""

import pytest
import torch
from architectures import ARCHITECTURES, Function, ResNet, conv_norm, images, random_model
from comparison import relative_error
from quantized import ANY, SEEN, layers_of
from torch import nn

from autotune.ir import BYTE_FORMATS, E4M3, S8
from autotune.ir.operators import Cast, MaxPool2d
from fused_resnet import FusedResNet
from fused_resnet.capture import capture
from fused_resnet.quantization import capture_bytes
from fused_resnet.quantization.calibrate import calibrate

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


@pytest.mark.parametrize("form", BYTE_FORMATS.values(), ids=BYTE_FORMATS)
def test_a_residual_network_is_bytes_from_pool_to_pool(form):
    layers = layers_of(random_model(ResNet("basic")), form=form)
    dtypes = {name: layer.problem.dtype for name, layer in layers.items() if not isinstance(layer.problem, Cast)}
    assert [name for name, dtype in dtypes.items() if dtype == "f32"] == ["input", "conv1", "maxpool", "fc"]
    assert set(dtypes.values()) == {"f32", form.dtype}
    casts = [name for name, layer in layers.items() if isinstance(layer.problem, Cast)]
    assert casts == [f"maxpool.{form.dtype}", "avgpool.f32"]
    assert str(layers["layer1.0.conv1"].problem.epilogue) == "scale,bias,relu"
    assert str(layers["layer1.1.downsample.0"].problem.epilogue) == "scale,bias"
    assert str(layers["layer1.1.conv2"].problem.epilogue) == "scale,bias,add,mul_scalar,relu"
    assert layers["layer1.0.conv1"].buffers["x"] == layers[f"maxpool.{form.dtype}"].buffers["y"]
    assert layers["layer1.0.conv2"].buffers["add2"] == layers[f"maxpool.{form.dtype}"].buffers["y"]
    assert layers["fc"].buffers["x"] == layers["avgpool.f32"].buffers["y"]


def test_what_stays_is_told_with_the_reason(empty_db):
    model = nn.Sequential(
        conv_norm(3, 16, 3, act=nn.ReLU), conv_norm(16, 32, 3, act=nn.ReLU), conv_norm(32, 32, 3, groups=32),
        conv_norm(32, 24, 1), conv_norm(24, 32, 1), nn.Conv2d(32, 32, 3), nn.LogSigmoid(),
        conv_norm(32, 32, 3, act=nn.ReLU), nn.MaxPool2d(2), conv_norm(32, 48, 3),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10),
    )  # fmt: skip
    model = random_model(model)
    network = capture_bytes(model, (2, 3, 32, 32), "f32", ANY, S8)
    assert network.kept == {
        "0.0": "it is the first and reads the input",
        "2.0": "depthwise: bound by memory, not by arithmetic",
        "3.0": "its channels (per group) are not multiples of 16",
        "4.0": "its channels (per group) are not multiples of 16",
        "12": "it is the last and makes the result",
        "1.0": "its neighbors are not in bytes: the casts would cost more than bytes gain",
        "5": "its neighbors are not in bytes: the casts would cost more than bytes gain",
    }
    assert [layer.name for layer in network.layers if layer.problem.dtype == "s8"] == [
        *("7.0", "8", "9.0", "10", "10.f32")  # a max pool passes bytes on as they are: it has no chain
    ]
    assert str({layer.name: layer for layer in network.layers}["8"].problem.epilogue) == "none"
    shown = str(FusedResNet.from_model(model, empty_db, precision="int8", calibration=SEEN).explain(images(2)))
    assert all(len(line) <= 80 for line in shown.splitlines())
    said = " ".join(shown.split())
    assert "not in bytes: 0.0 (it is the first and reads the input); 2.0 (depthwise" in said and "7.0 s8 aten " in said


def pooled_sum(others):
    """Return the sum of a max pool's result and of those of convolutions, which is the chain of the pool."""

    def forward(m, x):
        y = m.before(m.first(x).relu()).relu()
        results = [conv(y) for conv in m.others]
        return m.last(m.behind(sum(results, nn.functional.max_pool2d(y, 3, 2, 1))).relu())

    in_row = {"first": nn.Conv2d(3, 16, 3), "before": nn.Conv2d(16, 16, 3), "behind": nn.Conv2d(16, 16, 3)}
    added = nn.ModuleList(nn.Conv2d(16, 16, 3, stride=2, padding=1) for _ in range(others))
    return Function(forward, **in_row, others=added, last=nn.Conv2d(16, 4, 1))


@pytest.mark.parametrize(("others", "dtype"), [(3, "s8"), (7, "s8"), (8, "f32"), (12, "f32")])
def test_a_pool_whose_chain_has_no_room_stays(others, dtype):
    layers = layers_of(pooled_sum(others).eval(), torch.zeros(2, 3, 14, 14))
    [pool] = [layer.problem for layer in layers.values() if isinstance(layer.problem, MaxPool2d)]
    assert pool.dtype == dtype and layers["before"].problem.dtype == "s8"


def test_only_sums_of_integers_can_overflow():
    wide = nn.Sequential(
        *(nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16384, 1), nn.Conv2d(16384, 16, 3), nn.Conv2d(16, 16, 1)),
        nn.Conv2d(16, 4, 1),
    ).eval()
    kept = {form: capture_bytes(wide, (1, 3, 8, 8), "f32", ANY, form).kept for form in (S8, E4M3)}
    assert kept[S8]["2"] == "its sums could overflow int32" and "2" not in kept[E4M3]


def test_a_product_of_activations_is_computed_in_real_values(empty_db):
    def product(m, x):
        y = m.first(x)
        return m.last(m.middle(m.a(y) * m.b(y)))

    parts = {name: nn.Conv2d(3 if name == "first" else 32, 32, 3) for name in ("first", "a", "b", "middle")}
    model = random_model(Function(product, **parts, last=nn.Conv2d(32, 5, 1)))
    kept = capture_bytes(model, (2, 3, 32, 32), "f32", ANY, S8).kept
    assert [kept.get(name, "").partition(":")[0] for name in ("a", "b")] == [
        "its epilogue multiplies or subtracts another activation",
        "its neighbors are not in bytes",
    ]
    network, x = FusedResNet.from_model(model, empty_db, precision="int8", calibration=SEEN), images(2)
    assert relative_error(network(x), model(x)) < 0.05


def test_a_tuner_needs_no_calibration():
    """Scales decide no step: problems and wiring are the same for all."""
    for name, form in (("basic", S8), ("bottleneck", E4M3), ("vgg", S8)):
        model = random_model(ARCHITECTURES[name]())
        scales = calibrate(model, SEEN, precision=form.precision)
        some, other = (capture_bytes(model, (2, 3, 32, 32), "f32", of, form) for of in (scales, ANY))
        assert some.key == other.key and [a.problem for a in some.all_layers] == [b.problem for b in other.all_layers]
        assert some.key != capture(model, (2, 3, 32, 32), "f32").key
        assert f"dtype=f32+{form.dtype}" in str(some.key)


def test_the_keys_of_networks_in_int8_stay():
    """Databases hold plans by this text."""
    key = capture_bytes(random_model(ResNet("basic")), (2, 3, 32, 32), "f32", ANY, S8).key
    assert str(key) == "ResNet n=2 input=3x32x32 dtype=f32+s8 5845e8158e65"
