"""Tracing: a module -> a torch.fx graph of aten operators, without in-place changes, for one signature.

torch.export makes the graph. Operators that do nothing in inference (dropout, clone, contiguous ...) are removed.
`nodes.path` returns the submodule of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument

from autotune.core import CaptureError
from autotune.ir import DTYPES, ConstantExpr, ConstantSource
from fused_resnet.call import Leaf, Result, Signature
from fused_resnet.capture.export import check, export
from fused_resnet.capture.in_place import Program, ambiguous_views, without_changes
from fused_resnet.capture.module_trace import ControlFlowError
from fused_resnet.capture.nodes import CASTS, COPIES, arguments, name_of, path
from fused_resnet.inert_regions import inline_inert_regions

LARGEST_CONSTANT = 4096
"""Largest number of elements of a tensor that `forward` makes itself; a larger one must be a buffer."""

_DROPOUTS = {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"}
_OF_MEMORY = {"as_strided", "as_strided_copy", "as_strided_scatter"}
"""Operators that take elements by their places in memory."""
_OF_NEIGHBOURS = {"view_as_complex", "view_as_complex_copy", "view_dtype"}
"""Operators that join or split elements, which must be neighbours in memory."""


@dataclass(frozen=True)
class Traced:
    """A traced module.

    Attributes:
        graph: The graph of aten operators.
        inputs: The nodes of its inputs.
        results: The nodes of the tensors that it returns, each once. A placeholder stands for a copy of it.
        result: What it returns around these tensors.
        constants: The constant of each other placeholder.
    """

    graph: fx.Graph
    inputs: tuple[fx.Node, ...]
    results: tuple[fx.Node, ...]
    result: Result
    constants: Mapping[fx.Node, ConstantSource]


def trace(model: nn.Module, signature: Signature, dtype: str) -> Traced:
    """Trace a module in eval mode for one signature.

    Args:
        model: The module.
        signature: The arguments of the call.
        dtype: The project's name of the dtype of the module's tensors.

    Raises:
        CaptureError: The module cannot be traced; the message names the submodule.
    """
    device, found = check(model)
    if found and found != DTYPES[dtype]:
        raise CaptureError(f"the model is in {found} and the input in {DTYPES[dtype]}: convert one with .to()")
    program = _program(model, signature, device) or _program(model, signature, device, by_calling=False)
    assert program
    return _read(program)


def _program(
    model: nn.Module, signature: Signature, device: torch.device, *, by_calling: bool = True
) -> Program | None:
    """Return a program without changes in place; None if torch.export is needed for it, and `by_calling` is True."""
    exported = export(model, signature, device, by_calling=by_calling)
    inline_inert_regions(exported.graph_module, exported.graph)
    _refuse_layouts_of_inputs(model, signature, device, exported, by_calling=by_calling)
    _remove(exported.graph, _dropped_out)
    return without_changes(exported)


def _refuse_unknown_sizes(node: fx.Node) -> None:
    """Raise a CaptureError if the size of a node's result depends on values of tensors, as that of nonzero."""
    value = node.meta.get("val")
    tensors = [one for one in (value if isinstance(value, list | tuple) else [value]) if isinstance(one, torch.Tensor)]
    if any(isinstance(size, torch.SymInt) for tensor in tensors for size in tensor.shape):
        raise CaptureError(
            f"{path(node) or 'the model'} calls {node.target}: the size of its result depends on values of tensors, "
            "and a network has fixed sizes. torch.where(condition, x, y), for example, has a fixed size"
        )


def _read(exported: Program) -> Traced:
    signature, graph = exported.graph_signature, exported.graph
    keys = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    nodes = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    constants: dict[fx.Node, ConstantSource] = {nodes[name]: key for name, key in keys.items()}
    for name, key in signature.inputs_to_lifted_tensor_constants.items():
        constants[nodes[name]] = _number(nodes[name], exported.constants[key])
    returned = _returned(exported)
    orders = _memory_orders(graph)
    _remove(graph, _does_nothing)
    _restore(graph, orders)
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise CaptureError(f"{path(node) or 'the model'} {ControlFlowError(node.target.name())}")
        if node.op == "call_function":
            _refuse_unknown_sizes(node)
            _plain_norm(node)
            _first_result(node)
            _unexpanded(node)
            _gate(node)
    inputs = [
        nodes[one.arg.name]
        for one in signature.input_specs
        if one.kind is InputKind.USER_INPUT and isinstance(one.arg, TensorArgument)
    ]
    structure = exported.call_spec.out_spec
    assert structure is not None
    # What forward returns in two places is one result; a copy that it makes, such as y.clone(), is another one.
    # A network has at least one result: where forward returns inputs alone, they are copied.
    computes = any(isinstance(value, fx.Node) and value not in inputs for value in returned)
    computed: dict[fx.Node, fx.Node] = {}  # node that forward returns -> the node that it repeats, or itself
    leaves = []
    for value, source in zip(returned, _returned(exported), strict=True):
        if computes and value in inputs:
            leaves.append(Leaf("input", inputs.index(value)))
        elif isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor):
            computed.setdefault(value, source)
            leaves.append(Leaf("result", list(computed).index(value)))
        elif isinstance(value, fx.Node):
            raise CaptureError(
                f"the model returns a number that depends on values of tensors, by {name_of(value)}: return a tensor"
            )
        else:
            leaves.append(Leaf("constant", value))
    if not computed:
        raise CaptureError("the model returns no tensor")
    last = tuple(_is_channels_last(node.meta["val"]) for node in computed)
    result = Result(structure, tuple(leaves), last)
    return Traced(graph, tuple(inputs), tuple(computed.values()), result, constants)


def _returned(exported: Program) -> list[Any]:
    """Return what forward returns: nodes, and constants such as None."""
    values = next(node for node in exported.graph.nodes if node.op == "output").args[0]
    kinds = [one.kind for one in exported.graph_signature.output_specs]
    return [value for value, kind in zip(values, kinds, strict=True) if kind is OutputKind.USER_OUTPUT]


def _is_channels_last(value: torch.Tensor) -> bool:
    return value.dim() == 4 and not value.is_contiguous() and value.is_contiguous(memory_format=torch.channels_last)


def _refuse_layouts_of_inputs(
    model: nn.Module, signature: Signature, device: torch.device, exported: Program, *, by_calling: bool
) -> None:
    """Check that nothing depends on the order of elements in memory that follows from that of the input.

    The memory format of the input may be any. What depends on it are operators that read memory, and whether an
    operator returns a view or a copy of a tensor that is changed in place.
    """
    reads, views = _memory_reads(exported.graph), ambiguous_views(exported.graph)
    if not reads and not views:
        return
    try:
        graph = export(model, signature, device, torch.channels_last, by_calling=by_calling).graph
    except CaptureError:
        return  # forward itself takes contiguous inputs alone
    others = _memory_reads(graph)
    if reads != others:
        where, _ = next((one for one in reads if one not in others), reads[0])
        raise CaptureError(
            f"{where} reads a tensor whose order in memory depends on the memory format of the input: call "
            ".contiguous() on it first"
        )
    if views != ambiguous_views(graph):
        where, _ = views[0] if views else ambiguous_views(graph)[0]
        raise CaptureError(
            f"{where} returns a view or a copy, which depends on the memory format of the input, and one of the two "
            "tensors is changed in place before the other is read: call .clone() on the result"
        )


def _memory_reads(graph: fx.Graph) -> list[tuple[str, tuple[int, ...]]]:
    """Return the operators that take elements by their places in memory, with the strides of what they read."""
    return [
        (f"{path(node) or 'the model'}: {name_of(node)}", tuple(node.args[0].meta["val"].stride()))
        for node in graph.nodes
        if name_of(node).removesuffix("_") in _OF_MEMORY
    ]


def _memory_orders(graph: fx.Graph) -> dict[fx.Node, list[int]]:
    """Return for each node that depends on its argument's layout the argument's axes in their order in memory.

    Raises:
        CaptureError: A node takes elements from memory around its argument, which is a part of another tensor.
    """
    orders = {}
    for node in graph.nodes:
        if name_of(node) in _OF_NEIGHBOURS:
            orders[node] = list(range(node.args[0].meta["val"].dim()))
        elif name_of(node) in _OF_MEMORY:
            x = node.args[0].meta["val"]
            order = sorted(range(x.dim()), key=lambda axis: -x.stride(axis))
            if x.untyped_storage().nbytes() != x.numel() * x.element_size() or not x.permute(order).is_contiguous():
                raise CaptureError(
                    f"{path(node) or 'the model'}: {name_of(node)} reads a part of another tensor or an expanded one, "
                    "whose memory is not known: call .contiguous() on it first"
                )
            orders[node] = order
    return orders


def _restore(graph: fx.Graph, orders: Mapping[fx.Node, list[int]]) -> None:
    """Insert a copy of each node's argument whose axes lie in an order in memory.

    The layers of a network write other layouts than the module, and a removed copy may have had its own.
    """
    for node, order in orders.items():
        inverse = sorted(range(len(order)), key=lambda position: order[position])
        permuted = _inserted(node, torch.ops.aten.permute.default, node.args[0], order)
        copied = _inserted(node, torch.ops.aten.contiguous.default, permuted)
        made = _inserted(node, torch.ops.aten.permute.default, copied, inverse)
        node.args = (made, *node.args[1:])


def _inserted(node: fx.Node, target: torch._ops.OpOverload, source: Any, *rest: Any) -> fx.Node:
    """Return a new node in front of another one, a part of the same submodule."""
    with node.graph.inserting_before(node):
        made = node.graph.call_function(target, (source, *rest))
    made.meta = {**node.meta, "val": target(source.meta["val"], *rest)}
    return made


def _plain_norm(node: fx.Node) -> None:
    """Rewrite the batch norm that also returns statistics, which no node reads, as the one that does not."""
    if name_of(node) == "_native_batch_norm_legit_no_training":
        x, weight, bias, mean, variance, momentum, epsilon = node.args
        node.target = torch.ops.aten.batch_norm.default
        node.args = (x, weight, bias, mean, variance, False, momentum, epsilon, True)
        node.meta["val"] = node.meta["val"][0]
        for user in list(node.users):
            user.replace_all_uses_with(node)


def _first_result(node: fx.Node) -> None:
    """Rewrite a layer or group norm that also returns statistics, which no node reads, as the one that does not."""
    if name_of(node) not in ("native_layer_norm", "native_group_norm"):
        return
    if any(name_of(user) != "getitem" or (user.args[1] != 0 and user.users) for user in node.users):
        return
    given = arguments(node)
    x, weight, bias, eps = (given[name] for name in ("input", "weight", "bias", "eps"))
    if name_of(node) == "native_layer_norm":
        node.target = torch.ops.aten.layer_norm.default
        node.args = (x, given["normalized_shape"], weight, bias, eps)
    else:
        node.target = torch.ops.aten.group_norm.default
        node.args = (x, given["group"], weight, bias, eps)
    node.kwargs, node.meta["val"] = {}, node.meta["val"][0]
    for user in list(node.users):
        user.replace_all_uses_with(node)


def _unexpanded(node: fx.Node) -> None:
    """Rewrite a sum, difference or product with expand(x) as one with x, which these operators broadcast."""
    if name_of(node) in ("add", "sub", "mul"):
        for operand in node.all_input_nodes:
            if name_of(operand) in ("expand", "expand_as"):
                others = [other.meta["val"].shape for other in node.all_input_nodes if other is not operand]
                source = operand.args[0]
                if others == [node.meta["val"].shape] and isinstance(source, fx.Node):
                    node.replace_input_with(operand, source)


def _gate(node: fx.Node) -> None:
    """Rewrite x * sigmoid(x) as silu(x), and x * hardsigmoid(x) as hardswish(x)."""
    gates = {"sigmoid": torch.ops.aten.silu.default, "hardsigmoid": torch.ops.aten.hardswish.default}
    if node.target is torch.ops.aten.mul.Tensor:
        for x, gate in (node.args, node.args[::-1]):
            if isinstance(gate, fx.Node) and name_of(gate) in gates and gate.args[0] is x:
                node.target, node.args = gates[name_of(gate)], (x,)
                return


def _number(node: fx.Node, value: torch.Tensor) -> ConstantSource:
    """Return the constant of a tensor that `forward` makes from numbers."""
    if value.numel() > LARGEST_CONSTANT:
        shape = tuple(value.shape)
        where = path(node) or "the model"
        raise CaptureError(
            f"{where}: forward makes a constant tensor of {shape}; at most {LARGEST_CONSTANT} elements are supported: "
            "register it as a buffer"
        )
    numbers = ConstantExpr("numbers" if value.is_floating_point() else "integers", (), tuple(value.flatten().tolist()))
    return numbers if value.dim() == 1 else ConstantExpr("reshape", (numbers,), tuple(value.shape))


def _remove(graph: fx.Graph, repeated: Callable[[fx.Node], fx.Node | None]) -> None:
    """Remove the nodes that only repeat another one."""
    for node in list(graph.nodes):
        if node.op == "call_function" and (source := repeated(node)):
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _dropped_out(node: fx.Node) -> fx.Node | None:
    """Return the input of a dropout that does nothing in inference; None for other nodes."""
    if name_of(node).removesuffix("_") not in _DROPOUTS:
        return None
    given = arguments(node)
    return given["input" if "input" in given else "self"] if not given["train"] else None


def _does_nothing(node: fx.Node) -> fx.Node | None:
    """Return the node that this one repeats, if it does nothing else; None otherwise."""
    name = name_of(node)
    if name in COPIES:
        return node.args[0]  # type: ignore[return-value]
    source = node.args[0] if node.args else None
    if name == "adaptive_avg_pool2d" and isinstance(source, fx.Node):
        return source if source.meta["val"].shape == node.meta["val"].shape else None
    if name in CASTS and isinstance(source, fx.Node):
        before, after = source.meta["val"], node.meta["val"]
        return source if (before.dtype, before.device) == (after.dtype, after.device) else None
    if name == "slice" and isinstance(source, fx.Node) and source.meta["val"].shape == node.meta["val"].shape:
        return source
    if name == "cat" and isinstance(source, list | tuple) and len(source) == 1:
        return source[0]  # type: ignore[return-value]
    return None
