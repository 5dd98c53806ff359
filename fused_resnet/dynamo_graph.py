"""A graph of torch.compile as a module: its parameters and buffers have the names that they have in the user's model.

Dynamo hands a backend a graph whose placeholders are the model's parameters and buffers, the caller's tensors, and the
sizes that it treats as dynamic. `unlift` makes a module of it that holds the parameters and takes the caller's tensors
alone. Layers get the names that a capture of the model itself gives them, so a database serves both.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import FrameType
from typing import Any

import torch
from torch import fx, nn

from autotune.core import CaptureError
from fused_resnet.inert_regions import inline_inert_regions

UNNAMED = "GraphModule"
"""Name of the network where Dynamo does not tell the class of the user's model."""

_FRAMES = 8
"""Most frames between a call of a graph and the function that Dynamo compiled; torch 2.6 to 2.13 has one."""

_STATE = re.compile(r"\.(_modules|_parameters|_buffers)\[")
"""Where the path inside a module begins in the source of a parameter or buffer."""
_SIZE = re.compile(r"(.*)\.size\(\)\[(\d+)\]")
_TOKEN = re.compile(r"\['([^']*)'\]|\[(\d+)\]|([^.\[\]]+)")


class DynamoGraph(fx.GraphModule):
    """A graph of torch-level operators with its own parameters, whose nodes name the submodules they come from."""


@dataclass(frozen=True)
class Unlifted:
    """A graph of Dynamo as a module.

    Attributes:
        module: The module; it returns a tensor if the graph has one result, otherwise a tuple.
        states: Name of each parameter and buffer -> its position among the arguments of the graph.
        inputs: Positions of the caller's tensors.
        is_tuple: Whether the module returns a tuple.
        roots: Dynamo's expressions for the modules that hold the parameters and buffers, such as "L['self']".
    """

    module: DynamoGraph
    states: Mapping[str, int]
    inputs: tuple[int, ...]
    is_tuple: bool
    roots: frozenset[str] = frozenset()

    def forget_states(self) -> None:
        """Replace the parameters and buffers of the module, which are Dynamo's examples, by tensors without memory."""
        for name in self.states:
            path, _, key = name.rpartition(".")
            owner = self.module.get_submodule(path)
            kind: dict[str, Any] = owner._parameters if key in owner._parameters else owner._buffers
            kind[key] = torch.empty_like(kind[key], device="meta")

    def with_states(self, tensors: Sequence[torch.Tensor]) -> DynamoGraph:
        """Return a module with the same graph and other parameters and buffers, in the order of `states`."""
        attributes = _attributes(self.module, self.module.graph)
        attributes |= dict(zip(self.states, tensors, strict=True))
        made = _module(attributes, self.module.graph, type(self.module).__name__)
        self.module.graph.owning_module = self.module  # else the graph keeps the last module
        return made

    def owners(self, tensors: Sequence[torch.Tensor], frame: FrameType | None) -> list[nn.Module]:
        """Return the user's modules that hold the parameters and buffers of a call; none where they are not found.

        Args:
            tensors: The parameters and buffers.
            frame: The innermost frame of the call. The compiled function is near it, and its variables are in `roots`.
        """
        for _ in range(_FRAMES):
            if frame is None:
                break
            found = [_evaluated(root, frame.f_locals, frame.f_globals) for root in self.roots]
            modules = [one for one in found if one is not None]
            if len(modules) == len(found) and holds(modules, tensors):
                return modules
            frame = frame.f_back
        return []


def holds(modules: Iterable[nn.Module], tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether each tensor is a parameter or buffer of one of the modules."""
    held = {id(tensor) for module in modules for tensor in (*module.parameters(), *module.buffers())}
    return held.issuperset(map(id, tensors))


def unlift(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Unlifted:
    """Return the module of a graph that Dynamo gave to a backend; the graph itself stays as it is.

    Args:
        graph_module: The graph.
        example_inputs: Dynamo's example of each argument.

    Raises:
        CaptureError: An argument is neither a tensor nor a size of one, or part of the graph cannot be captured.
    """
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(graph_module.graph, copied)
    results = tuple(result) if isinstance(result, tuple | list) else (result,)
    is_tuple = len(results) != 1
    graph.output(results if is_tuple else results[0])
    inline_inert_regions(graph_module, graph)
    placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    sources = {node: _source(node) for node in placeholders}
    roots = {source[: found.start()] for source in sources.values() if (found := _STATE.search(source))}
    root = next(iter(roots)) if len(roots) == 1 else ""
    user = _module_at(root)
    for node in graph.nodes:  # the rest of what Dynamo notes would keep its fake tensors, and references to arguments
        stack = node.meta.get("nn_module_stack")
        node.meta = {"nn_module_stack": _paths(stack, _tokens(root))} if stack else {}
    states, inputs, tensors = dict[str, int](), dict[str, int](), dict[str, Any]()
    for position, (node, example) in enumerate(zip(placeholders, example_inputs, strict=True)):
        source, place = sources[node], copied[node]
        if not isinstance(example, torch.Tensor) or _replace_float(graph, node, example, copied):
            continue
        if _STATE.search(source):
            name = ".".join(map(_attribute, _tokens(source)[len(_tokens(root)) :]))
            states[name], tensors[name] = position, example
            with graph.inserting_before(place):
                place.replace_all_uses_with(graph.get_attr(name))
            graph.erase_node(place)
        else:
            inputs[source or node.name] = position
            place.target = place.name = _name(source, node, user)
    given = {source: copied[placeholders[position]] for source, position in inputs.items()}
    for node, example in zip(placeholders, example_inputs, strict=True):
        if not isinstance(example, torch.Tensor):
            _replace_number(graph, copied[node], sources[node], given)
    model = _module(_attributes(graph_module, graph) | tensors, graph, type(user).__name__ if user else UNNAMED)
    return Unlifted(model, states, tuple(inputs.values()), is_tuple, frozenset(roots))


def _replace_float(graph: fx.Graph, node: fx.Node, example: torch.Tensor, copied: Mapping[fx.Node, fx.Node]) -> bool:
    """Replace a placeholder by the number that it is; return whether it is one.

    With dynamic=True Dynamo passes the numbers among a module's attributes as tensors, of which the graph takes the
    items. Reading the value lets Dynamo compile anew when it changes.

    Args:
        graph: The graph.
        node: The placeholder in Dynamo's graph.
        example: Dynamo's example of it.
        copied: The nodes of `graph` by those of Dynamo's graph.
    """
    items = list(node.users)
    if example.dtype is not torch.float64 or example.dim() or not all(item.target == "item" for item in items):
        return False
    try:
        values = {copied[item]: float(item.meta["example_value"]) for item in items}
    except Exception:  # the item of a tensor of the user's, whose value is not known
        return False
    for item in values:
        for reader in list(item.users):
            reader.args = fx.map_arg(reader.args, lambda one: values.get(one, one))
            reader.kwargs = fx.map_arg(reader.kwargs, lambda one: values.get(one, one))
        graph.erase_node(item)
    graph.erase_node(copied[node])
    return True


def _replace_number(graph: fx.Graph, place: fx.Node, source: str, tensors: Mapping[str, fx.Node]) -> None:
    """Replace a placeholder that is no tensor by the size that it is, unless nothing reads it.

    Args:
        graph: The graph.
        place: The placeholder.
        source: Dynamo's expression for it, such as "L['x'].size()[0]".
        tensors: The placeholders of the caller's tensors by their sources.
    """
    if place.users:
        found = _SIZE.fullmatch(source)
        if found is None or found[1] not in tensors:
            raise CaptureError(
                f"the graph takes a number, '{source or place.name}', that is no size of an input tensor"
            )
        with graph.inserting_after([node for node in graph.nodes if node.op == "placeholder"][-1]):
            place.replace_all_uses_with(graph.call_method("size", (tensors[found[1]], int(found[2]))))
    graph.erase_node(place)


def _attributes(root: nn.Module, graph: fx.Graph) -> dict[str, Any]:
    """Return the submodules and tensors of a module that a graph uses, by name."""
    found = {}
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module"):
            try:
                found[node.target] = reduce(getattr, node.target.split("."), root)
            except AttributeError:
                continue  # a parameter that is added now
    return found


def _module(attributes: Mapping[str, Any], graph: fx.Graph, name: str) -> DynamoGraph:
    """Return a module of a graph with these submodules and tensors, in eval mode.

    Raises:
        CaptureError: A submodule, which is the user's own, is in training mode.
    """
    for path, value in attributes.items():
        if isinstance(value, nn.Module) and any(part.training for part in value.modules()):
            raise CaptureError(f"'{path}' is in training mode: call .eval() on the model first")
    module = DynamoGraph(dict(attributes), graph, name)
    module.eval()
    return module


def _source(node: fx.Node) -> str:
    """Return Dynamo's expression for an argument, such as "L['self']._modules['conv']._parameters['weight']"."""
    source = getattr(node, "_dynamo_source", None)
    name = getattr(source, "name", "")  # a method in older versions of torch
    return str(name() if callable(name) else name)


def _tokens(source: str) -> list[str]:
    """Return the names in an expression without those of nn.Module's dictionaries."""
    names = ["".join(found) for found in _TOKEN.findall(source)]
    return [name for name in names if name not in ("_modules", "_parameters", "_buffers")]


def _attribute(name: str) -> str:
    """Return a name that a module can have for a part or tensor: a key such as "cpu" is that of a method."""
    return f"{name}_" if hasattr(nn.Module, name) else name


def _name(source: str, node: fx.Node, user: nn.Module | None) -> str:
    """Return the name of an input: that of the parameter of the user's forward, where Dynamo tells it.

    Dynamo wraps modules of torch's own classes in a function of `*args` and `**kwargs`.
    """
    scope, *names = _tokens(source) or [""]
    if user and len(names) == 2 and names[0] == "args" and names[1].isdecimal():
        parameters = list(inspect.signature(user.forward).parameters)
        return parameters[int(names[1])] if int(names[1]) < len(parameters) else node.name
    if len(names) == 2 and names[0] == "kwargs":
        names = names[1:]
    return names[0] if scope and len(names) == 1 and names[0].isidentifier() else node.name


def _paths(stack: Mapping[str, tuple[Any, Any]], root: Sequence[str]) -> dict[str, tuple[str, Any]]:
    """Return the stack of a node's submodules with paths from the root, as torch.export writes them."""
    found = {}
    for key, (source, kind) in stack.items():
        tokens = _tokens(str(source))
        inner = tokens[len(root) :] if tokens[: len(root)] == list(root) else tokens
        found[key] = (".".join(inner), kind)
    return found


def _module_at(root: str) -> nn.Module | None:
    """Return the module that an expression of Dynamo names; None if it cannot be told."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        output = InstructionTranslator.current_tx().output
        return _evaluated(root, output.local_scope, output.global_scope)
    except AttributeError:  # Dynamo's internals, which other versions may name otherwise
        return None


def _evaluated(root: str, local_scope: Mapping[str, Any], global_scope: Mapping[str, Any]) -> nn.Module | None:
    """Return the module that an expression of Dynamo names among variables; None if there is none."""
    try:
        value = eval(root, {"L": local_scope, "G": global_scope})
    except Exception:  # an expression of any kind
        return None
    return value if isinstance(value, nn.Module) else None
