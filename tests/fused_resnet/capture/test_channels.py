"""Concatenations, slices and shuffles of channels in captured modules."""

import copy

import pytest
import torch
import torch.nn.functional as F
from architectures import Function, images, random_model
from comparison import relative_error
from torch import nn

from autotune.core import CaptureError
from autotune.ir.operators import Concat, TorchCall
from fused_resnet import FusedResNet
from fused_resnet.capture import capture

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")

X = images(2, 8)


class Of(nn.Module):
    """A function of two convolutions' results, of 8 and 4 channels."""

    def __init__(self, function):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 4, 1)
        self.norm, self.last = nn.BatchNorm2d(12), nn.Conv2d(6, 5, 1)
        self.function = function

    def forward(self, x):
        return self.function(self, self.a(x), self.b(x))


def shuffled(x, groups):
    n, c, h, w = x.shape
    return x.view(n, groups, c // groups, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


def permuted(x, groups):
    n, _, h, w = x.shape
    return x.reshape(n, groups, -1, h, w).permute(0, 2, 1, 3, 4).flatten(1, 2)


def assert_comes_out_right(function, database):
    """Check the result of a function of two convolutions' results, and return the layers."""
    model = random_model(Of(function), size=8)
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(X.double())
    assert relative_error(FusedResNet.from_model(model, database)(X), expected) < 1e-5
    return capture(model, tuple(X.shape), "f32").layers


def problems(layers, kind):
    return [layer.problem for layer in layers if isinstance(layer.problem, kind)]


CASES = {
    "cat and norm": (lambda m, a, b: F.relu(m.norm(torch.cat([a, b], 1))), ["8,4 1 scale,bias,relu"]),
    "read twice": (
        lambda m, a, b: F.relu(m.norm(y := torch.cat([a, b], 1))) + y,
        ["8,4 1 store,scale,bias,relu"],
    ),
    "chunks": (lambda m, a, b: torch.cat(a.chunk(2, 1)[::-1], 1), ["4:8/8,0:4/8 1 none"]),
    "of concatenations": (
        lambda m, a, b: torch.cat([torch.cat([a, b], 1)[:, 2:10], b.narrow(1, 1, 2), a[:, -1:]], -3),
        ["2:8/8,0:2/4,1:3/4,7:8/8 1 none"],
    ),
    "joined ranges": (lambda m, a, b: m.last(torch.cat([a[:, :3], a[:, 3:6]], 1)), ["0:6/8 1 none"]),
    "split": (lambda m, a, b: m.last(torch.split(a, [6, 2], 1)[0]), ["0:6/8 1 none"]),
    "one channel": (
        lambda m, a, b: torch.cat([a[:, 2].unsqueeze(1) * 2 + 1, b], 1),
        ["2:3/8 1 mul_scalar,add_scalar", "1,4 1 none"],
    ),
    "shuffle": (lambda m, a, b: shuffled(torch.cat([a, b], 1), 2), ["8,4 2 none"]),
    "permuted": (lambda m, a, b: F.relu(permuted(torch.cat([a, b], 1), 3)), ["8,4 3 relu"]),
    "half of a shuffle": (
        lambda m, a, b: m.last(shuffled(torch.cat([a, b], 1), 2).chunk(2, 1)[1]),
        ["3:6/8,1:4/4 2 none"],
    ),
    "piece of a shuffle": (
        lambda m, a, b: torch.cat([F.channel_shuffle(a, 4), b], 1),
        ["8 4 none", "8,4 1 none"],
    ),
    "odd piece of a shuffle": (lambda m, a, b: m.last(shuffled(a, 2)[:, 1:7]), ["8 2 none", "1:7/8 1 none"]),
    "shuffle of a shuffle": (lambda m, a, b: shuffled(shuffled(a, 2), 4), ["8 2 none", "8 4 none"]),
    "a growing list": (lambda m, a, b: torch.cat([a, b] * 6, 1), ["8,4,8,4,8,4,8,4 1 none", "48,8,4,8,4 1 none"]),
    "no channels are left out": (lambda m, a, b: a[:, :, :, :] * 2, []),
    "features": (lambda m, a, b: torch.cat([a.mean((2, 3)), b.amax((2, 3)).relu()[:, :2]], 1)[:, 1:], None),
}


@pytest.mark.parametrize("name", [name for name, (_, wanted) in CASES.items() if wanted is not None])
def test_channels_are_read_where_they_are(name, empty_db):
    function, wanted = CASES[name]
    layers = assert_comes_out_right(function, empty_db)
    found = problems(layers, Concat)
    assert [f"{','.join(map(str, one.pieces))} {one.interleave} {one.epilogue}" for one in found] == wanted
    assert all(one.dtype == "f32" for one in found) and not problems(layers, TorchCall)


def test_features_of_two_dimensions_are_concatenated_too(empty_db):
    layers = assert_comes_out_right(CASES["features"][0], empty_db)
    assert [layer.name for layer in layers if isinstance(layer.problem, TorchCall)] == ["amax"]
    assert str(problems(layers, Concat)[0].pieces[0]) == "1:8/8"


def test_lists_that_grow_share_their_first_concatenation():
    """As in DenseNet: each layer reads the concatenation of all before it."""

    def forward(m, x):
        features = [x]
        for conv in m.convs:
            features.append(conv(F.relu(torch.cat(features, 1))))
        return torch.cat(features, 1)

    dense = Function(forward, convs=nn.ModuleList(nn.Conv2d(3 + 2 * i, 2, 1) for i in range(20)))
    layers = capture(random_model(dense, size=8), tuple(X.shape), "f32").layers
    pieces = [len(problem.pieces) for problem in problems(layers, Concat)]
    assert len(pieces) == 20 + 2 and max(pieces) == 8
    prefixes = [layer for layer in layers if "prefix" in layer.name]
    assert [layer.problem.c for layer in prefixes] == [3 + 7 * 2, 3 + 14 * 2]


def shuffled_by_one(m, a, b, relu_first):
    y = shuffled(a, 1)
    early = F.relu(a) if relu_first else 0
    late = torch.cat([y, b], 1), y[:, :4] * 2
    return torch.cat([*late, F.relu(a) + early], 1)


@pytest.mark.parametrize(
    "function",
    [
        # no concatenations of channels
        lambda m, a, b: torch.cat([a, torch.zeros(len(a), 1, 8, 8)], 1),
        lambda m, a, b: torch.cat([a[:, :4], b], 2),
        lambda m, a, b: torch.cat([a[:, ::2], b], 1),
        lambda m, a, b: torch.cat([a.transpose(2, 3), b], 1),
        lambda m, a, b: torch.cat([a, m.last.weight.view(1, -1, 1, 1)[:, :4].expand(len(a), 4, 8, 8)], 1),
        # shuffles and slices that take all or nothing
        lambda m, a, b: shuffled_by_one(m, a, b, False),
        lambda m, a, b: shuffled_by_one(m, a, b, True),
        lambda m, a, b: torch.cat([permuted(a, 8)[:, :4], F.relu(a), shuffled(F.relu(a), 8)], 1),
        lambda m, a, b: torch.cat([a[:, :0], b, a[:, 8:]], 1).relu(),
        lambda m, a, b: torch.cat([a[:, :0] * 2, b], 1) + a[:, 3:3].sum(1, keepdim=True),
        lambda m, a, b: torch.cat([torch.cat([a[:, :, :0], b[:, :, 8:]], 1), torch.cat([a, b], 1)], 2),
    ],
)
def test_what_is_no_concatenation_of_some_channels_comes_out_right(function, empty_db):
    assert_comes_out_right(function, empty_db)


@pytest.mark.parametrize("function", [lambda m, a, b: a[:, :0], lambda m, a, b: (a[:, :, :0] * 2, b)])
def test_a_result_without_elements_is_refused(function):
    with pytest.raises(CaptureError, match=r"returns a tensor of \(2, .*\): a result must have at least one element"):
        capture(Of(function).eval(), tuple(X.shape), "f32")
