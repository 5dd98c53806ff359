"""Tracing of Dynamo's graphs: the layers are those of a capture of the model by torch.export."""

import pytest
import torch
import torch.nn.functional as F
from architectures import Function
from torch import nn

from autotune.core import CaptureError
from fused_resnet.capture import capture
from fused_resnet.dynamo_graph import unlift


def summed():
    """Return a module with changes in place, a constant, a dropout and reshapes."""

    def forward(m, x):
        y = F.relu(m.norm(m.a(x)), inplace=True)
        y += m.b(x)
        y = m.drop(y) * torch.tensor([2.0])
        return m.head(torch.flatten(F.adaptive_avg_pool2d(y, 1), 1))

    parts = {"a": nn.Conv2d(4, 8, 3, padding=1), "b": nn.Conv2d(4, 8, 1), "norm": nn.BatchNorm2d(8)}
    return Function(forward, **parts, drop=nn.Dropout(), head=nn.Linear(8, 2))


def viewed():
    """Return a module that changes a tensor in place through a view of it."""

    def forward(m, x):
        y = m.conv(x)
        y[:, :2].mul_(2)
        return y.relu()

    return Function(forward, conv=nn.Conv2d(4, 4, 1))


def graph(model, x):
    """Return the module of the graph that Dynamo makes of a model."""
    found = []

    def backend(graph, inputs):
        found.append(unlift(graph, inputs).module)
        return graph.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=backend)(x)
    return found[0]


@pytest.mark.parametrize("kind", [summed, viewed])
def test_the_network_is_that_of_a_capture_of_the_model(kind):
    model, x = kind().eval(), torch.randn(2, 4, 6, 6)
    found, expected = capture(graph(model, x), (2, 4, 6, 6), "f32"), capture(model, (2, 4, 6, 6), "f32")
    assert [layer.name for layer in found.layers] == [layer.name for layer in expected.layers]
    assert [layer.problem for layer in found.layers] == [layer.problem for layer in expected.layers]
    assert [layer.weights for layer in found.layers] == [layer.weights for layer in expected.layers]
    if kind is summed:  # changes through views are replaced by operators with other names, which the key covers
        assert found.key == expected.key


def test_a_graph_that_changes_state_is_refused():
    counting = Function(lambda m, x: m.conv(x) + m.calls.add_(1), conv=nn.Conv2d(4, 4, 1), calls=torch.zeros(1))
    model, x = counting.eval(), torch.randn(2, 4, 6, 6)
    with pytest.raises(CaptureError, match="changes"):
        capture(graph(model, x), (2, 4, 6, 6), "f32")


def test_a_dropout_in_training_mode_is_refused():
    model, x = summed().eval(), torch.randn(2, 4, 6, 6)
    model.drop.train()
    with pytest.raises(CaptureError, match="dropout is in training mode"):
        capture(graph(model, x), (2, 4, 6, 6), "f32")


def test_what_torch_cannot_trace_is_refused():
    model = graph(summed().eval(), torch.randn(2, 4, 6, 6))
    with pytest.raises(CaptureError, match="cannot be traced"):
        capture(model, (2, 5, 6, 6), "f32")
