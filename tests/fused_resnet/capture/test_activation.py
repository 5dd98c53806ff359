"""Activations replaced by custom steps: in the fused kernels, with parameters that can be changed."""

import copy
import io
import re

import pytest
import torch
from architectures import ResNet, images, random_model
from comparison import relative_error
from repository import ROOT
from torch import nn

from autotune.core import CaptureError, ProblemError
from autotune.ir.epilogue_steps import define_step
from fused_resnet import Activation, FusedResNet
from fused_resnet.capture import capture

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")

define_step(
    "swish_c", cuda="x / (1.f + expf(-beta * x))", torch="x * torch.sigmoid(beta * x)", params={"beta": "scalar"}
)
define_step("bend", cuda="x > at ? x : slope * x", torch="torch.where(x > at, x, slope * x)",
            params={"at": "scalar", "slope": "channel"})  # fmt: skip
LIMIT = 1e-5


class Swish(nn.Module):
    """The replacement, written a second time."""

    def __init__(self, beta):
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(beta))

    def forward(self, x):
        return x / (1 + torch.exp(-self.beta * x))


@torch.no_grad()
def expected(model, network, x):
    """What the plain model makes of x with Swish where `network` has the step, and with the network's tensors."""
    other = copy.deepcopy(model)
    for block in other.layer1:
        block.relu = Swish(0.0)
    other.load_state_dict(network.state_dict())
    return other.double().eval()(x.double())


def test_a_step_of_ones_own_in_a_trained_network(empty_db):
    model, x = random_model(ResNet("basic")), images(2)
    network = FusedResNet.from_model(model, empty_db, replace={"layer1.*.relu": Activation("swish_c", beta=1.5)})
    betas = [f"layer1.{i}.relu.beta" for i in range(3)]
    assert set(network.state_dict()) - set(model.state_dict()) == set(betas)
    assert relative_error(network(x), expected(model, network, x)) < LIMIT

    chains = [layer.problem.epilogue.names for layer in network._network(x).layers if ".conv" in layer.name]
    assert all(chain[-1].startswith("swish_c@") for chain in chains) and len(chains) == 6

    with torch.no_grad():
        network.get_parameter(betas[1]).fill_(0.25)
    before = network(x)
    assert relative_error(before, expected(model, network, x)) < LIMIT
    network.load_state_dict({**network.state_dict(), betas[2]: torch.tensor(3.0)})
    assert relative_error(network(x), expected(model, network, x)) < LIMIT
    assert relative_error(network(x), before) > 1e-3

    file = io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), network(x))


def test_parameters_can_be_trained(empty_db):
    network = FusedResNet.from_model(random_model(ResNet("basic")), empty_db, {"relu": Activation("swish_c", beta=1.0)})
    network.train()
    network(images(4)).square().mean().backward()
    assert network.relu.beta.grad is not None and network.relu.beta.grad.abs() > 0


def test_channel_parameters(empty_db):
    slope = torch.linspace(-1, 1, 16)
    model = random_model(ResNet("basic"))
    network = FusedResNet.from_model(model, empty_db, {"relu": Activation("bend", at=0.2, slope=slope)})
    other = copy.deepcopy(model)

    class Bend(nn.Module):
        def forward(self, x):
            return torch.where(x > 0.2, x, slope.view(1, -1, 1, 1) * x)

    other.relu = Bend()
    x = images(2)
    with torch.no_grad():
        assert relative_error(network(x), other.double().eval()(x.double())) < LIMIT


def test_torchs_own_modules_and_copies_of_the_model(empty_db):
    model = random_model(ResNet("basic"))
    before = copy.deepcopy(model.state_dict())
    network = FusedResNet.from_model(model, empty_db, {"layer1.[01].relu": nn.SiLU()})
    names = {layer.name: layer.problem.epilogue.names[-1] for layer in network._network(images(1)).layers[1:4:2]}
    assert set(names.values()) <= {"silu", "relu"}
    assert isinstance(model.layer1[0].relu, nn.ReLU) and all(
        torch.equal(before[k], v) for k, v in model.state_dict().items()
    )


def test_what_cannot_be_put_there(empty_db):
    model = ResNet("basic").eval()
    with pytest.raises(CaptureError, match=r"no submodule matches 'layer9\.\*': .* relu, maxpool"):
        FusedResNet.from_model(model, empty_db, {"layer9.*": nn.SiLU()})
    with pytest.raises(ProblemError, match="'relu' is built in, not custom"):
        Activation("relu")
    with pytest.raises(ProblemError, match="takes the values beta; given: gamma"):
        Activation("swish_c", gamma=1.0)
    with pytest.raises(ProblemError, match="slope must be a tensor"):
        Activation("bend", at=1.0, slope=0.5)
    with pytest.raises(ProblemError, match="unknown epilogue step"):
        Activation("no_such_step")


@pytest.mark.parametrize(
    ("replace", "said"),
    [
        ({"0": "silu"}, r"replace has '0': 'silu'; give a path and a module"),
        ({"0": nn.SiLU}, r"replace has '0': <class .*SiLU'>; give a path and a module"),
        ({0: nn.SiLU()}, r"replace has 0: SiLU\(\); give a path and a module"),
        ([("0", nn.SiLU())], "replace is .*: give a dictionary"),
    ],
)
def test_replacements_are_modules_by_paths(empty_db, replace, said):
    with pytest.raises(CaptureError, match=said):
        FusedResNet.from_model(nn.Sequential(nn.ReLU()).eval(), empty_db, replace=replace)


def test_the_example_runs_as_it_stands_and_compiles_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AUTOTUNE_INDUCTOR")  # a unit test must not start a compiler
    page = (ROOT / "docs" / "guide" / "change-an-operator.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    exec(compile(code, "change-an-operator.md", "exec"), {"__name__": "example"})
    printed = capsys.readouterr().out
    assert printed.count("swish@") == 2 and "layer1.0.conv" in printed


def test_a_captured_step_is_one_operation():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Activation("swish_c", beta=2.0)).eval()
    (_, layer) = capture(model, (1, 3, 8, 8), "f32").layers
    assert layer.problem.epilogue.names[0] == "bias" and layer.scalars == ("1.beta",)
