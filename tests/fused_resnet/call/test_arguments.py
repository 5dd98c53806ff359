"""Calls with several inputs and results against the eager module, and the text of arguments."""

import copy
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from native_network import native_runs
from torch import nn
from torch.utils import _pytree as pytree

from autotune.core import CaptureError
from autotune.ir import CallerTensor
from autotune.runtime.network_plan import execute
from fused_resnet import FusedResNet, InputError
from fused_resnet.call import ONE_TENSOR, Signature, put_together, take_apart
from fused_resnet.capture import capture_module

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


@dataclass
class Output:
    """A class of results, as those of the package transformers."""

    logits: torch.Tensor
    loss: torch.Tensor | None = None


pytree.register_dataclass(Output)


class Model(nn.Module):
    """Layers for the functions of CALLS."""

    def __init__(self, function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.conv, self.other = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 3, padding=1)
        self.linear, self.embedding = nn.Linear(8, 5), nn.Embedding(10, 8)
        self.register_buffer("index", torch.arange(6).view(2, 3))

    def forward(self, x, other=None, *, mask=None, scale=1.0):
        return self.function(self, x, other, mask, scale)


def features(m, x):
    return m.conv(x).relu().mean((2, 3))


def two_heads(m, x, other, mask, scale):
    y = m.conv(x)
    return {"features": y, "deeper": [m.other(y[:, :3]).relu(), None], "logits": m.linear(y.mean((2, 3)))}


def masked(m, x, other, mask, scale):
    y = m.conv(x) * scale
    return y if mask is None else y.masked_fill(mask, 0.5)


def same_twice(m, x, other, mask, scale):
    y = m.conv(x)
    return y, {"again": y}, y.clone(), y.flatten(1)


def constants(m, x, other, mask, scale):
    return m.conv(x), m.index, m.conv.weight, torch.arange(5, device=x.device), 3, "text", None


def viewed(m, x, other, mask, scale):
    y = F.adaptive_avg_pool2d(m.conv(x), 1)
    return y, y.flatten(1), torch.sigmoid(y) * y


IMAGE, MASK = (3, 8, 8), (1, 8, 8)
CALLS = {
    "sum": (lambda m, x, z, *_: m.conv(x) + m.other(z), [IMAGE, IMAGE], []),
    "concatenation": (lambda m, x, z, *_: torch.cat([m.conv(x), m.other(z)], 1).relu(), [IMAGE, IMAGE], []),
    "by name": (lambda m, x, z, *_: m.conv(x) - m.other(z), [IMAGE], [("other", IMAGE)]),
    "two heads": (two_heads, [IMAGE], []),
    "mask": (masked, [IMAGE], [("mask", MASK)]),
    "number": (masked, [IMAGE, None], [("scale", 2.5)]),
    "where": (lambda m, x, z, mask, _: torch.where(mask, m.conv(x), m.other(z)), [IMAGE] * 2, [("mask", (8, 8, 8))]),
    "ids": (lambda m, ids, *_: m.linear(m.embedding(ids)), ["ids"], []),
    "ids and image": (lambda m, ids, x, *_: m.embedding(ids).mean(1) + features(m, x), ["ids", IMAGE], []),
    "integers added": (lambda m, x, ids, *_: m.linear(features(m, x)) + ids[:, :5], [IMAGE, "ids"], []),
    "integer result": (lambda m, x, *_: m.conv(x).argmax(1), [IMAGE], []),
    "indices and values": (lambda m, x, *_: tuple(m.linear(features(m, x)).topk(2)), [IMAGE], []),
    "other dtypes": (lambda m, x, *_: (m.conv(x).double(), m.conv(x) > 0, m.conv(x).mean()), [IMAGE], []),
    "same twice": (same_twice, [IMAGE], []),
    "views": (viewed, [IMAGE], []),
    "passed on": (lambda m, x, z, *_: (z, m.conv(x), x), [IMAGE, IMAGE], []),
    "copied inputs": (lambda m, x, ids, *_: [m.conv(x), x.clone(), ids.clone()], [IMAGE, "ids"], []),
    "constants": (constants, [IMAGE], []),
    "nested": (lambda m, d, z, *_: m.conv(d["x"]) * d["k"] + m.other(z[0]), [{"x": IMAGE, "k": 2}, [IMAGE]], []),
    "dataclass": (lambda m, x, *_: Output(m.linear(features(m, x))), [IMAGE], []),
    "scalar": (lambda m, x, a, *_: m.conv(x) * a, [IMAGE, ()], []),
    "unused": (lambda m, x, z, *_: m.other(z), [IMAGE, IMAGE], []),
}
"""Name -> function of the model, positional arguments, keyword arguments; a shape stands for a tensor."""


def made(part, n, generator):
    """Return an argument of CALLS: batch n, random values; booleans for shapes of masks, integers for ids."""
    if isinstance(part, list | dict):
        items = part.items() if isinstance(part, dict) else enumerate(part)
        values = {key: made(value, n, generator) for key, value in items}
        return values if isinstance(part, dict) else list(values.values())
    if part == "ids":
        return torch.randint(0, 10, (n, 7), generator=generator)
    if not isinstance(part, tuple):
        return part
    x = torch.randn(n, *part, generator=generator) if part else torch.randn((), generator=generator)
    return x > 0 if part in (MASK, (8, 8, 8)) else x


def arguments_of(positional, named, n, seed):
    generator = torch.Generator().manual_seed(seed)
    return made(positional, n, generator), {name: made(part, n, generator) for name, part in named}


def assert_same(found, wanted):
    """Assert equal structures, types, dtypes and values."""
    (ours, structure), (expected, theirs) = pytree.tree_flatten(found), pytree.tree_flatten(wanted)
    assert structure == theirs
    for one, other in zip(ours, expected, strict=True):
        if torch.is_tensor(other):
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-5)
        else:
            assert one is other or (type(one), one) == (type(other), other)


@pytest.mark.parametrize(("function", "positional", "named"), CALLS.values(), ids=CALLS)
@torch.no_grad()
def test_a_call_returns_what_the_module_returns(function, positional, named, empty_db):
    model = Model(function).eval()
    network = FusedResNet.from_model(model, empty_db)
    for n, seed in [(2, 1), (2, 2), (3, 3), (2, 4)]:
        args, kwargs = arguments_of(positional, named, n, seed)
        assert_same(network(*args, **kwargs), model(*args, **kwargs))


@torch.no_grad()
def test_identity_of_results(empty_db):
    """An input that is passed on is that tensor, a tensor in two places is one tensor, and a copy is another one."""
    x, z = torch.randn(2, *IMAGE), torch.randn(2, *IMAGE)
    network = FusedResNet.from_model(Model(CALLS["passed on"][0]).eval(), empty_db)
    other, _, given = network(x, z)
    assert other is z and given is x
    y, again, copied, _ = FusedResNet.from_model(Model(same_twice).eval(), empty_db)(x)
    assert again["again"] is y and copied.data_ptr() != y.data_ptr()
    (_, copied, _) = FusedResNet.from_model(Model(CALLS["copied inputs"][0]).eval(), empty_db)(
        x, torch.zeros(2, 7).long()
    )
    assert copied.data_ptr() != x.data_ptr()


TRACED = ("concatenation", "by name", "two heads", "mask", "number", "same twice", "passed on", "nested", "ids")


@pytest.mark.parametrize("name", TRACED)
@torch.no_grad()
def test_compiled_and_exported(name, empty_db):
    function, positional, named = CALLS[name]
    model = Model(function).eval()
    network = FusedResNet.from_model(model, empty_db)
    args, kwargs = arguments_of(positional, named, 2, 1)
    torch.compiler.reset()
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    for n in (2, 3):
        args, kwargs = arguments_of(positional, named, n, n)
        assert_same(compiled(*args, **kwargs), model(*args, **kwargs))
    exported = torch.export.export(network, tuple(args), kwargs).module()
    assert_same(exported(*args, **kwargs), model(*args, **kwargs))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda network: pickle.loads(pickle.dumps(network))])
@torch.no_grad()
def test_copies(copied, empty_db):
    network = FusedResNet.from_model(Model(two_heads).eval(), empty_db)
    x = torch.randn(2, *IMAGE)
    before = network(x)
    assert_same(copied(network)(x), before)


@torch.no_grad()
def test_memory_formats_and_out(empty_db):
    x, z = torch.randn(2, *IMAGE), torch.randn(2, *IMAGE)
    model = Model(lambda m, x, z, *_: (m.conv(x), m.other(z).flatten(1), m.other(z))).eval()
    network = FusedResNet.from_model(model, empty_db, memory_format=torch.preserve_format)
    last = z.contiguous(memory_format=torch.channels_last)
    for given in (z, last, z[:, :, ::2].repeat(1, 1, 2, 1).transpose(2, 3)):
        assert_same(network(x, given), model(x, given))
    assert [y.is_contiguous() for y in network(x, z)] == [True] * 3
    assert [y.is_contiguous() for y in network(x, z, memory_format=torch.channels_last)] == [False, True, False]
    with pytest.raises(InputError, match="out is for a network that computes one tensor"):
        network(x, z, out=torch.empty(2, 8, 8, 8))
    one = FusedResNet.from_model(Model(CALLS["sum"][0]).eval(), empty_db)
    out = torch.full((2, 8, 8, 8), float("nan"))
    assert one(x, z, out=out) is out
    assert_same(out, one(x, z))


@torch.no_grad()
def test_a_segmentation_model_with_two_heads(empty_db):
    models = pytest.importorskip("torchvision.models.segmentation")
    torch.manual_seed(0)
    model = models.fcn_resnet50(weights=None, weights_backbone=None, aux_loss=True, num_classes=3).eval()
    x = torch.randn(1, 3, 33, 33)
    found = FusedResNet.from_model(model, empty_db)(x)
    assert list(found) == ["out", "aux"]
    assert_same(found, model(x))


def test_training_and_gradients(empty_db):
    network = FusedResNet.from_model(Model(CALLS["sum"][0]).eval(), empty_db)
    x, z = torch.randn(2, *IMAGE), torch.randn(2, *IMAGE, requires_grad=True)
    with pytest.raises(InputError, match="requires a gradient"):
        network(x, z)
    assert network.train()(x, other=z).requires_grad


REFUSED = {
    "too many": ((1,) * 3, {}, InputError, "Model.forward does not take these arguments: too many positional"),
    "unknown name": ((1,), {"missing": 1}, InputError, "does not take these arguments: got an unexpected keyword"),
    "array": ((1, np.zeros(3)), {}, InputError, "the input is a ndarray, not a tensor: give torch.from_numpy"),
    "object": ((1, object()), {}, InputError, "the input is a object, not a tensor"),
    "double": ((1, torch.zeros(2, *IMAGE).double()), {}, InputError, "the input is torch.float64 and the module"),
    "sparse": ((1, torch.zeros(2, *IMAGE).to_sparse()), {}, InputError, r"the input is sparse, .* \.to_dense\(\)"),
    "complex": ((1, torch.zeros(2, *IMAGE, dtype=torch.cfloat)), {}, InputError, "an input is torch.complex64"),
    "other sizes": ((1, torch.zeros(2, 3, 9, 9)), {}, CaptureError, r"inputs of \(2, 3, 8, 8\), \(2, 3, 9, 9\)"),
}


@pytest.mark.parametrize(("args", "kwargs", "error", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(args, kwargs, error, said, empty_db):
    """A 1 stands for an image."""
    network = FusedResNet.from_model(Model(CALLS["sum"][0]).eval(), empty_db)
    x = torch.randn(2, *IMAGE)
    args = [x if type(one) is int else one for one in args]
    with pytest.raises(error, match=said):
        network(*args, **kwargs)
    network(x, x)


def test_a_module_in_float8_is_refused(empty_db):
    model = torch.nn.Embedding(10, 8).to(torch.float8_e4m3fn)
    with pytest.raises(InputError, match=r"the module is in e4m3: convert it with .half\(\)"):
        FusedResNet.from_model(model.eval(), empty_db)(torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_bytes_take_one_input(precision, empty_db):
    model = Model(CALLS["number"][0]).eval()
    network = FusedResNet.from_model(model, empty_db, precision=precision, calibration={})
    with pytest.raises(InputError, match=f"precision='{precision}' is for models with one input"):
        network(torch.randn(2, *IMAGE), mask=torch.ones(2, *MASK).bool())


def test_the_key_of_a_network(empty_db):
    """One input has the text that databases hold; the batch is that of the first input in floating point."""
    network = FusedResNet.from_model(Model(lambda m, x, z, *_: m.conv(x if z is None else z)).eval(), empty_db)
    x = torch.randn(2, *IMAGE)
    assert str(network._network(x).identity).rpartition(" ")[0] == "Model n=2 input=3x8x8 dtype=f32"
    both = network._network(torch.zeros(9, 4).long(), x)
    assert str(both.identity).rpartition(" ")[0] == "Model n=2 input=4:i64 input1=3x8x8 dtype=f32"
    assert both.callers == ("input", "input1", "output") and both.results == (CallerTensor((2, 8, 8, 8), "f32"),)
    assert both.with_batch(5) == network._network(torch.zeros(9, 4).long(), torch.randn(5, *IMAGE))


def test_the_text_of_arguments():
    x, y, z = (torch.full((1,), float(i)) for i in range(3))
    text, tensors = take_apart(
        ("a", "b"), (x,), {"b": [y, {"k": (z, None, True, 1, -0.5, "a,'...")}], "c": float("-inf")}
    )
    assert tensors == [x, y, z]
    expected = ((x, [y, {"k": (z, None, True, 1, -0.5, "a,'...")}]), {"c": float("-inf")})
    assert put_together(text, tensors) == expected
    assert take_apart((), (x,), {})[0] == take_apart(("x",), (), {"x": x})[0] == ONE_TENSOR
    assert len({take_apart((), (x, value), {})[0] for value in (1, True, 1.0, None, "1")}) == 5


@pytest.mark.compile
@torch.no_grad()
def test_kernels_of_ours_run_several_inputs_and_results(cpu, cpu_target):
    """One program of native kernels, whose caller gives two inputs and receives two results."""
    model = Model(lambda m, x, z, *_: (m.conv(x).relu(), m.conv(x).relu() + m.other(z))).eval()
    x, z = torch.randn(2, *IMAGE), torch.randn(2, *IMAGE)
    text, tensors = take_apart((), (x, z), {})
    network = capture_module(model, Signature.of(tensors, text), "f32").network
    assert network.callers == ("input", "input1", "output", "output1")
    (program,), _memory = native_runs(network, model, cpu, cpu_target)
    for given in ((x, z), (z, x)):
        results = [torch.full((2, 8, 8, 8), float("nan")) for _ in network.results]
        execute([program], 0, (*given, *results))
        assert_same(tuple(y.permute(0, 3, 1, 2) for y in results), model(*given))
