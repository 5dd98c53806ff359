"""torchvision's models on a GPU: captured, as right as torch in the dtype, with tuned kernels and without."""

import copy

import pytest
import torch
from comparison import relative_error
from processes import process
from repository import ROOT
from torch.utils import _pytree as pytree

from autotune.ir.operators import TorchCall
from fused_resnet import Activation, FusedResNet
from fused_resnet.networks import se_resnet9_fixup
from tuning_db import Store

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*is not tuned")]

models = pytest.importorskip("torchvision.models")

NAMES = [
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "resnext50_32x4d"),
    *("vgg11", "vgg16_bn", "densenet121", "mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0"),
]
WHOLLY_OURS = ("resnet18", "resnet50", "wide_resnet50_2", "resnext50_32x4d", "vgg16_bn", "mobilenet_v2")


def images(n, size=96, seed=0):
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed)).cuda()


def model(name):
    module = se_resnet9_fixup.randomize(models.get_model(name, weights=None).eval(), 0).cuda()
    return se_resnet9_fixup.calibrate(module, images(16, seed=1))


@torch.no_grad()
def precise(module, x):
    """In float32, without TF32."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        return copy.deepcopy(module).float()(x.float())


@torch.no_grad()
def assert_as_good_as_torch(network, module, x):
    expected = precise(module, x)
    of_torch = relative_error(copy.deepcopy(module).to(x.dtype)(x), expected)
    error = relative_error(network(x), expected)
    assert error <= max(2 * of_torch, 2e-3), (error, of_torch)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_as_good_as_torchs(name, empty_db):
    module = model(name)
    network = FusedResNet.from_model(module, empty_db).half()
    assert network(images(2).half()).shape == (2, 1000)
    assert_as_good_as_torch(network, module, images(4, seed=2).half())


@pytest.mark.parametrize("name", WHOLLY_OURS)
def test_nothing_is_left_to_torch(name, empty_db):
    network = FusedResNet.from_model(model(name), empty_db)
    layers = network._network(images(1, size=224)).layers  # smaller ones must be enlarged before vgg's linear layers
    assert [layer.name for layer in layers if isinstance(layer.problem, TorchCall)] == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_dtypes(dtype, empty_db):
    module = model("resnet18")
    network = FusedResNet.from_model(module, empty_db).to(dtype)
    x = images(3, seed=3).to(dtype)
    expected = precise(module, x)
    of_torch = relative_error(copy.deepcopy(module).to(dtype)(x), expected)
    assert relative_error(network(x), expected) <= max(2 * of_torch, 2e-3)


def test_a_replaced_activation(empty_db):
    from autotune.ir.epilogue_steps import define_step

    define_step(
        "swish_gpu",
        cuda="x / (1.f + expf(-beta * x))",
        torch="x * torch.sigmoid(beta * x)",
        params={"beta": "scalar"},
    )
    module = model("resnet18")
    network = FusedResNet.from_model(module, empty_db, {"layer1.*.relu": Activation("swish_gpu", beta=1.5)}).half()
    x = images(2).half()
    before = network(x)
    assert_as_good_as_torch(network, network._plain, x)
    with torch.no_grad():
        network.get_parameter("layer1.0.relu.beta").fill_(0.25)
    assert relative_error(network(x), before) > 1e-2
    assert_as_good_as_torch(network, network._plain, x)


def test_weights_that_are_channels_last_give_the_same_bits():
    """The stem's kernel reads its weights in torch's own order."""
    module, x = model("resnet18"), images(32, size=224).half()
    other = copy.deepcopy(module).to(memory_format=torch.channels_last)
    networks = [FusedResNet.from_model(m, ROOT / "tuning_db" / "resnets_h200.db").half() for m in (module, other)]
    if not any(row.kernel.startswith("cuda_stem") for row in networks[0].explain(x)):
        pytest.skip("the database has no stem for this GPU")
    assert torch.equal(networks[0](x), networks[1](x))


class Two(torch.nn.Module):
    """Two inputs through two networks."""

    def __init__(self):
        super().__init__()
        self.first, self.second = model("resnet18"), model("resnet18")

    def forward(self, x, z):
        return {"first": self.first(x), "second": [self.second(z), None], "given": x}


class Heads(torch.nn.Module):
    """Features of several depths, and a mask that torch applies."""

    def __init__(self):
        super().__init__()
        self.net = model("resnet18")

    def forward(self, x, mask=None):
        net = self.net
        early = net.layer1(net.maxpool(net.relu(net.bn1(net.conv1(x)))))
        late = net.layer4(net.layer3(net.layer2(early)))
        late = late if mask is None else late.masked_fill(mask, 0)
        return early, late, net.fc(net.avgpool(late).flatten(1))


@pytest.mark.parametrize(("make", "masked"), [(Two, False), (Heads, False), (Heads, True)])
@torch.no_grad()
def test_several_inputs_and_results(make, masked):
    """On tuned kernels, where the database has some for this GPU: new addresses in each call, and a caller's graph."""
    module = make().eval()
    network = FusedResNet.from_model(module, ROOT / "tuning_db" / "resnets_h200.db").half()

    def inputs(seed, memory_format):
        x, z = (images(32, 224, one).half().contiguous(memory_format=memory_format) for one in (seed, seed + 1))
        return (x, z) if make is Two else (x, z[:, :1, :7, :7].contiguous() > 0) if masked else (x,)

    def assert_right(found, given):
        exact = copy.deepcopy(module).half()(*given)
        for one, other in zip(pytree.tree_leaves(found), pytree.tree_leaves(exact), strict=True):
            assert one is other or relative_error(one, other) < 2e-2

    for seed, memory_format in enumerate([torch.contiguous_format, torch.channels_last] * 2):
        given = inputs(seed, memory_format)
        assert_right(network(*given), given)
    graph, static = torch.cuda.CUDAGraph(), inputs(9, torch.contiguous_format)
    network(*static)
    with torch.cuda.graph(graph):
        found = network(*static)
    for x, other in zip(static, inputs(11, torch.contiguous_format), strict=True):
        x.copy_(other)
    graph.replay()
    assert_right(found, static)


def test_tuned_kernels_run_a_captured_network(folders):
    path = folders / "gpu_capture.db"
    sizes = ("--batch", 8, "--input", "3,96,96")
    options = ("--trials", 1, "--budget", "200s", "--db", path)
    done = process("tune", "--model", "torchvision:resnet18", *sizes, *options, timeout=550)
    assert done.returncode == 0, done.stderr
    module = model("resnet18")
    network = FusedResNet.from_model(module, path).half()
    x = images(8, seed=4).half()
    assert_as_good_as_torch(network, module, x)
    ours = network._network(x)
    with Store.open(path) as store:
        (device,) = store.devices()
        assert store.plan(device, ours.key) is not None
