"""Networks in bytes: scales, which layers, how chains are rewritten, and results against arithmetic written anew."""

import copy
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from architectures import Function, ResNet, conv_norm, images, random_model
from processes import python
from quantized import SEEN, layers_of
from torch import nn

from autotune.core import AutotuneError, CaptureError, ProblemError
from autotune.ir import BYTE_PRECISIONS
from fused_resnet import FusedResNet, InputError, model_source
from fused_resnet.capture import capture
from fused_resnet.networks import se_resnet9_fixup
from fused_resnet.quantization import CalibratedScales, compare
from fused_resnet.quantization.calibrate import Loss, calibrate

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_results_are_compared():
    expected = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    assert compare(expected, expected) == Loss(2, 1.0, 0.0, 0.0)
    loss = compare(expected, torch.tensor([[4.0, 3.0], [1.0, 0.0]]))
    assert loss == Loss(2, 0.5, pytest.approx(math.sqrt(2 / 26)), pytest.approx(1 / math.sqrt(26 / 4)))
    assert "same top-1 on 50.00% of 2 samples" in str(loss)
    with pytest.raises(ProblemError, match="cannot be compared"):
        compare(expected, expected[:1])


def test_the_module_of_the_functions_has_the_name_that_the_docs_give_it():
    import fused_resnet.quantization.calibrate

    assert fused_resnet.quantization.calibrate.calibrate is calibrate
    assert fused_resnet.quantization.calibrate.compare is compare


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


def narrow():
    """Four convolutions of 16 channels, of which the inner two run in bytes."""
    parts = nn.Sequential(*(nn.Conv2d(16, 16, 3, padding=1) for _ in range(4)))
    return random_model(parts), torch.randn(2, 16, 8, 8, generator=torch.Generator().manual_seed(2))


def random_model_of(module):
    """Return a module in eval mode with random parameters that do not depend on other tests."""
    return se_resnet9_fixup.randomize(module.eval())


@pytest.mark.parametrize("precision", BYTE_PRECISIONS)
@pytest.mark.parametrize("weight", [1e-44, 2e-43, 1e-39])
def test_a_filter_whose_scale_is_no_number_gives_zeros(precision, weight, empty_db):
    model, x = narrow()
    with torch.no_grad():
        model[1].weight[3] = 0
        model[1].weight[3, 0, 0, 0] = weight
    scales = calibrate(model, [x], precision=precision)
    assert all(map(math.isfinite, scales.corrections["1"]))
    y = FusedResNet.from_model(model, empty_db, precision=precision, calibration=scales)(x)
    assert compare(model(x).detach(), y).error < 0.1


def test_activations_that_are_almost_zero_have_the_scale_of_zeros():
    model, x = narrow()
    with torch.no_grad():
        model[1].weight *= 1e-41
        model[1].bias.zero_()
    scales = calibrate(model, [x])
    assert scales["1"] == 1.0 and 0 < scales["0"] < 1


def test_autocast_and_a_buffer_that_is_filled_again_change_no_scale():
    model, x = narrow()
    batches = [x, 3 * x.flip(0)]

    def filled_again():
        buffer = torch.empty_like(x)
        for batch in batches:
            yield buffer.copy_(batch)

    expected = calibrate(model, batches)
    with torch.autocast("cpu", torch.bfloat16):
        assert calibrate(model, batches) == expected
    again = calibrate(model, filled_again())
    assert again == expected and again.corrections == expected.corrections


def test_copies_of_scales_keep_what_belongs_to_them():
    model, x = narrow()
    scales = calibrate(model, [x], precision="fp8")
    for other in (scales.copy(), scales | {"1": 2.0}):
        assert vars(other) == vars(scales) and vars(scales)["precision"] == "fp8"
    assert scales.copy() == scales != scales | {"1": 2.0}


def behind(function):
    """Return a function of the result of a narrow network."""
    return Function(lambda m, x: function(m.layers(x)), layers=narrow()[0]).eval()


def test_results_that_are_no_floating_point_have_no_scale(empty_db):
    model, x = behind(lambda y: (y, y > 0)), narrow()[1]
    y, mask = FusedResNet.from_model(model, empty_db, precision="int8", calibration=[x])(x)
    assert compare(model(x)[0].detach(), y).error < 0.1 and mask.dtype == torch.bool


def test_saved_scales_load_by_torchs_default(tmp_path):
    model, x = narrow()
    scales = calibrate(model, [x], precision="fp8", max_loss=1e-9)
    assert scales.sensitive and calibrate(model, [x]).corrections
    torch.save({"scales": scales, "more": calibrate(model, [x])}, tmp_path / "scales.pt")
    loaded = torch.load(tmp_path / "scales.pt")
    for one, other in ((scales, loaded["scales"]), (calibrate(model, [x]), loaded["more"])):
        assert type(other) is CalibratedScales and other == one and vars(other) == vars(one)


@pytest.mark.process
def test_a_program_loads_scales_before_it_makes_a_network(tmp_path):
    torch.save(CalibratedScales({"a": 0.5}, precision="fp8"), tmp_path / "scales.pt")
    done = python(
        f"""
import torch
from fused_resnet import FusedResNet
print(torch.load({str(tmp_path / "scales.pt")!r}).precision)
"""
    )
    assert done.stdout.split() == ["fp8"], done.stderr


class Gates(nn.Module):
    """Channels that a softmax gates, of which a mask takes some out."""

    def __init__(self):
        super().__init__()
        self.before, self.after = (nn.Sequential(*(nn.Conv2d(16, 16, 3, padding=1) for _ in "abc")) for _ in "ab")
        self.logits = nn.Conv2d(16, 16, 1)
        self.register_buffer("mask", torch.zeros(16, 1, 1).index_fill_(0, torch.tensor([3, 7]), -math.inf))

    def forward(self, x):
        return self.after(16 * torch.softmax(self.logits(self.before(x)) / 32 + self.mask, 1))


@pytest.mark.parametrize("precision", BYTE_PRECISIONS)
@pytest.mark.parametrize("max_loss", [None, 1e-9, 0.5])
def test_layers_with_infinite_results_stay_out_of_bytes(precision, max_loss, empty_db):
    model, x = random_model_of(Gates()), narrow()[1]
    scales = calibrate(model, [x], precision=precision, max_loss=max_loss)
    assert "infinite" in scales.sensitive["logits"] and all(map(math.isfinite, scales.values()))
    network = FusedResNet.from_model(model, empty_db, precision=precision, calibration=scales)
    assert compare(model(x).detach(), network(x)).error < 0.1


@pytest.mark.parametrize("max_loss", [None, 0.5])
def test_masked_results_are_calibrated(max_loss, empty_db):
    model, x = behind(lambda y: y.mean((2, 3)).masked_fill(torch.arange(16) > 12, -math.inf)), narrow()[1]
    scales = calibrate(model, [x], max_loss=max_loss)
    assert scales.sensitive == {}
    y = FusedResNet.from_model(model, empty_db, precision="int8", calibration=scales)(x)
    assert y.isneginf().sum() == 2 * 3 and compare(model(x).detach(), y).error < 0.1


def narrow_linear():
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), *(nn.Linear(16, 16) for _ in "ab"))


@pytest.mark.parametrize("max_loss", [None, 0.5])
def test_models_of_integers_are_calibrated(max_loss, empty_db):
    embedded = Function(lambda m, x: m.layers(m.table(x)), table=nn.Embedding(10, 16), layers=narrow_linear())
    model = random_model_of(embedded)
    indices = torch.randint(10, (64, 7), generator=torch.Generator().manual_seed(1))
    scales = calibrate(model, [indices, indices[:8]], max_loss=max_loss)
    assert scales.keys() >= {"layers.0", "layers.2", "layers.4"}
    y = FusedResNet.from_model(model, empty_db, precision="int8", calibration=scales)(indices)
    assert compare(model(indices).detach(), y).error < 0.1


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = narrow()[0]

    def forward(self, *, image, scale=1.0):
        return self.layers(image) * scale


def test_batches_may_be_dictionaries(empty_db):
    model, x = Named().eval(), narrow()[1]
    batch = {"image": x, "scale": 0.5, "label": torch.zeros(2)}
    scales = calibrate(model, [batch, (batch, torch.zeros(2))])
    y = FusedResNet.from_model(model, empty_db, precision="int8", calibration=scales)(image=x, scale=0.5)
    assert compare(model(image=x, scale=0.5).detach(), y).error < 0.1
    assert scales["layers.1"] == calibrate(model.layers, [x])["1"]


def test_calibration_says_what_a_batch_must_be(empty_db):
    model, x = Named().eval(), narrow()[1]
    for batches, said in [
        ([{"pixels": x}], "dictionary of 'pixels', and forward takes 'image', 'scale': give the input by that name"),
        ([{"image": x, "scale": x}], "takes 'image', 'scale', and 8-bit formats are for models with one input"),
        ([{"scale": x}], "missing a required argument: 'image'"),
        ({"image": x}, "takes batches, and a dictionary was given: give a list of them"),
        ([x.numpy()], "is a ndarray, not a tensor: give torch.from_numpy"),
        ([()], "is a tuple, not a tensor"),
        ([{"image": x / 0}], "a batch holds values that are not finite"),
        ([{"image": x}, {"image": x[:0]}], r"a batch of the shape \(0, .*\) is empty: leave it out"),
        ([{"image": x.to_sparse()}], "a batch is a tensor in the layout torch.sparse_coo: give dense tensors"),
        ([{"image": x.to("meta")}], r"a batch is a tensor without memory \(meta\): give dense tensors"),
        ([{}], "dictionary of nothing, and forward takes 'image', 'scale'"),
        (5, "it takes batches, and a int was given: give a list of them"),
    ]:
        with pytest.raises(AutotuneError, match=said):
            calibrate(model, batches)
    with pytest.raises(ProblemError, match="is a FusedResNet already: give the module that it was made from"):
        calibrate(FusedResNet.from_model(model, empty_db), [{"image": x}])
    with pytest.raises(ProblemError, match=r"result of log holds values that are no numbers \(NaN\)"):
        calibrate(Function(lambda m, x: torch.log(x)), [-x.abs()])


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, "1"])
def test_a_scale_is_a_positive_number(scale, empty_db):
    model, x = narrow()
    scales = dict.fromkeys(calibrate(model, [x]), scale)
    with pytest.raises(CaptureError, match="and a scale is a positive number: calibrate again"):
        FusedResNet.from_model(model, empty_db, precision="int8", calibration=scales)(x)


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_a_network_without_a_layer_in_bytes_says_so(precision, empty_db):
    """The first and the last convolution stay in float32, and the one between them would need two casts."""
    x = torch.rand(2, 16, 9, 9)
    warned = {}
    for count in (2, 3, 5):
        convolutions = [layer for _ in range(count) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())]
        model = nn.Sequential(*convolutions).eval()
        scales = calibrate(model, [x], precision=precision)
        net = FusedResNet.from_model(model, empty_db, precision=precision, calibration=scales, compile=False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = net(x)
        said = f"no layer of Sequential runs in 8 bits for batch 2, so precision='{precision}' changes nothing"
        [warned[count]] = [[said in str(one.message) for one in caught if "8 bits" in str(one.message)]]
        with torch.no_grad():
            assert torch.allclose(result, model(x), rtol=1e-4, atol=1e-5) == (count < 5)
    assert warned == {2: [True], 3: [True], 5: []}


def test_calibration_says_what_it_cannot_use(empty_db):
    model = random_model(ResNet("basic"))
    with pytest.raises(ProblemError, match="no batch"):
        calibrate(model, [])
    with pytest.raises(ProblemError, match="a batch holds values that are not finite"):
        calibrate(model, [torch.full((1, 3, 32, 32), float("nan"))])
    with pytest.raises(CaptureError, match="calibration has no scale for maxpool"):
        layers_of(model, scales={"input": 1.0})
    for wrong, said in [
        ({"precision": "int8"}, "needs calibration"),
        ({"precision": "fp8"}, "precision='fp8' needs calibration"),
        (
            {"precision": "fp8", "calibration": calibrate(model, SEEN)},
            "calibration is for precision='int8', and precis",
        ),
        (
            {"precision": "int8", "calibration": calibrate(model, SEEN, precision="fp8")},
            r"calibrate\(..., precision='int8",
        ),
        ({"calibration": SEEN}, "for precision='int8' or precision='fp8' alone"),
        ({"precision": "tf32", "calibration": SEEN}, "for precision='int8' or precision='fp8' alone"),
        ({"precision": "int4", "calibration": SEEN}, "unknown precision 'int4': choose"),
    ]:
        with pytest.raises(AutotuneError, match=said):
            FusedResNet.from_model(model, empty_db, **wrong)
    for precision in BYTE_PRECISIONS:
        with pytest.raises(InputError, match=f"from_model.*precision='{precision}'"):
            FusedResNet(empty_db, precision=precision)


def test_a_range_ends_at_the_largest_number_of_the_format():
    model = random_model(ResNet("basic"))
    of_bytes, of_floats = (calibrate(model, SEEN, precision=precision) for precision in ("int8", "fp8"))
    assert of_bytes.precision == "int8" and of_floats.precision == "fp8"
    assert {name: 448 * scale for name, scale in of_floats.items()} == pytest.approx(
        {name: 127 * scale for name, scale in of_bytes.items()}
    )
    assert of_bytes.corrections.keys() == of_floats.corrections.keys() and of_bytes.corrections != of_floats.corrections


def test_a_gpu_without_e4m3_says_what_it_has(empty_db, monkeypatch):
    model = random_model(ResNet("basic"))
    network = FusedResNet.from_model(model, empty_db, precision="fp8", calibration=SEEN)
    capability = {"sm80": (8, 0), "sm89": (8, 9), "sm75": (7, 5)}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    for arch, has in (("sm80", "'tf32', 'int8', None"), ("sm75", "'int8', None"), ("sm89", None)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, arch=arch: capability[arch])
        if has is None:
            model_source._check_device("fp8", torch.device("cuda"))
            continue
        with pytest.raises(InputError) as refused:
            model_source._check_device("fp8", torch.device("cuda"))
        assert str(refused.value) == (
            f"precision='fp8' needs a GPU of compute capability 8.9 or more, and NVIDIA A100 has "
            f"{'.'.join(map(str, capability[arch]))}: it has the precisions {has}, of which None is that of the "
            "module's dtype"
        )
        model_source._check_device("int8", torch.device("cuda"))
        model_source._check_device(None, torch.device("cuda"))
    monkeypatch.setattr(model_source, "_check_device", lambda precision, device: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        network(images(2))


# -- results -----------------------------------------------------------------------------------------------------------


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
