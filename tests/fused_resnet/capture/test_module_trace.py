"""Tracing of a module on tensors without data: the layers are those that torch.export gives."""

import threading

import pytest
import torch
from architectures import DenseNet, Function, MobileNet, ResNet, SENet
from processes import python
from torch import nn

from fused_resnet import FusedResNet
from fused_resnet.capture import capture, export
from fused_resnet.networks import se_resnet9_fixup
from fused_resnet.networks.unet import UNet

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


@pytest.fixture
def refuse(monkeypatch):
    """Makes a capture leave every module to torch.export."""

    def no(*_):
        raise ValueError("nothing is traced here")

    return lambda: monkeypatch.setattr(export, "trace_module", no)


class Lists(nn.Module):
    """Returns a dictionary of results, one of which is its input, another a parameter."""

    def __init__(self):
        super().__init__()
        self.conv, self.scale = nn.Conv2d(3, 4, 1), nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, x, mask):
        y = self.conv(x) * self.scale
        return {"y": y, "all": [x, y.flatten(1), mask + 1], "n": 3}


class Pools(nn.Sequential):
    """Pools whose last window may end behind the image, and transposed convolutions with groups."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 8, 3),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.ConvTranspose2d(8, 12, 3, 2, 1, output_padding=1, groups=4),
            nn.AvgPool2d(2, 3, ceil_mode=True),
            nn.ConvTranspose2d(12, 6, 2, dilation=3),
        )


def tokens():
    """Return patches as tokens behind a parameter, an embedding of positions, and a convolution of turned images."""

    def forward(m, x):
        found = m.patches(x).flatten(2).transpose(1, 2)
        found = torch.cat([m.token.expand(x.shape[0], -1, -1), found], 1)
        return found + m.positions(m.table).view(-1, 8), m.head(x.transpose(2, 3))

    parts = {"patches": nn.Conv2d(3, 8, 4, 4), "positions": nn.Linear(2, 8), "head": nn.Conv2d(3, 8, 3)}
    return Function(forward, **parts, token=nn.Parameter(torch.rand(1, 1, 8)), table=torch.rand(1, 5, 13, 2))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: ResNet("bottleneck"), (2, 3, 32, 32)),
        (DenseNet, (2, 3, 32, 32)),
        (SENet, (2, 3, 32, 32)),
        (se_resnet9_fixup.build, (2, 3, 64, 64)),
        (UNet, (1, 3, 32, 32)),
        (lambda: ResNet("resnext"), (2, 3, 32, 32)),
        (lambda: MobileNet(nn.Hardswish, True), (2, 3, 32, 32)),
        (Pools, (2, 3, 33, 32)),
        (tokens, (2, 3, 32, 32)),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_layers_are_those_of_torch_export(make, shape, last, refuse, monkeypatch):
    model = make().eval()
    model = model.to(memory_format=torch.channels_last) if last else model
    with monkeypatch.context() as without:
        without.setattr(torch.export, "export", None)
        found = capture(model, shape, "f32")
    refuse()
    expected = capture(model, shape, "f32")
    assert found == expected and found.key == expected.key


def test_containers_are_those_of_the_call(empty_db, refuse):
    model = Lists().eval()
    given = torch.randn(2, 3, 5, 5), torch.randn(2, 4)
    results = [FusedResNet.from_model(model, empty_db)(*given)]
    refuse()
    results.append(FusedResNet.from_model(model, empty_db)(*given))
    for one in results:
        torch.testing.assert_close(one, model(*given))


def test_a_default_device_changes_nothing():
    model = se_resnet9_fixup.build()
    expected = capture(model, (2, 3, 64, 64), "f32")
    with torch.device("meta"):
        assert capture(model, (2, 3, 64, 64), "f32") == expected


class Waits(nn.Module):
    """Lets another thread call the module while it is traced."""

    def __init__(self):
        super().__init__()
        self.conv, self.traced, self.called = nn.Conv2d(3, 4, 1), threading.Event(), threading.Event()

    def forward(self, x):
        if torch._C._len_torch_dispatch_stack():  # the trace, not the other thread
            self.traced.set()
            assert self.called.wait(60)
        return self.conv(x).relu()


def test_other_threads_call_the_module_meanwhile():
    model, x, results = Waits().eval(), torch.randn(1, 3, 4, 4), []
    expected = model(x)

    def call():
        assert model.traced.wait(60)
        results.append(model(x))
        model.called.set()

    thread = threading.Thread(target=call)
    thread.start()
    network = capture(model, (1, 3, 4, 4), "f32")
    thread.join()
    assert torch.equal(results[0], expected) and len(network.layers) == 2


class Asks(nn.Module):
    """Asks where its tensors are."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        y = self.conv(x)
        if y.is_meta or y.device.type != "cpu" or not y.is_cpu or y.is_cuda or y.get_device() != -1:
            return y * 2
        return y + torch.arange(4, device=x.device, dtype=x.dtype).view(4, 1, 1)


@pytest.mark.parametrize(
    "forward",
    [
        Asks.forward,
        lambda m, x: m.conv(x) + torch.ones(4, 1, 1),
        lambda m, x: m.conv(x) * torch.tensor([1.0, 2.0, 3.0, 4.0]).view(4, 1, 1),
        lambda m, x: m.conv(x.to(m.conv.weight.device)),
        lambda m, x: m.conv(x).type(torch.float32) + (1 if x.type() == "torch.FloatTensor" else 2),
        lambda m, x: torch.nn.functional.conv2d(x, m.conv.weight.flip(1), m.conv.bias.abs()),
    ],
)
def test_forward_sees_its_device_and_makes_tensors_there(forward, empty_db):
    model = type("Own", (Asks,), {"forward": forward})().eval()
    x = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(FusedResNet.from_model(model, empty_db)(x), model(x))


@pytest.mark.process
def test_a_capture_imports_no_compiler_of_torch():
    code = (
        "import sys; from fused_resnet.capture import capture; from fused_resnet.networks import se_resnet9_fixup\n"
        "capture(se_resnet9_fixup.build(), (1, 3, 64, 64), 'f32')\n"
        "print([name for name in ('torch._dynamo', 'torch._inductor', 'sympy') if name in sys.modules])"
    )
    assert python(code).stdout == "[]\n"
