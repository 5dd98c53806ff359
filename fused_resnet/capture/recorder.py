"""Recording of the operators that run in one thread as a graph.

torch's own tracers, such as make_fx, mark the whole process as being traced and patch nn.Module meanwhile: calls of
compiled functions in other threads fail, and two tracers at the same time disturb each other. A capture at the call of
a network is no such tracer.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from autotune.core import CaptureError


class Recorder(TorchDispatchMode):
    """Records the operators that run on fake tensors while the mode is active.

    In inference mode composite operators, such as conv2d, are recorded whole, otherwise by their parts. Nodes have the
    names that make_fx gives them.

    Attributes:
        graph: The graph so far. `meta["val"]` of a node is its value as it was behind the operator.
        constants: The tensors that have values, by the names of their placeholders.
        stack: The stack of submodules that nodes get as `meta["nn_module_stack"]`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self.stack: Mapping[str, Any] | None = None
        self._nodes: dict[int, fx.Node] = {}
        self._kept: list[torch.Tensor] = []  # no other tensor may get the id of one in `_nodes`

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: otherwise newer torch imports Dynamo, which takes seconds, to keep it from compiling a mode."""
        return False

    def placeholder(self, name: str, value: torch.Tensor) -> fx.Node:
        """Return a new placeholder behind the others, which stands for a tensor."""
        node = self.graph.placeholder(name)
        node.name = name  # torch.fx gives another one instead of a name of Python, such as input
        self._keep(node, value)
        return node

    def node(self, value: Any) -> Any:
        """Return the node of a tensor; any other value as it is.

        Raises:
            CaptureError: No operator returned the tensor.
        """
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self._nodes:
            raise CaptureError("the graph makes a tensor without an operator, so that its values are not known")
        return self._nodes[id(value)]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.prim.device.default:
            return func(*args)  # a question about a tensor
        if func is torch.ops.aten.lift_fresh.default:
            self._constant(args[0])
            func = torch.ops.aten.lift_fresh_copy.default  # a change in place must not reach the constant
        kwargs = kwargs or {}
        positional, named = tree_map(self.node, (args, kwargs))
        name = self.graph._target_to_str(func.overloadpacket.__name__)
        node = self.graph.create_node("call_function", func, positional, named, name)
        # By their parts: the result of a composite operator as a whole may be a view that fake tensors do not know.
        with torch.inference_mode(False), torch.no_grad():
            value = self.compute(func, args, kwargs)
            self._keep(node, value)
        return value

    def compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of an operator, which needs no values."""
        return func(*args, **kwargs)

    def submodules(self) -> Mapping[str, Any] | None:
        """Return the stack of submodules that the operator which runs now belongs to."""
        return self.stack

    def _constant(self, value: torch.Tensor) -> None:
        """Make a placeholder of a tensor that forward makes from numbers, in front of those for other tensors."""
        first = next(node for node in self.graph.nodes if node.name not in self.constants)
        with self.graph.inserting_before(first):
            node = self.graph.placeholder(f"_tensor_constant{len(self.constants)}")
        node.meta = {"val": value}
        self.constants[node.name] = value
        self._nodes[id(value)] = node

    def _keep(self, node: fx.Node, value: Any) -> None:
        """Make a node, and one for each item of a list, that of the value."""
        stack = self.submodules()
        node.meta = {"val": tree_map(_snapshot, value)} | ({"nn_module_stack": stack} if stack else {})
        if isinstance(value, torch.Tensor):
            self._nodes[id(value)] = node
            self._kept.append(value)
        elif isinstance(value, list | tuple):
            for i, item in enumerate(value):
                self._keep(self.graph.call_function(operator.getitem, (node, i)), item)


def _snapshot(value: Any) -> Any:
    """Return a view of a tensor, because an operator may change its shape in place; any other value as it is."""
    return value.detach() if isinstance(value, torch.Tensor) else value
