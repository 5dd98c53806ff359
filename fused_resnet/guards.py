"""Guards: the Python values that a module's forward reads, so that a change of one of them is noticed.

A captured network is right as long as these values are what they were. They are found in the code of `forward` and of
the functions that it reaches: attributes of modules and of objects in these attributes, class attributes, globals,
closures, forward hooks, and the items of lists and dictionaries among them. Functions are searched if they belong to a
package that defines one of the modules. Values whose name is computed (`getattr(self, name)`), defaults of arguments,
environment variables, files, and the globals of other packages are not found.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from autotune.runtime.engine import StateWatch

LARGEST_CONTAINER = 256
"""Largest number of items of a list or dictionary that are watched."""

ABSENT = object()
"""The value of a key that does not exist."""

_CODE = (type, FunctionType, MethodType, BuiltinFunctionType)


@dataclass(frozen=True)
class Read:
    """A value that forward reads.

    Attributes:
        name: For messages.
        owner: The dictionary, class, cell or list that holds the value.
        key: Its key in a dictionary or class; None for a cell or list.
        value: The value; ABSENT if there is none, the tuple of its items for a list.
        of_module: Whether the owner is the dictionary of a module's attributes, which seldom changes.
    """

    name: str
    owner: Any
    key: Any
    value: Any
    of_module: bool = False

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The read as StateWatch takes it."""
        return (self.owner, self.key) if self.value is ABSENT else (self.owner, self.key, self.value)

    def holds(self) -> bool:
        """Return whether the value is what it was."""
        watch = StateWatch([])
        watch.add([], [], [self.arguments])
        return watch.unchanged()


@dataclass(frozen=True)
class Guards:
    """The values that a module reads.

    Attributes:
        reads: Values of one name each.
        dictionaries: Dictionaries whose every item matters, with a name for messages.
        contents: What each dictionary held.
    """

    reads: list[Read] = field(default_factory=list)
    dictionaries: list[tuple[str, dict[Any, Any]]] = field(default_factory=list)
    contents: list[dict[Any, Any]] = field(default_factory=list)

    def add_to(self, watch: StateWatch) -> None:
        """Let a watch check these values, too."""
        attributes = [read.arguments for read in self.reads if read.of_module]
        variables = [read.arguments for read in self.reads if not read.of_module]
        watch.add([dictionary for _, dictionary in self.dictionaries], attributes, variables)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the values, which are neither parameters nor buffers."""
        values = [read.value for read in self.reads] + [value for each in self.contents for value in each.values()]
        return [value for value in values if isinstance(value, torch.Tensor)]

    def changed(self) -> list[Read]:
        """Return the values that have changed since the search."""
        reads = list(self.reads)
        for (name, now), before in zip(self.dictionaries, self.contents, strict=True):
            reads += [
                Read(f"{key!r} of {name}", now, key, before.get(key, ABSENT)) for key in now.keys() | before.keys()
            ]
        return [read for read in reads if not read.holds()]

    def changed_data(self) -> list[Read]:
        """Return the changed values but functions and classes: tracers replace functions while they trace."""
        return [read for read in self.changed() if not isinstance(read.value, _CODE)]


def guards(model: nn.Module) -> Guards:
    """Return the values that the forward of a module, with all its submodules, reads now."""
    return _Search(model).found


class _Search:
    """Collects the reads of one module.

    Args:
        model: The module.

    Attributes:
        found: The reads.
    """

    def __init__(self, model: nn.Module) -> None:
        self.found = Guards()
        self._seen: set[tuple[int, Any]] = set()
        self._names: dict[type, frozenset[str]] = {}
        self._packages = {_package(type(module).__module__) for module in model.modules()} - _NOT_SEARCHED
        for path, module in model.named_modules():
            self._module(_called(path, module), module)

    def _module(self, called: str, module: nn.Module) -> None:
        own = vars(module)
        for name in sorted(self._names_of(type(module), module)):
            if name in own:
                self._attribute(f"'{name}' of {called}", module, name)
            elif _class_attribute(type(module), name) is not ABSENT:
                self._add(f"'{name}' of {called}", own, name, ABSENT, of_module=True)
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            self._dictionary(f"the forward hooks of {called}", hooks)

    def _attribute(self, called: str, module: nn.Module, name: str) -> None:
        value = vars(module)[name]
        if name in _OF_MODULES or isinstance(value, nn.Module) or name in _recomputed(module):
            return
        if name.startswith("_") and _package(type(module).__module__) == "torch":
            return  # torch's modules compute such attributes from their others, as an LSTM its list of weights
        self._add(called, vars(module), name, value, of_module=True)
        if self._is_searched(type(module).__module__):
            self._inside(called, value, 2)
            self._names_used(value, type(module))  # if it is a function, it is called

    def _names_of(self, kind: type, module: nn.Module) -> frozenset[str]:
        """Return the names of the attributes that `forward` of a module loads, and the methods that it reaches."""
        override = vars(module).get("forward")
        if override is not None:
            return self._names_used(override, kind) | {"forward"}
        if kind not in self._names:
            self._names[kind] = self._names_used(getattr(kind, "forward", None), kind) | {"forward"}
        return self._names[kind]

    def _names_used(self, function: Any, kind: type) -> frozenset[str]:
        """Return the names of the attributes that a method of a class loads, and the functions that it reaches.

        Watches the class attributes, globals and closures among them.
        """
        names: set[str] = set()
        waiting, visited = [function], set[int]()
        while waiting:
            function = _function(waiting.pop())
            if function is None or id(function) in visited:
                continue
            visited.add(id(function))
            attributes = _loads(function.__code__, "ATTR")
            names |= attributes
            waiting += self._methods(attributes, kind)
            if self._is_searched(function.__module__):
                waiting += self._globals(function, attributes)
        return frozenset(names)

    def _methods(self, names: set[str], kind: type) -> Iterator[Any]:
        """Yield the methods and properties with these names; watches the class attributes of searched packages."""
        for name in names:
            owner = _class_attribute(kind, name)
            if owner is ABSENT:
                continue
            value = vars(owner)[name]
            if self._is_searched(owner.__module__):
                self._add(f"'{name}' of class {owner.__name__}", owner, name, value)
                self._inside(f"'{name}' of class {owner.__name__}", value, 1)
            yield value.fget if isinstance(value, property) else value

    def _globals(self, function: FunctionType, attributes: set[str]) -> Iterator[Any]:
        """Yield the functions that a function finds in globals and closures; watches all values that it finds there.

        Args:
            function: The function.
            attributes: The names of attributes that its code loads.
        """
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            value = _content(cell)
            if value is not ABSENT and name != "__class__":
                self._add(f"'{name}' in {function.__qualname__}", cell, None, value)
                self._inside(f"'{name}' in {function.__qualname__}", value, 2)
                yield value
        scope = function.__globals__
        for name in sorted(_loads(function.__code__, "GLOBAL") & scope.keys()):
            value = scope[name]
            if isinstance(value, ModuleType):
                if self._is_searched(value.__name__):
                    yield from self._attributes_of(f"module {value.__name__}", vars(value), vars(value), attributes)
                continue
            called = f"the global '{name}' of {function.__module__}"
            self._add(called, scope, name, value)
            if isinstance(value, type):
                if self._is_searched(value.__module__):
                    yield from self._attributes_of(f"class {value.__name__}", value, vars(value), attributes)
                continue
            self._inside(called, value, 2)
            yield value

    def _attributes_of(
        self, called: str, owner: Any, own: Mapping[str, Any], attributes: set[str], depth: int = 3
    ) -> Iterator[Any]:
        """Yield the attributes of a Python module or class that code loads; watches all that are no Python modules.

        Modules within a module, such as `package.config`, are searched to a depth, because they may lead back.
        """
        for name in sorted(attributes & own.keys()):
            value = own[name]
            if isinstance(value, ModuleType):
                if depth and self._is_searched(value.__name__):
                    inner = vars(value)
                    yield from self._attributes_of(f"module {value.__name__}", inner, inner, attributes, depth - 1)
            else:
                self._add(f"'{name}' of {called}", owner, name, value)
                self._inside(f"'{name}' of {called}", value, 1)
                yield value

    def _inside(self, called: str, value: Any, depth: int) -> None:
        """Watch the items of a list or dictionary, and the attributes of an object of a user's class."""
        if depth == 0 or isinstance(value, (*_CODE, ModuleType, nn.Module)):
            return
        if isinstance(value, list) and len(value) <= LARGEST_CONTAINER:
            self._add(called, value, None, tuple(value))
            inner: list[Any] = value
        elif isinstance(value, dict) and len(value) <= LARGEST_CONTAINER:
            self._dictionary(called, value)
            inner = list(value.values())
        elif isinstance(own := getattr(value, "__dict__", None), dict) and self._is_searched(type(value).__module__):
            self._dictionary(called, own)
            inner = list(own.values())
        else:
            return
        for item in inner:
            self._inside(called, item, depth - 1)

    def _dictionary(self, name: str, value: dict[Any, Any]) -> None:
        if (id(value), None) not in self._seen:
            self._seen.add((id(value), None))
            self.found.dictionaries.append((name, value))
            self.found.contents.append(dict(value))

    def _is_searched(self, module: str | None) -> bool:
        return module is not None and _package(module) in self._packages

    def _add(self, name: str, owner: Any, key: Any, value: Any, of_module: bool = False) -> None:
        if (id(owner), key) not in self._seen:
            self._seen.add((id(owner), key))
            self.found.reads.append(Read(name, owner, key, value, of_module))


_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}
"""Attributes of every module: they hold its parts, which are watched as such, and its hooks."""


_NOT_SEARCHED = sys.stdlib_module_names | {"torch", "numpy"}
"""Packages whose functions are not searched: their globals do not depend on the model."""


def _loads(code: CodeType, instruction: str) -> set[str]:
    """Return the names that code loads, with the functions that it defines. instruction: "GLOBAL" or "ATTR"."""
    opcodes = (
        {"LOAD_GLOBAL", "LOAD_NAME"} if instruction == "GLOBAL" else {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"}
    )
    names = {str(one.argval) for one in dis.get_instructions(code) if one.opname in opcodes}
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return names.union(*(_loads(constant, instruction) for constant in inner))


def _function(value: Any) -> FunctionType | None:
    """Return the Python function behind a function, method or decorated function; None for anything else."""
    value = getattr(value, "__func__", value)
    return value if isinstance(value, FunctionType) else None


def _class_attribute(kind: type, name: str) -> Any:
    """Return the class among the bases of a module's class that defines an attribute; ABSENT if none does."""
    bases = kind.__mro__[: kind.__mro__.index(nn.Module)] if issubclass(kind, nn.Module) else kind.__mro__[:-1]
    return next((base for base in bases if name in vars(base)), ABSENT)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return ABSENT


def _recomputed(module: nn.Module) -> set[str]:
    """Return the names of the tensors that hooks of torch.nn.utils compute before each forward, as weight_norm does."""
    hooks = [hook for hook in module._forward_pre_hooks.values() if type(hook).__module__.startswith("torch.nn.utils")]
    return {str(getattr(hook, "name", getattr(hook, "_tensor_name", ""))) for hook in hooks}


def _called(path: str, module: nn.Module) -> str:
    return f"{path} ({type(module).__name__})" if path else f"the model ({type(module).__name__})"


def _package(module: str) -> str:
    return module.partition(".")[0]
