"""Every way to change a weight is seen by the next call, whichever door the module came through."""

import copy
import ctypes

import numpy
import pytest
import torch
from torch import nn

from fused_resnet import FusedResNet
from tuning_db import Store


class Network(nn.Module):
    """Convolutions with a group norm and a batch norm, whose weights have more than 32 KiB together."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.norm = nn.GroupNorm(4, 32)
        self.second = nn.Conv2d(32, 64, 3, bias=False)
        self.batch_norm = nn.BatchNorm2d(64)
        self.register_buffer("scale", torch.rand(64, 1, 1) + 0.5)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        return torch.relu(self.batch_norm(self.second(x)) * self.scale)


def fused_model(model, database):
    return FusedResNet.from_model(model, database, compile=False)


def compiled_model(model, database):
    compiled = torch.compile(copy.deepcopy(model), backend="autotune", options={"tuning_db": database})
    compiled._orig_mod.eval()
    return compiled


def step(optimizer, **options):
    def change(model):
        chosen = optimizer(model.parameters(), lr=0.1, **options)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        chosen.step()

    return change


def average(write):
    def change(model):
        for parameter in model.parameters():
            write(parameter, torch.randn_like(parameter))

    return change


def swa(model):
    averaged = torch.optim.swa_utils.AveragedModel(nn.ParameterList(torch.randn_like(p) for p in model.parameters()))
    for mine, other in zip(model.parameters(), averaged.parameters(), strict=True):
        mine.data.lerp_(other, 0.5)


def load(model):
    model.load_state_dict({name: torch.rand_like(one) for name, one in model.state_dict().items() if one.dim()}, False)


@torch.no_grad()
def initialize(model):
    nn.init.kaiming_normal_(model.second.weight)


def train_statistics(model):
    model.batch_norm.running_mean.data.normal_()
    model.batch_norm.running_var.data.uniform_(0.5, 2)


def numpy_write(model):
    model.second.weight.detach().numpy()[...] *= numpy.float32(1.5)


def address_write(model):
    weight = model.first.weight
    new = torch.randn_like(weight)
    ctypes.memmove(weight.data_ptr(), new.data_ptr(), 4 * weight.numel())


def replace_parameter(model):
    model.first.weight = nn.Parameter(torch.randn_like(model.first.weight))


def flatten(model):
    nn.utils.vector_to_parameters(torch.randn(sum(p.numel() for p in model.parameters())), model.parameters())


@torch.inference_mode()
def in_inference_mode(model):
    model.second.weight.mul_(1.5)


@torch.no_grad()
def through_a_view(model):
    model.second.weight[3:20].neg_()


CHANGES = {
    "AdamW, fused": step(torch.optim.AdamW, fused=True),
    "Adam, fused": step(torch.optim.Adam, fused=True),
    "SGD, fused": step(torch.optim.SGD, momentum=0.9, fused=True),
    "SGD, foreach": step(torch.optim.SGD, foreach=True),
    "Adagrad, fused": step(torch.optim.Adagrad, fused=True),
    "RMSprop": step(torch.optim.RMSprop),
    "a product by .data": lambda model: model.second.weight.data.mul_(2),
    "other memory by .data": lambda model: setattr(model.second.weight, "data", torch.randn(64, 32, 3, 3)),
    "an average by .data": average(lambda p, new: p.data.copy_(0.5 * p.data + 0.5 * new)),
    "an average by lerp": average(lambda p, new: p.detach().lerp_(new, 0.5)),
    "an average by foreach": lambda model: torch._foreach_mul_([p.data for p in model.parameters()], 0.5),
    "SWA": swa,
    "a bias by .data": lambda model: model.first.bias.data.fill_(0.25),
    "a buffer by .data": lambda model: model.scale.data.neg_(),
    "running statistics by .data": train_statistics,
    "load_state_dict": load,
    "init": initialize,
    "NumPy": numpy_write,
    "an address": address_write,
    "the storage": lambda model: model.first.weight.untyped_storage().fill_(0),
    "DLPack": lambda model: torch.from_dlpack(model.second.weight.detach()).mul_(0.5),
    "another parameter": replace_parameter,
    "vector_to_parameters": flatten,
    "inference mode": in_inference_mode,
    "a view": through_a_view,
}


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("weights") / "empty.db")
    Store.create(path).close()
    return path


@pytest.fixture(scope="module")
def doors(database):
    """Both doors, warm, and the plain module that each runs."""
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        patch.setenv("AUTOTUNE_INDUCTOR", "0")
        torch.manual_seed(1)
        model = Network().eval()
        fused, compiled = fused_model(model, database), compiled_model(model, database)
        yield {"from_model": (fused, fused._plain), "compile": (compiled, compiled._orig_mod)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("door", ["from_model", "compile"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_next_call_uses_a_changed_weight(doors, door, change):
    module, plain = doors[door]
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        before = module(x)
        change_in_grad = torch.enable_grad()(change)
        change_in_grad(plain)
        want, got = copy.deepcopy(plain).double()(x.double()), module(x)
    assert (before - want).norm() > 1e-3 * want.norm(), "the change must change the result"
    torch.testing.assert_close(got.double(), want, rtol=1e-3, atol=1e-4)
