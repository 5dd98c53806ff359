"""Graphs of Dynamo as modules: names of parameters, sizes, and what is refused."""

import pytest
import torch
from torch import nn

from autotune.core import CaptureError
from fused_resnet.dynamo_graph import UNNAMED, unlift


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.ModuleDict({"a": nn.Linear(4, 4)})
        self.weights = nn.ParameterList([nn.Parameter(torch.rand(4))])
        self.register_buffer("mean", torch.rand(4))

    def forward(self, x):
        return self.table["a"](x) * self.weights[0] - self.mean


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.last = nn.Linear(4, 4)
        self.last.weight = self.inner.table["a"].weight  # a tied weight

    def forward(self, x):
        return self.last(self.inner(x)).view(x.shape[0], 2, 2)


def graphs(function, *calls, **options):
    """Return what Dynamo gives a backend for each call that it compiles."""
    found = []

    def backend(graph, inputs):
        found.append((unlift(graph, inputs), tuple(inputs)))
        return graph.forward

    torch._dynamo.reset()
    run = torch.compile(function, backend=backend, **options)
    with torch.no_grad():
        for inputs in calls:
            if callable(inputs):  # a change of the model
                inputs()
            else:
                run(*inputs)
    return found


def test_parameters_have_the_names_of_the_model():
    model = Model().eval()
    ((unlifted, inputs),) = graphs(model, [torch.rand(3, 4)])
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert set(unlifted.states) == set(state)
    assert all(inputs[position] is state[name] for name, position in unlifted.states.items())
    assert type(unlifted.module).__name__ == "Model" and not unlifted.is_tuple
    paths = {
        list(n.meta["nn_module_stack"].values())[-1][0]
        for n in unlifted.module.graph.nodes
        if "nn_module_stack" in n.meta
    }
    assert {"inner.table.a", "inner", "last"} <= paths
    assert [node.name for node in unlifted.module.graph.nodes if node.op == "placeholder"] == ["x"]


class Cached(nn.Module):
    """Keeps a tensor for each device in a dictionary, whose keys are methods of a module."""

    def __init__(self):
        super().__init__()
        self.linear, self.cache = nn.Linear(4, 4), {}

    def forward(self, x):
        if x.device.type not in self.cache:
            self.cache[x.device.type] = self.linear.bias.detach() * 2
        return self.linear(x) + self.cache[x.device.type]


def test_a_tensor_whose_name_is_a_method_is_one_of_the_modules():
    model = nn.Sequential(Cached()).eval()
    x = torch.rand(3, 4)
    expected = model(x)  # fills the dictionary
    ((unlifted, _),) = graphs(model, [x])
    assert "0.cache.cpu_" in unlifted.states
    assert torch.equal(unlifted.module(x), expected)


def test_dynamic_sizes_are_those_of_the_input():
    model = Model().eval()
    _, (unlifted, _) = graphs(model, [torch.rand(3, 4)], [torch.rand(5, 4)])
    for n in (2, 7):
        x = torch.rand(n, 4)
        assert torch.equal(unlifted.module(x), model(x))


def test_numbers_among_the_attributes_are_constants_of_a_dynamic_graph():
    """dynamic=True makes tensors of them; a new value is compiled anew."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.LeakyReLU(0.25), nn.Hardtanh(0, 1.5)).eval()
    x, other = torch.randn(2, 3, 9, 7), torch.randn(2, 3, 8, 8)
    found = graphs(model, [x], lambda: setattr(model[2], "negative_slope", 0.5), [x], dynamic=True)
    assert len(found) == 2
    for unlifted, _ in found:
        assert set(unlifted.states) == {*dict(model.named_parameters()), *dict(model.named_buffers())} - {
            "1.num_batches_tracked"
        }
        assert len(unlifted.inputs) == 1
    for (unlifted, _), value in zip(found, (0.25, 0.5), strict=True):
        model[2].negative_slope = value
        for given in (x, other):
            assert torch.equal(unlifted.module(given), model(given))


def test_the_item_of_a_tensor_is_no_constant():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("factor", torch.tensor(2.0, dtype=torch.float64))

        def forward(self, x):
            return x * self.factor

    ((unlifted, _),) = graphs(Scaled().eval(), [torch.rand(3, 4)], dynamic=True)
    assert set(unlifted.states) == {"factor"}


def test_other_weights_give_another_module():
    model, other = Model().eval(), Model().eval()
    ((unlifted, _),) = graphs(model, [torch.rand(3, 4)])
    state, x = {**dict(other.named_parameters()), **dict(other.named_buffers())}, torch.rand(3, 4)
    copied = unlifted.with_states([state[name] for name in unlifted.states])
    assert torch.equal(copied(x), other(x)) and torch.equal(unlifted.module(x), model(x))
    assert type(copied).__name__ == "Model"


def test_several_modules_keep_apart():
    a, b, x = nn.Linear(4, 4), nn.Linear(4, 4), torch.rand(3, 4)
    ((unlifted, _),) = graphs(lambda x: (a(x), b(x)), [x])
    assert len(unlifted.states) == 4 and unlifted.is_tuple and type(unlifted.module).__name__ == UNNAMED
    for got, module in zip(unlifted.module(x), (a, b), strict=True):
        assert torch.equal(got, module(x))


def test_numbers_that_are_no_sizes_are_refused():
    with pytest.raises(Exception, match=f"{CaptureError.__name__}: the graph takes a number") as caught:
        graphs(lambda x, n: x * n, [torch.rand(3, 4), 3], [torch.rand(3, 4), 5])
    assert "no size of an input" in str(caught.value)
