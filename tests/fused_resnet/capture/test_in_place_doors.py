"""Changes in place, of all forms, by both doors: what comes out is what eager torch computes in float64."""

import copy

import pytest
import torch
import torch.nn.functional as F
from architectures import images
from torch import nn

from autotune.core import CaptureError
from fused_resnet import FusedResNet
from fused_resnet.capture import capture
from fused_resnet.dynamo_graph import unlift

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")

LATER = {  # functions that change y; y itself is read behind that
    "einsum": lambda y: torch.einsum("nchw->nhwc", y).mul_(2),
    "foreach": lambda y: torch._foreach_mul_([y], 2.0),
    "foreach of lists": lambda y: torch._foreach_add_([y[:1], y[1:]], [y[1:].clone(), y[:1].clone()]),
    "foreach of views": lambda y: torch._foreach_mul_(list(y.unbind(1)[::2]), 3.0),
    "out": lambda y: torch.mul(y, 2, out=y),
    "out of a slice": lambda y: torch.sin(y[:1], out=y[1:]),
    "index_put": lambda y: y.index_put_((torch.tensor([1]), torch.tensor([2])), y[:1, 0] * 2),
    "copy into a slice": lambda y: y[:, 2:5].copy_(y[:, 5:8].relu()),
    "masked_fill": lambda y: y.masked_fill_(y > 0, -1.0),
    "masked_fill of a view": lambda y: y.transpose(1, 3).masked_fill_(y.transpose(1, 3) > 0, -1.0),
    "setitem": lambda y: y.__setitem__((slice(None), slice(0, 2)), y[:, 4:6] * 3),
    "setitem by a mask": lambda y: y.__setitem__(y > 0, 7.0),
    "unbind": lambda y: y.unbind(1)[3].mul_(2),
    "split": lambda y: y.split([3, 5], 1)[1].add_(2),
    "chunk": lambda y: [part.mul_(i) for i, part in enumerate(y.chunk(4, 1))],
    "tensor_split": lambda y: y.tensor_split(3, 2)[1].mul_(2),
    "transpose": lambda y: y.transpose(1, 2).mul_(2),
    "transpose in place": lambda y: y.transpose_(1, 3).mul_(3),
    "detach": lambda y: y.detach().mul_(2),
    "data": lambda y: y.data.mul_(2),
    "no cast": lambda y: y.type_as(y).mul_(2),
    "a cast": lambda y: y.to(torch.bfloat16).mul_(2),
    "diagonal": lambda y: y.diagonal(0, 2, 3).zero_(),
    "windows": lambda y: y.unfold(1, 2, 2).mul_(3),
    "a reshape that copies": lambda y: y.transpose(1, 2).reshape(2, -1).mul_(2),
    "dropout": lambda y: F.dropout(y, training=False).mul_(2),
    "padding": lambda y: y[:, :2].add_(F.pad(y, (1, 1, 1, 1), mode="circular")[:, :2, 2:, 2:]),
}


def expanded_is_read(y):
    part = y[:1]
    wide = part.expand(2, 8, 8, 8)
    part.mul_(2)
    return wide + y


def clone_of_the_input(y):
    return y.clone().relu_() + y


def complex_parts(y):
    z = torch.view_as_complex(torch.stack([y, y.sin()], -1))
    z.real.mul_(2)
    return torch.view_as_real(z).sum(-1) + y


def two_results(y):
    values, places = torch.empty(2, 8, 8, dtype=y.dtype), torch.empty(2, 8, 8, dtype=torch.long)
    torch.max(y, 1, out=(values, places))
    return y * values[:, None]


def swapped(y):
    first = y[:, :4].clone()
    y[:, :4], y[:, 4:] = y[:, 4:], first
    return y * 2


RESULTS = {  # functions that return what they computed
    one.__name__: one for one in (expanded_is_read, clone_of_the_input, complex_parts, two_results, swapped)
}


def later(change):
    def function(m, y):
        change(y)
        return y + 1

    return function


FORMS = {name: later(change) for name, change in LATER.items()} | {
    name: lambda m, y, function=function: function(y) for name, function in RESULTS.items()
}

ALONE = ("einsum", "foreach", "out of a slice", "data", "padding", "no cast")
NETWORKS = {name: [name] for name in ALONE} | {"others": [name for name in FORMS if name not in ALONE]}
"""Forms whose changes are seen only where nothing else is changed; the others are parts of one network."""


class Changed(nn.Module):
    """Applies each function to the result of a convolution."""

    def __init__(self, functions):
        super().__init__()
        self.conv, self.functions = nn.Conv2d(3, 8, 3, padding=1), functions
        self.weight = nn.Parameter(torch.rand(8))
        for name in ("mean", "var"):
            self.register_buffer(name, torch.rand(8, generator=torch.Generator().manual_seed(1)) + 1)

    def forward(self, x):
        results = [function(self, self.conv(x)) for function in self.functions]
        return results if len(results) > 1 else results[0]


def from_model(model, database):
    return FusedResNet.from_model(model, database, compile=False)


def compiled(model, database):
    return torch.compile(model, backend="autotune", fullgraph=True, options={"tuning_db": database})


@pytest.mark.filterwarnings("error:backend='autotune'")
@pytest.mark.parametrize("door", [from_model, compiled])
@pytest.mark.parametrize("names", NETWORKS.values(), ids=NETWORKS)
@torch.no_grad()
def test_what_is_changed_in_place_comes_out_as_in_eager_torch(names, door, empty_db, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_INDUCTOR", "0")
    torch.manual_seed(0)
    model = Changed([FORMS[name] for name in names]).eval()
    fast, inputs = door(model, str(empty_db)), [images(2, 8)]
    if door is from_model:  # Dynamo breaks the graph at out=, which has to be contiguous
        inputs.append(images(2, 8, seed=1).contiguous(memory_format=torch.channels_last))
    for x in inputs:
        found, expected = fast(x), copy.deepcopy(model).double()(x.double())
        pairs = zip(names, found, expected, strict=True) if len(names) > 1 else [(names[0], found, expected)]
        for name, one, other in pairs:
            torch.testing.assert_close(
                one.double(), other, rtol=1e-4, atol=1e-4, msg=lambda text, n=name: f"{n}: {text}"
            )


def statistics(m, y):
    return F.batch_norm(y, m.mean, m.var, training=True)


def einsum_of_state(m, y):
    torch.einsum("c->c", m.mean).add_(1)
    return y + m.mean.view(8, 1, 1)


def list_of_state(m, y):
    torch._foreach_add_([m.mean], 1.0)
    return y + m.mean.view(8, 1, 1)


def out_is_state(m, y):
    torch.mul(m.var, 2, out=m.mean)
    return y + m.mean.view(8, 1, 1)


def detached_state(m, y):
    m.mean.detach().lerp_(y.mean((0, 2, 3)), 0.1)
    return y + m.mean.view(8, 1, 1)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (statistics, "(changes 'mean'|is in training mode)"),
        (einsum_of_state, "changes 'mean'"),
        (list_of_state, "changes 'mean'"),
        (out_is_state, "changes 'mean'"),
        (detached_state, "changes 'mean'"),
        (later(lambda y: y.reshape(2, -1).mul_(2)), "reshape returns a view or a copy"),
        (later(lambda y: y.contiguous().mul_(2)), "contiguous returns a view or a copy"),
        (later(lambda y: y.permute(0, 2, 3, 1).contiguous().mul_(2)), "contiguous returns a view or a copy"),
        (later(lambda y: y.ravel().mul_(2)), "ravel returns a view or a copy"),
        (later(lambda y: y[0, 0].fill_diagonal_(3)), "in a way that cannot be captured|as_strided"),
    ],
)
def test_what_cannot_be_captured_is_refused_by_both_doors(function, said):
    model, x, found = Changed([function]).eval(), images(2, 8), []

    def backend(graph, inputs):
        found.append(unlift(graph, inputs).module)
        return graph.forward

    with torch.no_grad():
        torch.compile(copy.deepcopy(model), backend=backend)(x)
    for given in (model, found[0]):
        with pytest.raises(CaptureError, match=said):
            capture(given, tuple(x.shape), "f32")


def test_a_tensor_that_is_set_by_data_is_refused():
    def sets(m, y):
        y.data = y * 2
        return y

    with pytest.raises(CaptureError, match=r"sets \.data of a tensor: write x\.detach\(\)\.copy_"):
        capture(Changed([sets]).eval(), (2, 3, 8, 8), "f32")
