"""Results of a call: in the model's container, and in the memory format that is asked for."""

from collections import namedtuple

import pytest
import torch
from architectures import Function
from comparison import relative_error
from torch import nn

from autotune.core import CaptureError
from fused_resnet import FusedResNet, InputError

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")

Pair = namedtuple("Pair", "logits")
CONTAINERS = {
    "tuple": lambda y: (y,),
    "list": lambda y: [y],
    "dictionary": lambda y: {"out": y},
    "named tuple": Pair,
    "nested": lambda y: {"out": [y]},
}


def model_of(contain):
    torch.manual_seed(0)
    return Function(lambda m, x: contain(torch.relu(m.conv(x))), conv=nn.Conv2d(3, 8, 3))


def tensor_in(result):
    while not torch.is_tensor(result):
        result = next(iter(result.values() if isinstance(result, dict) else result))
    return result


@pytest.fixture
def x():
    return torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("contain", CONTAINERS.values(), ids=CONTAINERS)
@torch.no_grad()
def test_a_result_keeps_its_type(contain, empty_db, x):
    model = model_of(contain).eval()
    network, wanted = FusedResNet.from_model(model, empty_db), model(x)
    for call in (network, network, torch.compile(network, backend="eager", fullgraph=True)):
        found = call(x)
        assert type(found) is type(wanted) and repr(found).split("tensor")[0] == repr(wanted).split("tensor")[0]
        assert relative_error(tensor_in(found), tensor_in(wanted)) < 1e-6
    out = torch.full_like(tensor_in(wanted), float("nan"))
    assert tensor_in(network(x, out=out)) is out and relative_error(out, tensor_in(wanted)) < 1e-6


@torch.no_grad()
def test_a_number_that_is_a_size_follows_the_shape(empty_db):
    model = model_of(lambda y: (y, len(y), y.shape[2])).eval()
    network = FusedResNet.from_model(model, empty_db)
    for shape in ((2, 3, 9, 9), (5, 3, 9, 9), (2, 3, 9, 9), (3, 3, 9, 9)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        for _ in range(2):  # the second call takes the fast path
            y, batch, height = network(x)
            assert (batch, height) == (shape[0], 7) and relative_error(y, model(x)[0]) < 1e-6
    with pytest.raises(CaptureError, match=r"returns \(a tensor, 2, 8\) for an input of .*, and \(a tensor, 2, 7\)"):
        network(torch.randn(2, 3, 10, 9))


@torch.no_grad()
def test_a_result_in_the_memory_format_of_the_models(empty_db, x):
    model = model_of(lambda y: y).eval()
    last = x.contiguous(memory_format=torch.channels_last)
    network = FusedResNet.from_model(model, empty_db, memory_format=torch.preserve_format)
    for _ in range(2):
        assert network(x).stride() == model(x).stride() and network(last).stride() == model(last).stride()
    assert torch.equal(network(x).view(2, -1), network(x).flatten(1))
    assert relative_error(network(x), model(x)) < 1e-6
    contiguous = FusedResNet.from_model(model, empty_db, memory_format=torch.contiguous_format)
    assert contiguous(last).is_contiguous() and contiguous.memory_format is torch.contiguous_format
    assert not FusedResNet.from_model(model, empty_db)(x).is_contiguous()


INPUTS = {
    "ndarray": (lambda x: x.numpy(), "a ndarray, not a tensor: give torch.from_numpy"),
    "array in a list": (lambda x: [x.numpy()], "a ndarray, not a tensor: give torch.from_numpy"),
    "text": (lambda x: "x", "a str, not a tensor"),
    "nothing": (lambda x: None, "a NoneType, not a tensor"),
}


@pytest.mark.parametrize(("make", "message"), INPUTS.values(), ids=INPUTS)
def test_an_input_that_is_no_tensor(make, message, empty_db, x):
    network = FusedResNet.from_model(model_of(lambda y: y).eval(), empty_db)
    for _ in range(2):
        with pytest.raises(InputError, match=message):
            network(make(x))
        network(x)


def test_a_database_that_is_no_path():
    with pytest.raises(InputError, match="tuning_db is None: give the path"):
        FusedResNet(None)


def test_transforms_of_torch_func_are_refused(empty_db, x):
    network = FusedResNet.from_model(model_of(lambda y: y).eval(), empty_db)
    for _ in range(2):
        with pytest.raises(InputError, match="vmap"):
            torch.vmap(network)(x[None])
        network(x)


@torch.no_grad()
def test_parameters_of_transforms_of_torch_func_are_refused(empty_db, x):
    models = [model_of(lambda y: y).eval() for _ in range(2)]
    network = FusedResNet.from_model(models[0], empty_db)
    stacked = torch.func.stack_module_state(models)
    ensemble = torch.vmap(lambda state: torch.func.functional_call(network, state, x))
    for _ in range(2):
        with pytest.raises(InputError, match=r"a parameter belongs to a transform of torch\.func"):
            ensemble(stacked)
        assert relative_error(network(x), models[0](x)) < 1e-6


@torch.no_grad()
def test_a_number_from_a_tensor(empty_db, x):
    scaled = Function(lambda m, x: torch.relu(m.conv(x)) * m.conv.bias[0].item(), conv=nn.Conv2d(3, 8, 3))
    model = scaled.eval()
    assert relative_error(FusedResNet.from_model(model, empty_db)(x), model(x)) < 1e-6


@torch.no_grad()
def test_an_export_before_and_after_the_first_call(empty_db, x):
    model = model_of(lambda y: y).eval()
    network = FusedResNet.from_model(model, empty_db)
    for _ in range(2):
        assert relative_error(torch.export.export(network, (x,)).module()(x), model(x)) < 1e-6
        network(x)
