"""Results of networks in 8-bit formats against arithmetic that is written anew."""

import copy
import dataclasses
import pickle
from collections import defaultdict

import pytest
import torch
import torch.nn.functional as F
from architectures import ResNet, images, random_model
from comparison import relative_error
from native_network import native_runs
from network_error import result_on_torch
from quantized import SEEN, layers_of
from torch import nn
from tune_arguments import requested

from autotune.core import architecture
from autotune.families import serving
from autotune.ir import BYTE_PRECISIONS, S8
from autotune.ir.epilogue_steps import define_step
from autotune.ir.operators import Conv2dSkip, TorchCall
from autotune.runtime.network_plan import execute
from fused_resnet import Activation, FusedResNet
from fused_resnet.quantization import capture_bytes
from fused_resnet.quantization.calibrate import calibrate
from tuning_db import open_reader

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


CPU = torch.device("cpu")


def rounded_to(precision, values):
    """Values in steps of a scale, rounded; shares no code with the package."""
    if precision == "int8":
        return torch.clamp(torch.round(values), -128, 127)
    return values.clamp(-448, 448).float().to(torch.float8_e4m3fn).to(values.dtype)


LARGEST = {"int8": 127, "fp8": 448}


class Rounded:
    """Activations by name, brought to bytes and back once their ranges are known; shares no code with the package."""

    def __init__(self, precision):
        self.largest, self.known, self.precision = defaultdict(float), False, precision

    def __call__(self, name, x):
        if not self.known:
            self.largest[name] = max(self.largest[name], float(x.abs().max()))
            return x
        scale = self.largest[name] / LARGEST[self.precision]
        return rounded_to(self.precision, x / scale) * scale


def folded(conv, norm, precision):
    """Weight and bias of a convolution with its normalisation, in float64; the weight of bytes, channel by channel."""
    gain = norm.weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
    weight = conv.weight.double() * gain.view(-1, 1, 1, 1)
    if precision:
        scale = weight.abs().amax((1, 2, 3), keepdim=True) / LARGEST[precision]
        weight = rounded_to(precision, weight / scale) * scale
    return weight, norm.bias.double() - norm.running_mean.double() * gain


@torch.no_grad()
def basic_in_bytes(model, x, rounded):
    """The small ResNet as bytes compute it, on real numbers."""

    def conv(x, parts, in_bytes=True):
        precision = rounded.precision if in_bytes and rounded.known else None
        return F.conv2d(x, *folded(*parts, precision), parts[0].stride, parts[0].padding)

    x = F.max_pool2d(conv(x.double(), (model.conv1, model.bn1), False).relu(), 3, 2, 1)
    x = rounded("pooled", x)
    for i, block in enumerate(model.layer1):
        inner = rounded(f"{i}.inner", conv(x, (block.conv1, block.bn1)).relu())
        side = rounded(f"{i}.side", conv(x, tuple(block.downsample))) if block.downsample else x
        x = rounded(f"{i}", (conv(inner, (block.conv2, block.bn2)) + side).relu())
    x = rounded("mean", x.mean((2, 3)))
    return x @ model.fc.weight.double().T + model.fc.bias.double()


@pytest.fixture(scope="module", params=LARGEST)
def basic(request):
    """(the small ResNet, what it must give for some images in a precision, the precision)"""
    model, rounded = random_model(ResNet("basic")), Rounded(request.param)
    for batch in SEEN:
        basic_in_bytes(model, batch, rounded)
    rounded.known = True
    return model, basic_in_bytes(model, images(64, seed=9), rounded), request.param


COST = {"int8": (5e-3, 5e-2), "fp8": (1e-2, 0.1)}


def assert_bytes_arithmetic(y, expected, model, x, precision):
    """Equal to the simulation but where float32 rounds a byte the other way; far from the exact result."""
    exact = copy.deepcopy(model).double()(x.double())
    cost, (least, most) = relative_error(expected, exact), COST[precision]
    assert least < cost < most, "what quantization costs"
    far, off = ((other - expected).norm(dim=1) / expected.norm(dim=1) for other in (exact, y))
    assert (far > 1e-3).all() and (off < 1e-5).double().mean() > 0.7, (off < 1e-5).double().mean()
    assert relative_error(y, expected) < cost / 4


def network_in_bytes(model, x, precision):
    """Return the network of a model in bytes, with scales from the images seen."""
    scales = calibrate(model, SEEN, bias_correction=False, precision=precision)
    return capture_bytes(model, tuple(x.shape), "f32", scales, BYTE_PRECISIONS[precision])


def run_with(names, network, model, x, database):
    """Return the layers of a network with some alternatives taken, and their result on torch's operators."""
    taken = dataclasses.replace(network, layers=network.layers_with(names), alternatives=())
    with open_reader(database) as store:
        return taken.layers, result_on_torch(taken, model, x, store)


def test_results_are_those_of_bytes(basic, empty_db):
    model, expected, precision = basic
    scales, x = calibrate(model, SEEN, bias_correction=False, precision=precision), images(64, seed=9)
    network = FusedResNet.from_model(model, empty_db, precision=precision, calibration=scales)
    y = network(x)
    assert_bytes_arithmetic(y, expected, model, x, precision)
    assert set(network.state_dict()) == set(model.state_dict())

    for again in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert torch.equal(again(x), y)
    from_batches, from_scales = (
        FusedResNet.from_model(model, empty_db, precision=precision, calibration=one)
        for one in (SEEN, calibrate(model, SEEN, precision=precision))
    )
    assert torch.equal(from_batches(x), from_scales(x))


def test_changed_weights_are_brought_to_bytes_anew(basic, empty_db):
    model, _, precision = basic
    network, x = FusedResNet.from_model(model, empty_db, precision=precision, calibration=SEEN), images(4, seed=9)
    network(x)
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.layer1[1].conv1.weight.mul_(-3)
    network.load_state_dict(changed.state_dict())
    scales = calibrate(model, SEEN, precision=precision)
    assert torch.equal(
        network(x), FusedResNet.from_model(changed, empty_db, precision=precision, calibration=scales)(x)
    )


def test_the_first_layers_also_run_with_their_cast(basic, empty_db):
    """The pool's result is written in bytes, and its conversion is left out."""
    model, expected, precision = basic
    x = images(64, seed=9)
    network = network_in_bytes(model, x, precision)
    name = f"conv1.stem_pool.{BYTE_PRECISIONS[precision].dtype}"
    layers, y = run_with([name], network, model, x, empty_db)
    assert str(layers[0].problem.epilogue) == "bias,relu,mul_scalar" and len(layers) == len(network.layers) - 3
    assert_bytes_arithmetic(y, expected, model, x, precision)


def test_the_ends_of_blocks_also_run_with_their_projections(basic, empty_db):
    """Both convolutions add to one sum, which is rounded once."""
    model, expected, precision = basic
    x = images(64, seed=9)
    network = network_in_bytes(model, x, precision)
    names = [one.name for one in network.alternatives if one.name.endswith(".projected")]
    layers, y = run_with(names, network, model, x, empty_db)
    projected = [layer for layer in layers if isinstance(layer.problem, Conv2dSkip)]
    assert len(projected) == len(names) > 0 and {layer.problem.dtype for layer in projected} == {
        BYTE_PRECISIONS[precision].dtype
    }
    assert {str(layer.problem.epilogue) for layer in projected} == {"bias,relu"}
    exact = copy.deepcopy(model).double()(x.double())
    cost = relative_error(expected, exact)
    assert relative_error(y, exact) < 1.1 * cost and 0 < relative_error(y, expected) < cost


@pytest.mark.compile
def test_kernels_of_ours_run_a_network_in_bytes(basic, cpu, cpu_target, empty_db):
    """Every layer that a CPU family serves, on one of its kernels."""
    model, expected, precision = basic
    x, scales = images(64, seed=9), calibrate(model, SEEN, bias_correction=False, precision=precision)
    network = capture_bytes(model, tuple(x.shape), "f32", scales, BYTE_PRECISIONS[precision])
    assert all(len(serving(layer.problem, cpu)) == 1 for layer in network.layers)
    y = torch.full(network.results[0].shape, float("nan"))
    runs, _memory = native_runs(network, model, cpu, cpu_target)
    execute(runs, 0, (x, y))
    assert_bytes_arithmetic(y, expected, model, x, precision)
    of_torch = FusedResNet.from_model(model, empty_db, precision=precision, calibration=scales)(x)
    assert relative_error(y, of_torch) < relative_error(expected, copy.deepcopy(model).double()(x.double())) / 4


def test_the_tuner_tunes_what_the_runtime_runs(basic, tmp_path, empty_db):
    model, _, precision = basic
    file = tmp_path / "mine.py"
    file.write_text("from architectures import ResNet\nmake = lambda: ResNet('basic')\n")
    arguments = ("--model", f"{file}:make", "--input", "3,32,32", "--batch", "2", "--precision", precision)
    (wanted,) = requested(*arguments)
    network = FusedResNet.from_model(model, empty_db, precision=precision, calibration=SEEN)._network(images(2))
    assert wanted.title == f"make, batch 2, f32, {precision}" and wanted.network.key == network.key
    others = [layer.problem for layer in network.all_layers[len(network.layers) :]]
    tuned = [one for one in others if isinstance(one, TorchCall) or serving(one, architecture("cpu"))]
    assert wanted.problems == [*(layer.problem for layer in network.layers), *tuned] and len(tuned) < len(others)


class Of(nn.Module):
    """A function after the first of three convolutions in a row, in the middle one's place."""

    def __init__(self, function, **parts):
        super().__init__()
        self.first, self.middle = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.last = nn.Conv2d(16, 16, 3, padding=1)
        self.end = nn.Conv2d(16, 8, 1)
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.end(self.last(self.function(self, self.middle(F.relu(self.first(x))))))


@pytest.mark.parametrize(
    ("function", "chain"),
    [
        (lambda m, x: F.relu(x) * m.gain, "scale,bias,relu,scale"),
        (lambda m, x: F.leaky_relu(x + 0.5, 0.2), "scale,bias,leaky_relu"),
        (lambda m, x: F.relu(x) + 3, "scale,bias,relu,add_scalar"),
        (lambda m, x: torch.clamp(x, -0.5, 0.75), "scale,bias,clamp"),
        (lambda m, x: F.silu(x), "scale,bias,silu,mul_scalar"),
        (lambda m, x: F.relu6(F.relu(x) - 1), "scale,bias,relu,add_scalar,relu6,mul_scalar"),
        (lambda m, x: torch.sigmoid(x) + F.relu(x), None),
        (lambda m, x: m.act(x), "scale,bias,bent_up@,mul_scalar"),
        (lambda m, x: F.relu(F.relu(x) + m.side(x)) + x, None),
    ],
    ids=["scale", "leaky", "add_scalar", "clamp", "silu", "relu6", "store", "custom", "branches"],
)
@pytest.mark.parametrize("form", BYTE_PRECISIONS.values(), ids=BYTE_PRECISIONS)
def test_chains_keep_their_meaning(form, function, chain, empty_db):
    define_step("bent_up", cuda="x > 0.f ? x : slope * x", torch="torch.where(x > 0, x, slope * x)",
                params={"slope": "channel"})  # fmt: skip
    parts = {"gain": nn.Parameter(torch.linspace(0.5, 2, 16).view(-1, 1, 1)), "side": nn.Conv2d(16, 16, 1)}
    module = Of(function, **parts, act=Activation("bent_up", slope=torch.linspace(-1, 1, 16)))
    model = random_model(module, size=12)
    seen = [images(4, 12, seed) for seed in (1, 2)]
    layers = layers_of(model, seen[0], form=form)
    assert layers["last"].problem.dtype == form.dtype
    if chain:
        assert str(layers["middle"].problem.epilogue).startswith(chain.partition("@")[0])
        assert str(layers["middle"].problem.epilogue).endswith(chain.rpartition("@")[2])
    x = images(8, 12, seed=5)
    y = FusedResNet.from_model(model, empty_db, precision=form.precision, calibration=seen)(x)
    exact = model.double()(x.double()).detach()
    assert 1e-3 < relative_error(y, exact) < (0.05 if form is S8 else 0.1)
