"""Tracing of Dynamo's graphs: the layers are those of a capture of the model by torch.export."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autotune.core import CaptureError
from fused_resnet.capture import capture
from fused_resnet.dynamo_graph import unlift


class Sum(nn.Module):
    """Uses changes in place, a constant, a dropout and reshapes."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(4, 8, 1)
        self.norm, self.drop, self.head = nn.BatchNorm2d(8), nn.Dropout(), nn.Linear(8, 2)

    def forward(self, x):
        y = F.relu(self.norm(self.a(x)), inplace=True)
        y += self.b(x)
        y = self.drop(y) * torch.tensor([2.0])
        return self.head(torch.flatten(F.adaptive_avg_pool2d(y, 1), 1))


class Viewed(nn.Module):
    """Changes a tensor in place through a view of it."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        y = self.conv(x)
        y[:, :2].mul_(2)
        return y.relu()


class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls.add_(1)
        return self.conv(x) + self.calls


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


@pytest.mark.parametrize("kind", [Sum, Viewed])
def test_the_network_is_that_of_a_capture_of_the_model(kind):
    model, x = kind().eval(), torch.randn(2, 4, 6, 6)
    found, expected = capture(graph(model, x), (2, 4, 6, 6), "f32"), capture(model, (2, 4, 6, 6), "f32")
    assert [layer.name for layer in found.layers] == [layer.name for layer in expected.layers]
    assert [layer.problem for layer in found.layers] == [layer.problem for layer in expected.layers]
    assert [layer.weights for layer in found.layers] == [layer.weights for layer in expected.layers]
    if kind is Sum:  # changes through views are replaced by operators with other names, which the key covers
        assert found.key == expected.key


def test_a_graph_that_changes_state_is_refused():
    model, x = Buffered().eval(), torch.randn(2, 4, 6, 6)
    with pytest.raises(CaptureError, match="changes"):
        capture(graph(model, x), (2, 4, 6, 6), "f32")


def test_a_dropout_in_training_mode_is_refused():
    model, x = Sum().eval(), torch.randn(2, 4, 6, 6)
    model.drop.train()
    with pytest.raises(CaptureError, match="dropout is in training mode"):
        capture(graph(model, x), (2, 4, 6, 6), "f32")


def test_what_torch_cannot_trace_is_refused():
    model = graph(Sum().eval(), torch.randn(2, 4, 6, 6))
    with pytest.raises(CaptureError, match="cannot be traced"):
        capture(model, (2, 5, 6, 6), "f32")
