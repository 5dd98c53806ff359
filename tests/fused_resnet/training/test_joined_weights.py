"""Weights are converted to another dtype together, packed together, and their gradients are converted back together."""

import pytest
import torch
from torch import fx
from torch._decomp import get_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from autotune.ir import pack_weight, turn_weight
from fused_resnet.training.graph_rewrite.joined_weights import CONVERT_ALL, join_conversions, join_packings
from fused_resnet.training.kernels.operator import SOLVE

ATEN = torch.ops.aten
DECOMPOSED = get_decompositions([ATEN._to_copy.default, ATEN.flip.default])  # as Inductor does it


def traced(function, *examples):
    """A graph as Inductor's passes see it."""
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(one) for one in examples]
        return make_fx(function, DECOMPOSED, tracing_mode="real")(*fakes)


def count(module, target):
    return sum(node.target == target for node in module.graph.nodes)


def weights(*shapes):
    return [torch.randn(shape).contiguous(memory_format=torch.channels_last) for shape in shapes]


def assert_conversions_are_joined(module, examples):
    """Rewrite a graph, and check that its results are the same; return the node that converts together."""
    expected = module(*examples)
    join_conversions(module.graph)
    module.graph.lint()
    module.recompile()
    for found, wanted in zip(module(*examples), expected, strict=True):
        assert found.equal(wanted) and found.stride() == wanted.stride()
    [joined] = [node for node in module.graph.nodes if node.target is CONVERT_ALL]
    return joined


def test_weights_are_converted_together_and_activations_are_not():
    def step(x, saved, first, second, third, bias):
        converted = [one.to(torch.bfloat16) for one in (first, second, third)]
        y = torch.convolution(x, converted[0], None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        y = torch.convolution(y, converted[1], None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        packed = [pack_weight(converted[2], layout) for layout in ("wgmma", "krsc", "k32")]
        return y * saved.to(torch.bfloat16) + bias.to(torch.bfloat16), *converted[:2], *packed

    saved = torch.randn(2, 8, 5, 5)
    filters = weights((8, 4, 3, 3), (8, 8, 1, 1), (40, 8, 3, 3))
    examples = [torch.randn(2, 4, 5, 5).bfloat16(), saved, *filters, torch.randn(8, 1, 1)]
    module = traced(step, *examples)
    tensors, dtype = assert_conversions_are_joined(module, examples).args
    assert [node.name for node in tensors] == ["first_1", "second_1", "third_1"] and dtype == torch.bfloat16
    assert count(module, torch.ops.prims.convert_element_type.default) == 2


def test_gradients_of_weights_are_converted_together_behind_their_kernels():
    def step(dy, x, weight, other):
        [_, dw, _] = ATEN.convolution_backward(
            dy, x, weight, [0], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]
        )
        return dw.float(), torch.mm(other, other).float(), (other * 2).float()

    examples = [torch.randn(2, 8, 5, 5), torch.randn(2, 4, 5, 5), *weights((8, 4, 3, 3)), torch.randn(6, 6)]
    examples = [one.bfloat16() for one in examples]
    module = traced(step, *examples)
    assert len(assert_conversions_are_joined(module, examples).args[0]) == 2
    assert count(module, torch.ops.prims.convert_element_type.default) == 1, "a compiler fuses it with the product"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_converted_tensors_keep_their_strides(dtype):
    tensors = [*weights((8, 4, 3, 3), (5, 3, 1, 1)), torch.randn(7, 6).t(), torch.randn(3)]
    for found, tensor in zip(CONVERT_ALL(tensors, dtype), tensors, strict=True):
        assert found.equal(tensor.to(dtype)) and found.stride() == tensor.stride()
    torch.library.opcheck(CONVERT_ALL, (tensors, dtype), test_utils=("test_schema", "test_faketensor"))


def test_weights_are_packed_together():
    """Packed before and behind the first kernel; one of them of a computed weight, which is not moved."""
    shapes = ((8, 4, 3, 3), (16, 8, 1, 1), (8, 8, 3, 3), (8, 8, 3, 3))
    layouts = (("wgmma", False), ("k32", True), ("rsck", True), ("wgmma", False))

    def step(x, first, second, third, fourth):
        packed = [
            pack_weight(turn_weight(one) if turned else one, layout)
            for (layout, turned), one in zip(layouts, (first, second, third, fourth + 1), strict=True)
        ]
        return x * 2, *packed

    examples = [torch.randn(3), *weights(*shapes)]
    module = traced(step, *examples)
    expected = module(*examples)
    output = next(node for node in module.graph.nodes if node.op == "output")
    copies = list(output.args[0][1:])
    with module.graph.inserting_before(output):
        for copy in copies:
            call_of(module.graph, copy)
    join_packings(module.graph)
    module.graph.lint()
    for node in [node for node in module.graph.nodes if node.target is SOLVE]:
        module.graph.erase_node(node)
    module.recompile()
    assert count(module, ATEN._foreach_mul.Scalar) == 1
    assert count(module, ATEN.clone.default) == 1, "a weight that is computed is packed where it is computed"
    order = [node.target for node in module.graph.nodes if node.op == "call_function"]
    assert order.index(ATEN._foreach_mul.Scalar) < order.index(ATEN.mul.Tensor)
    for found, wanted in zip(module(*examples), expected, strict=True):
        assert found.equal(wanted)  # Inductor gives the operands of kernels the strides that the graph notes


def call_of(graph: fx.Graph, weight: fx.Node) -> None:
    """Add a kernel that reads a packed weight. It is not run, so its problem is any."""
    node = graph.call_function(SOLVE, ([weight], "", "", ""))
    node.meta["val"] = weight.meta["val"]
