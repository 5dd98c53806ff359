"""A profile as a tree: modules by path, their operators, and the kernels of these; a node has the sums of its parts."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.core import UnknownNameError
from autotune.profiling.attribution import KernelProfile, ModuleProfile, OperatorProfile, Profile
from autotune.profiling.libraries import short_name

_LISTED = 8
"""Most names in a message."""


@dataclass
class Node:
    """A module, an operator or a kernel; all values are per call of the network.

    kind: "module", "operator" or "kernel".
    path: Path of the module in the network.
    text: Class of a module, shapes of an operator, or full name of a kernel.
    us, wait_us: Device time, and the device's waits before the kernels.
    host_us: Host time, including the profiler's own work.
    flops, bytes: The least work that the problem takes.
    limit_us: Time that the device takes at least for this work.
    """

    kind: str
    name: str
    path: str
    text: str = ""
    us: float = 0.0
    wait_us: float = 0.0
    host_us: float = 0.0
    calls: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    limit_us: float = 0.0
    library: str = ""
    open: bool | None = None
    source: str = ""
    chain: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)

    @property
    def limit(self) -> float | None:
        """Share of the device's limit that is reached: limit_us / us. None if the work is not known."""
        return self.limit_us / self.us if self.us and self.limit_us else None

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Node]]:
        """Yield this node and all nodes below it, each with its depth."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)

    def modules(self) -> dict[str, Node]:
        """Return this node and all nodes below it that are modules, by path."""
        return {node.path: node for _, node in self.walk() if node.kind == "module"}

    def as_dict(self) -> dict[str, Any]:
        """Return the node as JSON has it."""
        values = {key: value for key, value in vars(self).items() if value not in ("", (), None) and key != "children"}
        return values | {"limit": self.limit, "children": [child.as_dict() for child in self.children]}


def tree(profile: Profile) -> Node:
    """Return the root of a profile's tree. Its last child holds the kernels that no module launched."""
    root = Node("module", "network", "", profile.about["modules"].get("", ""))
    nodes = {"": root}
    for module in profile.modules.values():
        node = _at(nodes, module.path)
        node.text, node.calls, node.host_us, node.wait_us = module.kind, module.calls, module.host_us, module.wait_us
        node.children[:0] = [_operator(profile, module, operator) for operator in module.operators.values()]
    if profile.unattributed:
        lost = Node("operator", "unattributed", "")
        lost.children = [_kernel(lost, kernel) for kernel in profile.unattributed.values()]
        root.children.append(lost)
    _add_up(root)
    return root


def match_modules(root: Node, pattern: str) -> list[Node]:
    """Return the modules whose paths match a shell pattern, without modules below another one that matches.

    Raises:
        UnknownNameError: If no path matches.
    """
    modules = root.modules()
    found = match_paths(list(modules), pattern)
    return [modules[path] for path in found if not any(path.startswith(f"{other}.") for other in found)]


def match_paths(paths: Sequence[str], pattern: str) -> list[str]:
    """Return the paths that match a shell pattern; raises UnknownNameError if none does."""
    if found := [path for path in paths if fnmatch.fnmatchcase(path, pattern)]:
        return found
    named = [path for path in paths if path]
    listed = difflib.get_close_matches(pattern, named, _LISTED) or named[:_LISTED]
    more = f" and {len(named) - len(listed)} more" if len(named) > len(listed) else ""
    raise UnknownNameError(
        f"no layer matches '{pattern}' ('*' stands for any text): there are {', '.join(listed) or 'none'}{more}"
    )


def _at(nodes: dict[str, Node], path: str) -> Node:
    """Return the node of a module; make it, and those of the containers above it, if needed."""
    if path not in nodes:
        above, _, name = path.rpartition(".")
        nodes[path] = Node("module", name, path)
        _at(nodes, above).children.append(nodes[path])
    return nodes[path]


def _operator(profile: Profile, module: ModuleProfile, operator: OperatorProfile) -> Node:
    node = Node("operator", operator.name.removeprefix("aten::"), module.path, operator.shapes)
    node.calls, node.host_us, node.flops, node.bytes = operator.calls, operator.host_us, operator.flops, operator.bytes
    if operator.kernels:  # an operator without kernels takes no device time
        node.limit_us = profile.limit_us(operator.flops, operator.bytes)
    node.children = [_kernel(node, kernel) for kernel in operator.kernels.values()]
    return node


def _kernel(operator: Node, kernel: KernelProfile) -> Node:
    origin = kernel.origin
    return Node(
        "kernel", short_name(kernel.name), operator.path, kernel.name, kernel.us, kernel.wait_us, calls=kernel.launches,
        library=origin.library, open=origin.open, source=origin.where, chain=kernel.chain, details=kernel.details,
    )  # fmt: skip


def _add_up(node: Node) -> None:
    for child in node.children:
        _add_up(child)
    for name in ("us", "wait_us", "flops", "bytes", "limit_us"):
        if node.kind != "kernel":
            setattr(node, name, getattr(node, name) + sum(getattr(child, name) for child in node.children))
    if node.kind == "module" and not node.calls:
        node.host_us = sum(child.host_us for child in node.children)
