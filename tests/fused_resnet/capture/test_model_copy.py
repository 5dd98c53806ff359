"""Models that can be captured, and the messages for everything else."""

import copy

import pytest
import torch
from comparison import relative_error
from torch import nn
from torch.nn.utils import prune

from autotune.core import CaptureError
from fused_resnet import FusedResNet
from fused_resnet.capture.model_copy import copy_of

pytestmark = pytest.mark.filterwarnings("ignore:.*(is not tuned|weight_norm|TorchScript|jit.script)")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()


class Uncopyable(nn.Module):
    def __deepcopy__(self, memo: object) -> nn.Module:
        raise RuntimeError("one of a kind")


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return network()


REFUSED = {
    "a function": (lambda: network().forward, "no nn.Module: wrap it in an nn.Module"),
    "a class": (lambda: Uncopyable, r"the class Uncopyable: give an instance, such as Uncopyable\(\)"),
    "a name": (lambda: "resnet18", "the text 'resnet18': give the module itself"),
    "nothing": (lambda: None, "a NoneType and no nn.Module"),
    "TorchScript": (
        lambda: torch.jit.script(network()),
        r"in TorchScript \(Sequential\).*give the module that it was made",
    ),
    "a lazy module": (
        lambda: nn.Sequential(nn.LazyConv2d(8, 3)).eval(),
        "'0.weight' has no shape yet: call the model once",
    ),
    "the meta device": (on_meta, "'0.weight' is on the meta device and has no values"),
    "training mode": (lambda: network().train(), r"the model \(Sequential\) is in training mode: call .eval\(\)"),
    "no copies": (lambda: Uncopyable().eval(), r"\(Uncopyable\) cannot be copied: RuntimeError: one of a kind"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_captured_is_refused_with_advice(make, message, empty_db):
    given = make()
    with pytest.raises(CaptureError, match=message):
        FusedResNet.from_model(given, empty_db)


def test_a_copy_shares_nothing():
    model = network()
    copied = copy_of(model)
    with torch.no_grad():
        copied[0].weight.zero_()
    assert model[0].weight.abs().sum() > 0


def weight_norm() -> nn.Module:
    model = network()
    nn.utils.weight_norm(model[0])
    nn.utils.spectral_norm(model[2])
    return model.eval()


def pruned() -> nn.Module:
    model = network()
    prune.l1_unstructured(model[0], "weight", 0.5)
    return model


@pytest.mark.parametrize("make", [weight_norm, pruned])
@torch.no_grad()
def test_weights_that_are_computed_before_each_call(make, empty_db):
    with torch.enable_grad():  # as in a program: the computed weight is then no leaf of autograd
        model = make()
    x = torch.randn(2, 3, 9, 9)
    assert relative_error(FusedResNet.from_model(model, empty_db)(x), model(x)) < 1e-6


@torch.no_grad()
def test_a_fused_network_is_captured_again_from_its_plain_module(empty_db):
    model, x = network(), torch.randn(2, 3, 9, 9)
    first = FusedResNet.from_model(model, empty_db)
    first(x)
    second = FusedResNet.from_model(first, empty_db)
    assert relative_error(second(x), model(x)) < 1e-6
    assert relative_error(FusedResNet.from_model(copy.deepcopy(second), empty_db)(x), model(x)) < 1e-6
