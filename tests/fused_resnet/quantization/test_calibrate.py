"""Networks in bytes: scales, which layers, how chains are rewritten, and results against arithmetic written anew."""

import argparse
import copy
import math
import pickle
import re
from collections import defaultdict

import pytest
import torch
import torch.nn.functional as F
from architectures import ARCHITECTURES, ResNet, conv_norm, images, random_model
from kernels import built_paths, candidate_of
from reference import relative_error
from torch import nn

from autotune.core import AutotuneError, CaptureError, ProblemError, architecture
from autotune.families import Kernel, family, serving
from autotune.ir import Cast
from autotune.ir.epilogue_steps import define_step
from autotune.ir.int8_numerics import quantize_weight, to_bytes
from autotune.runtime import KernelChoice, bind_layer, make_buffers, make_runs
from autotune.runtime.network_plan import execute
from autotune_cli.commands import tune
from autotune_cli.tune_request import tune_requests
from fused_resnet import Activation, FusedResNet, InputError
from fused_resnet.capture import capture
from fused_resnet.module_state import module_state
from fused_resnet.quantization import capture_int8, compare
from fused_resnet.quantization.calibrate import Loss, calibrate
from tuning_db import Store

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Layers this small only wait for each other's threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def empty_db(tmp_path_factory):
    path = tmp_path_factory.mktemp("quantize") / "empty.db"
    Store.create(path).close()
    return path


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(1)


CPU = torch.device("cpu")
ANY = defaultdict(lambda: 1.0)
"""Scales where none matters."""
SEEN = [images(4, seed=seed) for seed in (11, 12)]


def layers_of(model, x=None, scales=ANY):
    shape = tuple((images(2) if x is None else x).shape)
    return {layer.name: layer for layer in capture_int8(model, shape, "f32", scales).layers}


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_weights_fill_a_byte_in_every_channel(generator):
    weight = torch.randn(7, 5, 3, 3, generator=generator) * torch.logspace(-3, 3, 7).view(-1, 1, 1, 1)
    weight[4] = 0
    quantized, scale = quantize_weight(weight)
    assert quantized.dtype == torch.int8 and quantized.shape == weight.shape and scale.shape == (7,)
    largest = quantized.abs().flatten(1).amax(1).tolist()
    assert largest == [127, 127, 127, 127, 0, 127, 127]
    back = quantized.float() * scale.view(-1, 1, 1, 1)
    assert ((back - weight).abs() <= 0.5001 * scale.view(-1, 1, 1, 1)).all()
    assert to_bytes(torch.tensor([-9.0, 1.26, 9.0]), 0.05).tolist() == [-127, 25, 127]


def test_results_are_compared():
    expected = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    assert compare(expected, expected) == Loss(2, 1.0, 0.0, 0.0)
    loss = compare(expected, torch.tensor([[4.0, 3.0], [1.0, 0.0]]))
    assert loss == Loss(2, 0.5, pytest.approx(math.sqrt(2 / 26)), pytest.approx(1 / math.sqrt(26 / 4)))
    assert "same top-1 on 50.00% of 2 samples" in str(loss)
    with pytest.raises(ProblemError, match="cannot be compared"):
        compare(expected, expected[:1])


# -- calibration -------------------------------------------------------------------------------------------------------


def test_calibration_finds_the_largest_magnitude_of_every_layers_result(generator):
    model = random_model(ResNet("basic"))
    batches = [images(2) * size for size in (1.0, 5.0, 2.0)]
    scales = calibrate(model.train(), [(batch, torch.zeros(2)) for batch in batches])
    assert model.training
    block = model.eval().layer1[1]
    found = dict.fromkeys(("input", "conv1", "layer1.1.conv1", "layer1.1.downsample.0", "layer1.1.conv2", "fc"), 0.0)
    with torch.no_grad():
        for x in batches:
            stem = model.bn1(model.conv1(x)).relu()
            inner = model.layer1[0](model.maxpool(stem))
            first, side = block.bn1(block.conv1(inner)).relu(), block.downsample(inner)
            results = (x, stem, first, side, (block.bn2(block.conv2(first)) + side).relu(), model(x))
            for name, result in zip(found, results, strict=True):
                found[name] = max(found[name], float(result.abs().max()))
    assert {name: scales[name] * 127 for name in found} == pytest.approx(found, rel=1e-4)
    assert set(scales) == {layer.name for layer in capture(model, (2, 3, 32, 32), "f32").layers}
    assert calibrate(copy.deepcopy(model).half(), [batch.half() for batch in batches]) == pytest.approx(
        scales, rel=0.05
    )


def test_calibration_says_what_it_cannot_use(empty_db):
    model = random_model(ResNet("basic"))
    with pytest.raises(ProblemError, match="no batch"):
        calibrate(model, [])
    with pytest.raises(ProblemError, match="result of input holds values that are not finite"):
        calibrate(model, [torch.full((1, 3, 32, 32), float("nan"))])
    with pytest.raises(CaptureError, match="calibration has no scale for maxpool"):
        layers_of(model, scales={"input": 1.0})
    for wrong, said in [
        ({"precision": "int8"}, "needs calibration"),
        ({"calibration": SEEN}, "for precision='int8' alone"),
        ({"precision": "tf32", "calibration": SEEN}, "for precision='int8' alone"),
        ({"precision": "int4", "calibration": SEEN}, "unknown precision 'int4': choose"),
    ]:
        with pytest.raises(AutotuneError, match=said):
            FusedResNet.from_model(model, empty_db, **wrong)
    with pytest.raises(InputError, match="from_model"):
        FusedResNet(empty_db, precision="int8")


# -- what runs in bytes ------------------------------------------------------------------------------------------------


def test_a_residual_network_is_bytes_from_pool_to_pool():
    layers = layers_of(random_model(ResNet("basic")))
    dtypes = {name: layer.problem.dtype for name, layer in layers.items() if not isinstance(layer.problem, Cast)}
    assert [name for name, dtype in dtypes.items() if dtype == "f32"] == ["input", "conv1", "maxpool", "fc"]
    assert set(dtypes.values()) == {"f32", "s8"}
    assert [name for name, layer in layers.items() if isinstance(layer.problem, Cast)] == ["maxpool.s8", "avgpool.f32"]
    assert str(layers["layer1.0.conv1"].problem.epilogue) == "scale,bias,relu"
    assert str(layers["layer1.1.downsample.0"].problem.epilogue) == "scale,bias"
    assert str(layers["layer1.1.conv2"].problem.epilogue) == "scale,bias,add,mul_scalar,relu"
    assert layers["layer1.0.conv1"].buffers["x"] == layers["maxpool.s8"].buffers["y"]
    assert layers["layer1.0.conv2"].buffers["add2"] == layers["maxpool.s8"].buffers["y"]
    assert layers["fc"].buffers["x"] == layers["avgpool.f32"].buffers["y"]


def test_what_stays_is_told_with_the_reason(empty_db):
    model = nn.Sequential(
        conv_norm(3, 16, 3, act=nn.ReLU), conv_norm(16, 32, 3, act=nn.ReLU), conv_norm(32, 32, 3, groups=32),
        conv_norm(32, 24, 1), conv_norm(24, 32, 1), nn.Conv2d(32, 32, 3), nn.ELU(), conv_norm(32, 32, 3, act=nn.ReLU),
        nn.MaxPool2d(2), conv_norm(32, 48, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10),
    )  # fmt: skip
    model = random_model(model)
    network = capture_int8(model, (2, 3, 32, 32), "f32", ANY)
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


def test_a_tuner_needs_no_calibration():
    """Scales decide no step: problems and wiring are the same for all."""
    for name in ("basic", "bottleneck", "vgg"):
        model = random_model(ARCHITECTURES[name]())
        scales = calibrate(model, SEEN)
        some, other = (capture_int8(model, (2, 3, 32, 32), "f32", of) for of in (scales, ANY))
        assert some.key == other.key and [a.problem for a in some.all_layers] == [b.problem for b in other.all_layers]
        assert some.key != capture(model, (2, 3, 32, 32), "f32").key


# -- results -----------------------------------------------------------------------------------------------------------


class Rounded:
    """Activations by name, brought to bytes and back once their ranges are known; shares no code with the package."""

    def __init__(self):
        self.largest, self.known = defaultdict(float), False

    def __call__(self, name, x):
        if not self.known:
            self.largest[name] = max(self.largest[name], float(x.abs().max()))
            return x
        scale = self.largest[name] / 127
        return torch.clamp(torch.round(x / scale), -128, 127) * scale


def folded(conv, norm, in_bytes):
    """Weight and bias of a convolution with its normalisation, in float64; the weight of bytes, channel by channel."""
    gain = norm.weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
    weight = conv.weight.double() * gain.view(-1, 1, 1, 1)
    if in_bytes:
        scale = weight.abs().amax((1, 2, 3), keepdim=True) / 127
        weight = torch.round(weight / scale) * scale
    return weight, norm.bias.double() - norm.running_mean.double() * gain


@torch.no_grad()
def basic_in_bytes(model, x, rounded):
    """The small ResNet as bytes compute it, on real numbers."""

    def conv(x, parts, in_bytes=True):
        return F.conv2d(x, *folded(*parts, in_bytes and rounded.known), parts[0].stride, parts[0].padding)

    x = F.max_pool2d(conv(x.double(), (model.conv1, model.bn1), False).relu(), 3, 2, 1)
    x = rounded("pooled", x)
    for i, block in enumerate(model.layer1):
        inner = rounded(f"{i}.inner", conv(x, (block.conv1, block.bn1)).relu())
        side = rounded(f"{i}.side", conv(x, tuple(block.downsample))) if block.downsample else x
        x = rounded(f"{i}", (conv(inner, (block.conv2, block.bn2)) + side).relu())
    x = rounded("mean", x.mean((2, 3)))
    return x @ model.fc.weight.double().T + model.fc.bias.double()


@pytest.fixture(scope="module")
def basic():
    """(the small ResNet, what its int8 must give for some images)"""
    model, rounded = random_model(ResNet("basic")), Rounded()
    for batch in SEEN:
        basic_in_bytes(model, batch, rounded)
    rounded.known = True
    return model, basic_in_bytes(model, images(64, seed=9), rounded)


def assert_bytes_arithmetic(y, expected, model, x):
    """Equal to the simulation but where float32 rounds a byte the other way; far from the exact result."""
    exact = copy.deepcopy(model).double()(x.double())
    cost = relative_error(expected, exact)
    assert 5e-3 < cost < 5e-2, "what quantization costs"
    far, off = ((other - expected).norm(dim=1) / expected.norm(dim=1) for other in (exact, y))
    assert (far > 1e-3).all() and (off < 1e-5).double().mean() > 0.7, (off < 1e-5).double().mean()
    assert relative_error(y, expected) < cost / 4


def test_results_are_those_of_bytes(basic, empty_db):
    model, expected = basic
    network, x = FusedResNet.from_model(model, empty_db, precision="int8", calibration=SEEN), images(64, seed=9)
    y = network(x)
    assert_bytes_arithmetic(y, expected, model, x)
    assert set(network.state_dict()) == set(model.state_dict())

    kept = FusedResNet.from_model(model, empty_db, precision="int8", calibration=calibrate(model, SEEN))
    assert torch.equal(kept(x), y)
    for again in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert torch.equal(again(x), y)


def test_changed_weights_are_brought_to_bytes_anew(basic, empty_db):
    model, _ = basic
    network, x = FusedResNet.from_model(model, empty_db, precision="int8", calibration=SEEN), images(4, seed=9)
    network(x)
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.layer1[1].conv1.weight.mul_(-3)
    network.load_state_dict(changed.state_dict())
    scales = calibrate(model, SEEN)
    assert torch.equal(network(x), FusedResNet.from_model(changed, empty_db, precision="int8", calibration=scales)(x))


def test_kernels_of_ours_run_a_network_in_bytes(basic, cpu, cpu_target):
    """Every layer that a CPU family serves, on one of its kernels."""
    model, expected = basic
    x = images(64, seed=9)
    network = capture_int8(model, tuple(x.shape), "f32", calibrate(model, SEEN))
    kernels = {}
    for layer in network.layers:
        (chosen,) = serving(layer.problem, cpu)
        config = chosen.configs_for(layer.problem, cpu)[0]
        kernels[layer.name] = Kernel.of(chosen.name, config, layer.problem.dtype, layer.problem.epilogue, cpu_target)
    paths = built_paths(kernels.values())
    buffers, bound = make_buffers(network.layers, CPU), []
    for layer in network.layers:
        kernel = kernels[layer.name]
        launch = family(kernel.family).launches(layer.problem, kernel.values, cpu)[0]
        choice = KernelChoice(candidate_of(kernel, paths[kernel], launch), "tuned")
        bound.append(bind_layer(layer, choice, buffers, module_state(model), CPU))
    y = torch.full(network.output_shape, float("nan"))
    execute(make_runs(bound), 0, (x, y))
    assert_bytes_arithmetic(y, expected, model, x)


def requested(*arguments):
    """What these arguments of the tuner request."""
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    return tune_requests(parser.parse_args(arguments), architecture("cpu"))


def test_the_tuner_tunes_what_the_runtime_runs(basic, tmp_path, empty_db):
    model, _ = basic
    file = tmp_path / "mine.py"
    file.write_text("from architectures import ResNet\nmake = lambda: ResNet('basic')\n")
    arguments = ("--model", f"{file}:make", "--input", "3,32,32", "--batch", "2", "--precision", "int8")
    (wanted,) = requested(*arguments)
    network = FusedResNet.from_model(model, empty_db, precision="int8", calibration=SEEN).network(images(2))
    assert wanted.title == "make, batch 2, f32, int8" and wanted.network.key == network.key
    assert [problem for _, problem in wanted.named] == [layer.problem for layer in network.all_layers]


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
def test_chains_keep_their_meaning(function, chain, empty_db):
    define_step("bent_up", cuda="x > 0.f ? x : slope * x", torch="torch.where(x > 0, x, slope * x)",
                params={"slope": "channel"})  # fmt: skip
    parts = {"gain": nn.Parameter(torch.linspace(0.5, 2, 16).view(-1, 1, 1)), "side": nn.Conv2d(16, 16, 1)}
    module = Of(function, **parts, act=Activation("bent_up", slope=torch.linspace(-1, 1, 16)))
    model = random_model(module, size=12)
    seen = [images(4, 12, seed) for seed in (1, 2)]
    layers = layers_of(model, seen[0])
    assert layers["last"].problem.dtype == "s8"
    if chain:
        assert str(layers["middle"].problem.epilogue).startswith(chain.partition("@")[0])
        assert str(layers["middle"].problem.epilogue).endswith(chain.rpartition("@")[2])
    x = images(8, 12, seed=5)
    y = FusedResNet.from_model(model, empty_db, precision="int8", calibration=seen)(x)
    exact = model.double()(x.double()).detach()
    assert 1e-3 < relative_error(y, exact) < 0.05


# -- a network that has learnt -----------------------------------------------------------------------------------------


def pictures(count, generator):
    """Stripes of six directions and any phase, in noise: (count, 3, 12, 12) and their classes."""
    classes = torch.randint(6, (count,), generator=generator)
    angle = classes * (torch.pi / 6)
    across = torch.arange(12.0)
    place = torch.cos(angle)[:, None, None] * across[None, :, None] + torch.sin(angle)[:, None, None] * across
    phase = 6.3 * torch.rand(count, 1, 1, generator=generator)
    stripes = torch.sin(1.1 * place + phase)[:, None]
    return stripes + 0.3 * torch.randn(count, 3, 12, 12, generator=generator), classes


def test_a_trained_network_keeps_its_answers_in_bytes(empty_db, generator):
    torch.manual_seed(0)
    parts = [conv_norm(c, k, 3, stride, act=nn.ReLU) for c, k, stride in ((3, 16, 1), (16, 16, 2), (16, 16, 2))]
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 6))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(80):
        x, classes = pictures(48, generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x), classes).backward()
        optimizer.step()
    x, classes = pictures(1000, generator)
    expected = model.eval()(x)
    assert (expected.argmax(1) == classes).double().mean() > 0.9, "the network has learnt"
    scales = calibrate(model, [pictures(64, generator)[0] for _ in range(4)])

    def lost(factor):
        of = {name: scale * factor for name, scale in scales.items()}
        return compare(expected, FusedResNet.from_model(model, empty_db, precision="int8", calibration=of)(x))

    assert lost(1).agreement > 0.98 and 1e-4 < lost(1).error < 0.05
    assert lost(1 / 8).error > 3 * lost(1).error, "clipped"
    assert lost(8).error > 3 * lost(1).error, "coarse"


# -- TF32 --------------------------------------------------------------------------------------------------------------


def test_tf32_is_a_dtype_of_problems_alone(empty_db):
    model, x = random_model(ResNet("basic")), images(2)
    network = FusedResNet.from_model(model, empty_db, precision="tf32")
    assert {layer.problem.dtype for layer in network.network(x).all_layers} == {"tf32"}
    assert relative_error(network(x), model(x)) < 1e-5  # a CPU rounds no products
    ours = FusedResNet(empty_db, precision="tf32")
    assert {layer.problem.dtype for layer in ours.network(torch.zeros(1, 3, 64, 64)).layers} == {"tf32"}
    with pytest.raises(InputError, match=r"precision='tf32' is for float32.*f16.*\.float\(\)"):
        network.half()(x.half())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--precision", "tf32"], "cpu has no kernels in tf32: choose f32"),
        (["--precision", "int8"], "--precision int8 is for captured models"),
        (["--dtype", "s8"], "--dtype s8: a network's tensors are f16, bf16 or f32; give --precision"),
        (["--precision", "int8", "--problem", "conv2d n=1"], "--precision: these options are for a network"),
    ],
    ids=["tf32", "named", "dtype", "problem"],
)
def test_the_tuner_says_what_it_cannot_tune(arguments, said):
    with pytest.raises(AutotuneError, match=re.escape(said)):
        requested(*arguments)
