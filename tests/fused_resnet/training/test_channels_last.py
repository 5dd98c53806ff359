"""Sums of whole tensors in a graph for Inductor run in the order of memory, and stay right."""

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fused_resnet.training.graph_rewrite.channels_last import FORCE_STRIDE_ORDER, ChannelsLast

ATEN = torch.ops.aten


def step(x, y):
    joined = torch.relu(x) + y
    pooled = F.max_pool2d(F.avg_pool2d(joined, 3, 1, 1), 2)
    return pooled.square().sum() + joined.sum(), joined * 2


def gradients(x, y):
    def loss(x, y):
        total, doubled = step(x, y)
        return total + doubled.sum()

    return torch.func.grad(loss, (0, 1))(x, y), loss(x, y), (x - y).sum((0, 1, 2, 3), keepdim=True)


def inputs(memory_format):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 6, 8, 8, generator=generator).contiguous(memory_format=memory_format) for _ in range(2)]


def traced(function, memory_format):
    with FakeTensorMode() as fakes:
        graph = make_fx(function)(*map(fakes.from_tensor, inputs(memory_format)))
    before = [node.target for node in graph.graph.nodes]
    ChannelsLast(graph.graph).order()
    graph.graph.lint()
    graph.recompile()
    return graph, before


def test_results_stay_right():
    for function in (step, gradients):
        graph, _ = traced(function, torch.channels_last)
        x, y = inputs(torch.channels_last)
        torch.testing.assert_close(graph(x, y), function(x.double(), y.double()), check_dtype=False)


def test_whole_tensors_are_summed_in_the_order_of_memory():
    graph, _ = traced(step, torch.channels_last)
    sums = [node for node in graph.graph.nodes if node.target in (ATEN.sum.default, ATEN.sum.dim_IntList)]
    assert len(sums) == 2
    for node in sums:
        assert node.args[0].target == ATEN.permute.default and node.args[0].meta["val"].is_contiguous()


def test_a_tensor_that_is_summed_up_and_read_is_kept():
    graph, _ = traced(step, torch.channels_last)
    (kept,) = [node for node in graph.graph.nodes if node.target == FORCE_STRIDE_ORDER]
    assert kept.args[0].target == ATEN.add.Tensor and len(kept.users) >= 3


def test_a_graph_of_other_layouts_stays_as_it_is():
    for function in (step, gradients):
        graph, before = traced(function, torch.contiguous_format)
        assert [node.target for node in graph.graph.nodes] == before
