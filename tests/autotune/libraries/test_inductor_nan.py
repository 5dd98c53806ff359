"""Code of Inductor for a CPU gives NaN and infinities where PyTorch does."""

import pytest
import torch
from architectures import Function
from torch import nn

from autotune.libraries.inductor_nan import KeepNan
from fused_resnet import FusedResNet

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned", "ignore:.*LeafSpec", "ignore::DeprecationWarning")

ACTIVATIONS = {
    **{"relu": nn.ReLU(), "relu6": nn.ReLU6(), "hardtanh": nn.Hardtanh(-1, 2), "hardsigmoid": nn.Hardsigmoid()},
    **{"hardswish": nn.Hardswish(), "silu": nn.SiLU(), "gelu": nn.GELU(), "gelu_tanh": nn.GELU("tanh")},
    **{"leaky_relu": nn.LeakyReLU(0.1), "sigmoid": nn.Sigmoid(), "tanh": nn.Tanh()},
}
"""All activations that Inductor joins with a convolution of oneDNN."""


def activated(m, x):
    """Return each activation behind a convolution, and ReLU behind the sum of a convolution and another tensor."""
    found = [act(m.convs[name](x)) for name, act in ACTIVATIONS.items()]
    return torch.cat([*found, (m.conv(x) + x).relu()], 1)


@pytest.mark.compile
@torch.no_grad()
def test_all_activations_keep_nan_and_infinities(empty_db):
    torch.manual_seed(0)
    convs = nn.ModuleDict({name: nn.Conv2d(8, 8, 3, padding=1) for name in ACTIVATIONS})
    plain = Function(activated, convs=convs, conv=nn.Conv2d(8, 8, 3, padding=1)).eval()
    x = torch.randn(2, 8, 12, 12)
    x[0, 0, 3, 3], x[0, 1, 9, 9], x[1, 2, 5, 5] = float("nan"), float("inf"), -float("inf")
    network = FusedResNet.from_model(plain, empty_db, compile=True)
    expected, y = plain(x), network(x)
    assert [row.kernel.split()[0] for row in network.explain(x)] == ["inductor"]
    assert expected.isnan().any((0, 2, 3)).all() and expected.isinf().any()
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def rewritten(function):
    """Return the names of a function's operators behind the pass, and the function with them."""
    traced = torch.fx.symbolic_trace(function)
    KeepNan()(traced.graph)
    traced.graph.lint()
    traced.recompile()
    names = [node.target.__name__ for node in traced.graph.nodes if node.op == "call_function"]
    return names, traced


def test_only_what_onednn_computes_without_nan_is_written_otherwise():
    aten = torch.ops.aten
    x = torch.cat([torch.linspace(-9, 9, 37), torch.tensor([float("nan"), float("inf"), -float("inf")])])

    def clamped(x, low, high):
        return aten.clamp_max.default(aten.clamp_min.default(x, low), high)

    for function, expected in (
        (lambda x: aten.relu.default(x) + 0, ["clamp_min.default", "add"]),
        (lambda x: clamped(x, -1.0, 2), ["clamp_max.default", "clamp_min.default"]),
        (lambda x: clamped(x, 2, -1), ["clamp_min.default", "clamp_max.default"]),
        (lambda x: aten.mul.Tensor(x, clamped(x, 0, 6)), ["clamp_min.default", "clamp_max.default", "mul.Tensor"]),
        (lambda x: aten.div.Tensor(clamped(x, 0, 6), 6), ["clamp_max.default", "clamp_min.default", "div.Tensor"]),
    ):
        names, changed = rewritten(function)
        assert names == expected
        torch.testing.assert_close(changed(x), function(x), rtol=0, atol=0, equal_nan=True)
