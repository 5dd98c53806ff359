"""Values that a model's forward reads: a change of one is seen by the next call."""

import importlib
import types

import pytest
import torch
from architectures import Function
from comparison import relative_error
from torch import nn

from autotune.core import CaptureError
from fused_resnet import FusedResNet
from fused_resnet.call import ONE_TENSOR
from fused_resnet.guards import guards

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")

LIMIT = 1e-6
FACTOR = 1.0
SETTINGS = {"factor": 1.0}


def scaled(y: torch.Tensor) -> torch.Tensor:
    return y * FACTOR


def negated(y: torch.Tensor) -> torch.Tensor:
    return -y


def seven_times(module: nn.Module, inputs: object, y: torch.Tensor) -> torch.Tensor:
    return 7 * y


class Config:
    gain = 1.0

    def __init__(self) -> None:
        self.shift = 1.0


class Model(nn.Module):
    """Reads values in all the ways that are watched."""

    power = 1.0

    def __init__(self, outside: dict) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.alpha, self.scales, self.config = 1.0, [1.0, 2.0], Config()
        self.mask = torch.ones(8, 1, 1)
        self.outside = lambda y: y * outside["factor"]

    def step(self, y: torch.Tensor) -> torch.Tensor:
        return y * self.alpha + self.config.shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.step(self.norm(self.conv(x)) * self.mask)
        y = scaled(y) * self.scales[0] * self.power * Config.gain * SETTINGS["factor"]
        return self.outside(y)


OUTSIDE = {"factor": 1.0}
CHANGES = {
    "an attribute": lambda net, _: setattr(net, "alpha", 2.0),
    "an attribute of a submodule": lambda net, _: setattr(net.norm, "eps", 1.0),
    "the shape of the result": lambda net, _: setattr(net.conv, "stride", (2, 2)),
    "an item of a list": lambda net, _: net.scales.__setitem__(0, 3.0),
    "an attribute of an object": lambda net, _: setattr(net.config, "shift", 5.0),
    "a plain tensor, in place": lambda net, _: net.mask.mul_(4),
    "a class attribute": lambda net, patch: patch.setattr(Model, "power", 2.0),
    "a class attribute that an object hides": lambda net, _: (
        setattr(net.norm.__class__, "_", 0) or setattr(net, "power", 3.0)
    ),
    "an attribute of a global class": lambda net, patch: patch.setattr(Config, "gain", 2.0),
    "a global": lambda net, patch: patch.setitem(globals(), "FACTOR", 2.0),
    "a function": lambda net, patch: patch.setitem(globals(), "scaled", negated),
    "a method": lambda net, patch: patch.setattr(Model, "step", lambda self, y: y - 1),
    "an item of a global dictionary": lambda net, patch: patch.setitem(SETTINGS, "factor", 2.0),
    "an item of a dictionary in a closure": lambda net, patch: patch.setitem(OUTSIDE, "factor", 2.0),
    "a forward hook": lambda net, _: net.norm.register_forward_hook(seven_times),
    "another forward": lambda net, _: setattr(net.norm, "forward", types.MethodType(lambda self, y: 2 * y, net.norm)),
}


def model() -> Model:
    torch.manual_seed(0)
    module = Model(OUTSIDE).eval()
    nn.init.normal_(module.norm.running_mean)
    return module


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_the_search_finds_what_forward_reads():
    names = {read.name for read in guards(model()).reads}
    wanted = [
        "'alpha' of the model (Model)",
        "'eps' of norm (BatchNorm2d)",
        "'stride' of conv (Conv2d)",
        "'power' of class Model",
    ]
    assert names.issuperset(wanted) and any("'FACTOR'" in name for name in names)
    assert not guards(model()).changed()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@torch.no_grad()
def test_a_change_is_seen(change, empty_db, x, monkeypatch):
    plain = model()
    network = FusedResNet.from_model(plain, empty_db)
    before = network(x)
    assert relative_error(before, plain(x)) < LIMIT
    for module in (network, plain):
        change(module, monkeypatch)
    wanted = plain(x)
    for _ in range(3):
        assert relative_error(network(x), wanted) < LIMIT
    assert wanted.shape != before.shape or relative_error(before, wanted) > 1e-3


@torch.no_grad()
def test_a_value_that_changes_back_needs_no_new_capture(empty_db, x, monkeypatch):
    network = FusedResNet.from_model(model(), empty_db)
    results = {}
    for alpha in (1.0, 2.0):
        network.alpha = alpha
        results[alpha] = network(x)
    monkeypatch.setattr("fused_resnet.capture.capture_module", None)
    for alpha in (1.0, 2.0, 1.0):
        network.alpha = alpha
        assert torch.equal(network(x), results[alpha])


@torch.no_grad()
def test_what_forward_does_not_read_is_not_watched(empty_db, x, monkeypatch):
    network = FusedResNet.from_model(model(), empty_db)
    y = network(x)
    context = network._cache.find([x], ONE_TENSOR, 0)
    network.note, network.conv.note = "of the user", "another"
    monkeypatch.setitem(globals(), "UNREAD", 1)
    assert torch.equal(network(x), y) and network._cache.find([x], ONE_TENSOR, 0) is context


def test_attributes_of_the_model_are_those_of_the_network(empty_db):
    network = FusedResNet.from_model(model(), empty_db)
    assert network.alpha == 1.0 and network.config.shift == 1.0
    with pytest.raises(AttributeError, match="beta"):
        _ = network.beta


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@torch.no_grad()
def test_recurrent_layers_of_torch_follow_the_weights(kind, empty_db):
    parts = {"conv": nn.Conv2d(3, 8, 3), "layer": kind(8, 6, batch_first=True)}
    module = Function(lambda m, x: m.layer(m.conv(x).mean(3).mT)[0], **parts).eval()
    network = FusedResNet.from_model(module, empty_db)
    for n in (2, 3):
        x = torch.randn(n, 3, 10, 10, generator=torch.Generator().manual_seed(n))
        assert relative_error(network(x), module(x)) < 1e-5
        for one in (network, module):
            one.layer.weight_hh_l0.mul_(1.5)
        assert relative_error(network(x), module(x)) < 1e-5


@torch.fx.wrap
def halved(y: torch.Tensor) -> torch.Tensor:
    return y / 2


class Wrapped(Model):
    """Calls a function that tracers of torch.fx replace meanwhile, as torchvision's stochastic_depth."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return halved(super().forward(x))


@torch.no_grad()
def test_a_function_that_tracers_replace(empty_db, x):
    module = Wrapped(OUTSIDE).eval()
    assert relative_error(FusedResNet.from_model(module, empty_db)(x), module(x)) < LIMIT


def test_parts_in_training_mode_are_refused(empty_db, x):
    stochastic = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout()).eval()
    stochastic[1].train()
    norm = model()
    norm.norm.train()
    for module, name in (
        (stochastic, "1 (Dropout)"),
        (norm, "norm (BatchNorm2d)"),
        (model().train(), "the model (Model)"),
    ):
        with pytest.raises(CaptureError) as error:
            FusedResNet.from_model(module, empty_db)
        assert f"{name} is in training mode" in str(error.value)


def test_a_part_that_is_put_in_training_mode_later_is_refused(empty_db, x):
    network = FusedResNet.from_model(model(), empty_db)
    y = network(x)
    network.norm.train()
    with pytest.raises(CaptureError, match=r"norm \(BatchNorm2d\) is in training mode"):
        network(x)
    network.norm.eval()
    assert torch.equal(network(x), y)
    assert torch.equal(network.train().eval()(x), y)


def test_a_changed_part_of_the_seed_network_is_captured_anew(empty_db):
    network, x = FusedResNet(empty_db), torch.randn(1, 3, 64, 64)
    y = network(x)
    part = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
    before, part.padding = part.padding, (2, 2)
    with torch.no_grad():
        wanted = network._plain(x)
    torch.testing.assert_close(network(x), wanted)
    part.padding = before
    assert torch.equal(network(x), y)


def test_a_value_of_a_module_within_the_models_package_is_watched(empty_db, x, monkeypatch, tmp_path):
    folder = tmp_path / "watched_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("from watched_package import config\n")
    (folder / "config.py").write_text("import watched_package\nALPHA = 1.0\n")
    (folder / "model.py").write_text(
        "import torch\nimport watched_package\nclass Scaled(torch.nn.Conv2d):\n    def forward(self, x):\n"
        "        return super().forward(x) * watched_package.config.ALPHA\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    package = importlib.import_module("watched_package.model")
    model = package.Scaled(3, 8, 3).eval()
    network = FusedResNet.from_model(model, empty_db)
    before = network(x)
    monkeypatch.setattr(package.watched_package.config, "ALPHA", 5.0)
    assert relative_error(network(x), 5 * before) < LIMIT
