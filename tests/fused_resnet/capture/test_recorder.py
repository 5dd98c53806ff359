"""Recording of operators: the nodes are those of torch's tracer, and the process is not marked as being traced."""

import threading

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from autotune.core import CaptureError
from fused_resnet.capture.nodes import memory
from fused_resnet.capture.recorder import Recorder


def computes(x, weight):
    y = torch.conv2d(x, weight, padding=1).relu_()
    first, second = y.chunk(2, 1)
    y = torch.nn.functional.scaled_dot_product_attention(first, second, second) * torch.tensor([2.0])
    values, _ = y.flatten(1).max(1)
    torch._foreach_mul_([values], 2.0)
    return torch.einsum("n->n", values).reshape(-1), torch.add(values, 1, out=torch.empty(2))


def recorded(function, *shapes):
    recorder = Recorder()
    with FakeTensorMode(), torch.inference_mode():
        fakes = [torch.empty(shape) for shape in shapes]
        for i, fake in enumerate(fakes):
            recorder.placeholder(f"arg{i}", fake)
        with recorder:
            results = function(*fakes)
    recorder.graph.output(tuple(map(recorder.node, results)))
    return recorder


def test_nodes_are_those_of_torchs_tracer():
    shapes = (2, 4, 6, 6), (8, 4, 3, 3)
    found = recorded(computes, *shapes).graph
    with FakeTensorMode():
        expected = make_fx(computes, pre_dispatch=True)(*map(torch.empty, shapes)).graph

    def operators(graph):  # in inference mode torch.empty detaches what it makes
        nodes = [node for node in graph.nodes if node.op == "call_function" and node.name != "detach"]
        return [(node.name, node.target) for node in nodes]

    assert operators(found) == operators(expected)


def test_a_view_is_known_by_its_memory_also_where_the_schema_does_not_tell_it():
    for _ in range(2):  # fake tensors remember operators
        (x, *_, view, copied) = (
            node for node in recorded(lambda x: (torch.einsum("ij->ji", x), x.t().reshape(-1)), (2, 3)).graph.nodes
            if node.name in ("arg0", "einsum", "reshape")
        )  # fmt: skip
        assert memory(view) == memory(x) and memory(copied).isdisjoint(memory(x))


def test_the_process_is_not_traced():
    seen = []

    def function(x):
        other = threading.Thread(target=lambda: seen.append(fx._symbolic_trace.is_fx_symbolic_tracing()))
        other.start()
        other.join()
        return (x + 1,)

    recorded(function, (2,))
    assert seen == [False]


def test_a_tensor_from_elsewhere_is_refused():
    with FakeTensorMode():
        elsewhere = torch.empty(2)
    with pytest.raises(CaptureError, match="a tensor without an operator"):
        recorded(lambda x: (x + elsewhere,), (2,))
