"""Mean errors of networks in bytes, with and without bias correction."""

import io
import json
import pickle

import pytest
import torch
import torch.nn.functional as F
from architectures import ResNet, images, random_model
from quantized import SEEN, layers_of
from torch import nn

from autotune.core import CaptureError
from autotune.ir import BYTE_PRECISIONS, S8
from fused_resnet import FusedResNet
from fused_resnet.quantization import capture_bytes
from fused_resnet.quantization.bias_correction import IMAGES, has_room
from fused_resnet.quantization.calibrate import calibrate
from fused_resnet.quantization.scales import CalibratedScales

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")

CHANNELS = 16
LOST = 0.4
"""Part of a step that each small weight of `RoundedDown` loses."""


class RoundedDown(nn.Module):
    """Convolutions whose weights lose LOST of a step in bytes, between two that stay in float32; the last copies.

    The inputs of these convolutions are positive, so their results in bytes are too small.
    """

    def __init__(self, function, generator):
        super().__init__()
        self.first = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.a, self.b = (nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(2))
        self.last = nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False)
        self.function = function
        with torch.no_grad():
            for conv in (self.a, self.b):
                steps = torch.randint(0, 20, conv.weight.shape, generator=generator) + LOST
                steps[:, 0, 1, 1] = 127
                conv.weight.copy_(steps * 1e-3)
            self.last.weight.copy_(torch.eye(CHANNELS)[:, :, None, None])

    def forward(self, x):
        return self.last(self.function(self, F.relu(self.first(x))))


def means(result):
    return result.double().mean((0, 2, 3))


FUNCTIONS = {
    "chain": lambda m, x: m.b(F.relu(m.a(x))),
    "added": lambda m, x: m.b(F.relu(m.a(x))) + m.a(x),
    "silu": lambda m, x: m.b(F.silu(m.a(x))),
    "add_scalar": lambda m, x: m.b(F.relu(m.a(x) + 0.5)) - 0.25,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_mean_of_each_channel_is_that_in_float(name, generator, empty_db):
    model = RoundedDown(FUNCTIONS[name], generator).eval()
    seen, new = ([torch.randn(32, 3, 12, 12, generator=generator) for _ in range(2)] for _ in range(2))

    def mean_error(corrected, batches):
        scales = calibrate(model, seen, bias_correction=corrected)
        network = FusedResNet.from_model(model, empty_db, precision="int8", calibration=scales)
        assert not {"a", "b"} & network.explain(seen[0]).kept.keys()
        return means(torch.cat([network(x) for x in batches])) - means(torch.cat([model(x) for x in batches]))

    uncorrected = mean_error(False, seen)
    exact = means(torch.cat([model(x) for x in seen]))
    assert (uncorrected < -0.02 * exact.abs()).all(), "what all weights lose"
    assert (mean_error(True, seen).abs() < uncorrected.abs() / 50).all()
    assert (mean_error(True, new).abs() < uncorrected.abs() / 20).all(), "images that the calibration has not seen"


def test_the_correction_is_what_the_rounded_weights_lose(generator):
    """With inputs that bytes hold exactly the error is LOST of a step for each weight times the mean input."""
    model = RoundedDown(FUNCTIONS["chain"], generator).eval()
    with torch.no_grad():
        model.first.weight.zero_()
        model.first.bias.fill_(1)
    corrections = calibrate(model, [torch.zeros(2, 3, 5, 5)]).corrections
    inside = F.conv2d(torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3), padding=1)
    rounded = CHANNELS * inside.mean() - 1  # weights of a pixel that are not the largest
    assert corrections["a"] == pytest.approx([LOST * 1e-3 * float(rounded)] * CHANNELS, rel=1e-3)


def test_without_it_nothing_changes(empty_db):
    model, x = random_model(ResNet("basic")).eval(), images(8, seed=9)
    plain, corrected = (calibrate(model, SEEN, bias_correction=on) for on in (False, True))
    assert plain == corrected and plain.corrections == {} and corrected.corrections
    results = [
        FusedResNet.from_model(model, empty_db, precision="int8", calibration=scales)(x)
        for scales in (plain, dict(plain), dict(corrected), corrected)
    ]
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    assert not torch.equal(results[0], results[3])


def test_a_database_serves_any_correction():
    model = random_model(ResNet("basic")).eval()
    plain, corrected = (
        capture_bytes(model, (2, 3, 32, 32), "f32", calibrate(model, SEEN, bias_correction=on), S8)
        for on in (False, True)
    )
    assert plain.key == corrected.key
    assert [layer.problem for layer in plain.layers] == [layer.problem for layer in corrected.layers]
    changed = {one.name for one, other in zip(plain.layers, corrected.layers, strict=True) if one != other}
    assert changed == calibrate(model, SEEN).corrections.keys() == {
        name for name, layer in layers_of(model).items() if layer.problem.dtype == "s8" and "weight" in layer.weights
    }  # fmt: skip


def by_torch(scales):
    file = io.BytesIO()
    torch.save(scales, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def by_json(scales):
    return CalibratedScales(**json.loads(json.dumps({"scales": scales, **vars(scales)})))


@pytest.mark.parametrize("precision", BYTE_PRECISIONS)
@pytest.mark.parametrize("kept", [by_torch, lambda scales: pickle.loads(pickle.dumps(scales)), by_json])
def test_saved_scales_keep_the_corrections(kept, precision, empty_db):
    model, x = random_model(ResNet("basic")).eval(), images(8, seed=9)
    scales = calibrate(model, SEEN, precision=precision)
    again = kept(scales)
    assert again.precision == precision
    assert again == scales and again.corrections == scales.corrections and again.sensitive == scales.sensitive
    expected, y = (
        FusedResNet.from_model(model, empty_db, precision=precision, calibration=one)(x) for one in (scales, again)
    )
    assert torch.equal(y, expected)


def test_corrections_lessen_the_mean_error_in_e4m3(empty_db):
    model, seen = random_model(ResNet("basic")).eval(), [images(32, seed=seed) for seed in range(20, 24)]
    x, errors = torch.cat(seen), []
    for on in (False, True):
        scales = calibrate(model, seen, bias_correction=on, precision="fp8")
        y = FusedResNet.from_model(model, empty_db, precision="fp8", calibration=scales)(x)
        errors.append(float((y - model(x)).double().mean(0).norm()))
    assert errors[1] < errors[0] / 3


def test_only_layers_in_bytes_that_have_a_bias_are_corrected(generator):
    model = RoundedDown(FUNCTIONS["chain"], generator).eval()
    x = torch.randn(4, 3, 12, 12, generator=generator)
    assert calibrate(model, [x]).corrections.keys() == {"a", "b"}
    model.a.bias = None
    scales = calibrate(model, [x])
    assert scales.corrections.keys() == {"b"}
    layers_of(model, x, scales)
    with pytest.raises(CaptureError, match="corrects the bias of a, which has none"):
        layers_of(model, x, CalibratedScales(scales, corrections={"a": [0.0] * CHANNELS}))
    assert calibrate(nn.Conv2d(3, 16, 3), [x]).corrections == {}


def test_layers_that_a_limit_keeps_are_not_corrected():
    model = random_model(ResNet("basic")).eval()
    free, limited = calibrate(model, SEEN), calibrate(model, SEEN, max_loss=0.008)
    assert limited.sensitive and limited.corrections
    assert limited.corrections.keys() == free.corrections.keys() - limited.sensitive.keys()


def test_batches_of_one_shape_are_used_until_there_are_enough_images():
    image = torch.zeros(1, 3, 4, 4)
    assert has_room([], image.expand(2 * IMAGES, -1, -1, -1))
    batch = image.expand(IMAGES // 2, -1, -1, -1)
    assert has_room([batch], batch) and not has_room([batch, batch], batch)
    assert not has_room([batch], image)
    model = random_model(ResNet("basic")).eval()
    corrections = calibrate(model, SEEN).corrections
    assert calibrate(model, [*SEEN, SEEN[0][:2]]).corrections == corrections
