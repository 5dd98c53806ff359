"""What cannot be captured is refused with the path of the submodule and what to do."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from architectures import Function, Of, ResNet, images
from torch import nn

from autotune.core import CaptureError
from fused_resnet import FusedResNet, InputError
from fused_resnet.capture import capture

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")
SHAPE = (2, 3, 32, 32)


@dataclasses.dataclass
class Unregistered:
    logits: torch.Tensor


def with_part(function):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.ReLU(), Function(function, count=torch.zeros(1)))).eval()


def branches(m, x):
    return x if x.sum() > 0 else -x


def counts(m, x):
    m.count += 1
    return x * m.count


def does_not_fit(m, x):
    return x.view(2, 7, -1)


def chooses(m, x):
    return torch.cond(x.sum() > 0, torch.neg, torch.abs, (x,))


def switches(m, x):
    with torch.autocast("cpu", torch.bfloat16):
        return x * 2


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (chooses, r"1\.1 calls torch's cond"),
        (switches, r"calls torch's wrap_with_autocast"),
        (branches, r"1\.1 \(Function\) cannot be traced for an input of \(2, 3, 32, 32\)"),
        (does_not_fit, r"1\.1 \(Function\) cannot be traced"),
        (counts, r"1\.1: forward changes '1\.1\.count'"),
        (lambda m, x: torch.fft.fft(x), r"1\.1: fft_fft is torch\.complex64: real numbers, integers and booleans"),
        (lambda m, x: x.sum().item(), "returns a number that depends on values of tensors, by item"),
        (lambda m, x: x[x > 0], r"1\.1 calls aten\.index\.Tensor: the size of its result depends on values"),
        (lambda m, x: torch.unique(x), r"1\.1 calls aten\._unique2\.default: the size of its result depends"),
        (lambda m, x: None, "the model returns no tensor"),
        (lambda m, x: Unregistered(x), r"returns a .*Unregistered: .*or register a dataclass by torch\.export\."),
    ],
)
def test_what_a_forward_may_not_do(function, said):
    with pytest.raises(CaptureError, match=said):
        capture(with_part(function), SHAPE, "f32")


def test_modes_devices_and_dtypes(empty_db):
    model = ResNet("basic").eval()
    model.layer1[1].bn2.train()
    with pytest.raises(CaptureError, match=r"layer1\.1\.bn2 \(BatchNorm2d\) is in training mode: call \.eval\(\)"):
        capture(model, SHAPE, "f32")
    model = ResNet("basic").eval()
    model.layer1[0].conv2.bfloat16()
    with pytest.raises(CaptureError, match=r"layer1\.0\.conv2\.weight is torch\.bfloat16 on cpu, and conv1\.weight"):
        FusedResNet.from_model(model, empty_db)
    model = ResNet("basic").eval()
    model.fc.to("meta")
    with pytest.raises(CaptureError, match=r"fc\.weight is torch\.float32 on meta"):
        FusedResNet.from_model(model, empty_db)
    with pytest.raises(CaptureError, match=r"the model is in torch\.float32 and the input in torch\.float16"):
        capture(ResNet("basic").eval(), SHAPE, "f16")
    with pytest.raises(InputError, match=r"torch\.float64, for which there are no kernels: .* \.float\(\)"):
        FusedResNet.from_model(ResNet("basic").eval().double(), empty_db)(images(1).double())


def test_shapes_that_do_not_fit_name_the_layer(empty_db):
    network = FusedResNet.from_model(ResNet("basic").eval(), empty_db)
    with pytest.raises(CaptureError, match=r"conv1 \(Conv2d\) cannot be traced for an input of \(2, 5, 32, 32\)"):
        network(torch.randn(2, 5, 32, 32))
    assert network(images(1)).shape == (1, 10)


def test_a_part_that_is_a_network_of_ours_is_named(empty_db):
    part = FusedResNet.from_model(nn.Conv2d(3, 8, 1).eval(), empty_db)
    with pytest.raises(CaptureError, match=r"'1' is a FusedResNet: give the model with the module"):
        FusedResNet.from_model(nn.Sequential(nn.ReLU(), part).eval(), empty_db)
    assert FusedResNet.from_model(part, empty_db)(images(2)).shape == (2, 8, 32, 32)


def test_an_empty_batch_runs_on_the_plain_network(empty_db):
    model = ResNet("basic").eval()
    network, x = FusedResNet.from_model(model, empty_db), torch.randn(0, 3, 32, 32)
    assert network(x).shape == (0, 10) and not network(x).requires_grad
    out = torch.empty(0, 10)
    assert network(x, out=out) is out
    with pytest.raises(InputError, match=r"the input is torch\.float16"):
        network(x.half())


def test_normalisation_by_the_batch_itself_stays_torchs(empty_db):
    """Without running statistics a normalisation uses the batch's own, in eval mode too."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU()).eval()
    x = images(3)
    with torch.no_grad():
        torch.testing.assert_close(FusedResNet.from_model(model, empty_db)(x), model(x), atol=1e-5, rtol=1e-5)


def test_what_export_refuses_and_fx_traces(empty_db):
    """A module that keeps what passed through it."""

    def keeps(m, x):
        m.last = m.conv(x)
        return F.relu(m.last)

    model, x = Function(keeps, conv=nn.Conv2d(3, 4, 3)).eval(), images(1)
    expected = copy.deepcopy(model)(x)
    torch.testing.assert_close(FusedResNet.from_model(model, empty_db)(x), expected.detach())
    model(images(2))  # now it has the attribute before the capture, too
    network = FusedResNet.from_model(model, empty_db)
    torch.testing.assert_close(network(x), expected.detach())
    torch.testing.assert_close(network.last, model.last)  # a capture leaves it as it is


def reads(function):
    """Return a function of a convolution's result, and of a parameter."""
    return Of(function, weight=nn.Parameter(torch.rand(1, 8, 1, 1, generator=torch.Generator().manual_seed(3)) + 1))


def reads_as_its_own(m, y):
    z = y.permute(0, 2, 3, 1).contiguous().as_strided((2, 50), (512, 3))
    z.add_(1)
    return z


@pytest.mark.parametrize(
    "function",
    [
        lambda m, y: y.contiguous().as_strided((2, 8, 4, 8), (512, 64, 16, 1)).relu(),
        lambda m, y: y.contiguous().flatten(2).transpose(1, 2).as_strided((2, 50), (512, 3)),
        lambda m, y: y.contiguous().sin().as_strided((2, 50), (512, 3), 7),
        lambda m, y: torch.as_strided_scatter(y.contiguous().transpose(1, 3), torch.ones(2, 50), (2, 50), (512, 3)),
        lambda m, y: y[:, 2:].contiguous().as_strided((2, 50), (384, 3)),
        lambda m, y: F.conv2d(y, m.conv.weight.transpose(0, 1).as_strided((3, 8, 3, 3), (9, 27, 1, 3))),
        reads_as_its_own,
        lambda m, y: torch.view_as_complex(y[:, :, :, :2]).abs() + y[:, :, :, 0],
        lambda m, y: torch.view_as_real(torch.view_as_complex(y.reshape(2, 8, 32, 2)) ** 2),
        lambda m, y: y.round().view(torch.int16).float(),  # rounded: sums of other orders differ in their last bits
        lambda m, y: y * m.weight.view(torch.int32).bitwise_and(-65536).view(torch.float32),
        lambda m, y: y.view_as(torch.empty(2, 512)),
    ],
)
def test_what_depends_on_memory_reads_the_modules_layout(function, empty_db):
    model, x = reads(function).eval(), images(2, 8)
    network = FusedResNet.from_model(model, empty_db)
    with torch.no_grad():
        for given in (x, x.contiguous(memory_format=torch.channels_last)):
            torch.testing.assert_close(network(given), model(x))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda m, y: y[:, 2:].contiguous()[:, 1:], "a part"),
        (lambda m, y: y.contiguous()[:1].expand(2, 8, 8, 8), "a part"),
        (lambda m, y: y, "depends on the memory format"),
        (lambda m, y: y.relu().transpose(1, 2), "depends on the memory format"),
    ],
)
def test_memory_that_is_not_known_is_not_read(function, said):
    model = reads(lambda m, y: function(m, y).as_strided((2, 4), (64, 1))).eval()
    with pytest.raises(CaptureError, match=f"as_strided reads .*{said}.*call .contiguous"):
        capture(model, (2, 3, 8, 8), "f32")
