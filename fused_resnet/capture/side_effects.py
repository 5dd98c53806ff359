"""Side effects of a trace: Python containers that hold its tensors afterwards get back what they held before.

A forward hook that keeps a feature in the user's dictionary runs at the trace, and the tensors of a trace have no
values. The containers are found from the attributes of the modules, and from the closures, arguments and globals of
their hooks and methods.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import is_fake

MOST_OBJECTS = 100_000
"""Largest number of objects that are searched: a function may reach the data of a whole program."""

_LARGEST = 256
"""Largest number of items of a container whose items are searched; the container itself is restored."""

_DEPTH = 4
"""Number of levels of containers in which a tensor of the trace is found."""

_ABSENT = object()
_OTHERS = (sys.stdlib_module_names | {"torch", "numpy"}) - {"types"}
"""Packages whose classes and modules keep no tensors for the user; types has SimpleNamespace, which does."""


@contextmanager
def undone(model: nn.Module) -> Iterator[None]:
    """Restore, at the end, the containers that forward and the hooks of a module filled with tensors of a trace."""
    restores = list(_restores(model))
    try:
        yield
    finally:
        for restore in restores:
            restore()


def _restores(model: nn.Module) -> Iterator[Callable[[], None]]:
    """Yield for each container that a module reaches a function that restores it."""
    waiting: list[Any] = [model]
    seen: set[int] = set()
    kept = []  # no other object may get the id of one in `seen`
    while waiting and len(seen) < MOST_OBJECTS:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, torch.Tensor | str | int | float | type | None):
            continue
        seen.add(id(value))
        kept.append(value)
        if isinstance(value, dict):
            yield _dictionary(value)
            waiting += list(value.values()) if len(value) <= _LARGEST else []
        elif isinstance(value, list | set | deque):
            yield _collection(value)
            waiting += list(value) if len(value) <= _LARGEST else []
        elif isinstance(value, tuple | frozenset):
            waiting += value
        elif isinstance(value, CellType):
            yield _cell(value)
            waiting.append(_content(value))
        elif isinstance(value, FunctionType):
            waiting += [*(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
            names = _names(value.__code__)
            for scope in _scopes(value, names):
                yield _dictionary(scope, names)
                waiting += [scope[name] for name in names if name in scope]
        elif isinstance(value, MethodType):
            waiting += [value.__func__, value.__self__]
        elif isinstance(value, functools.partial):
            waiting += [value.func, value.args, value.keywords]
        elif isinstance(value, nn.Module) or _is_searched(type(value).__module__):
            waiting += [getattr(value, "__dict__", None), *_methods(type(value))]


def _methods(kind: type) -> list[FunctionType]:
    """Return the methods of a class, without those of torch's classes."""
    owners = [owner for owner in kind.__mro__ if _is_searched(owner.__module__)]
    return [value for owner in owners for value in vars(owner).values() if isinstance(value, FunctionType)]


def _scopes(function: FunctionType, names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the dictionaries in which the code of a function finds or sets names: those of globals and modules."""
    own = function.__globals__
    modules = [value for name in names if isinstance(value := own.get(name), ModuleType)]
    return [own, *(vars(module) for module in modules if _is_searched(module.__name__))]


def _names(code: CodeType) -> set[str]:
    """Return the names of globals and attributes in code, with the functions that it defines."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _is_searched(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] not in _OTHERS


def _dictionary(value: dict[Any, Any], names: Iterable[Any] | None = None) -> Callable[[], None]:
    """Return a function that restores those values of a dictionary, or of some names, that belong to a trace."""
    before = dict(value) if names is None else {name: value[name] for name in names if name in value}

    def restore() -> None:
        for name in list(value) if names is None else names:
            old = before.get(name, _ABSENT)
            if (now := value.get(name, _ABSENT)) is old or not _of_trace(now):
                continue
            if old is _ABSENT:
                del value[name]
            else:
                value[name] = old

    return restore


def _collection(value: list[Any] | set[Any] | deque[Any]) -> Callable[[], None]:
    """Return a function that restores a list, set or deque if it holds tensors of a trace."""
    before = list(value)
    known = set(map(id, before))

    def restore() -> None:
        if any(id(item) not in known and _of_trace(item) for item in value):
            value.clear()
            for item in before:
                value.add(item) if isinstance(value, set) else value.append(item)

    return restore


def _cell(cell: CellType) -> Callable[[], None]:
    """Return a function that restores the variable of a closure if it belongs to a trace."""
    before = _content(cell)

    def restore() -> None:
        if (now := _content(cell)) is before or not _of_trace(now):
            return
        if before is _ABSENT:
            del cell.cell_contents
        else:
            cell.cell_contents = before

    return restore


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return _ABSENT


def _of_trace(value: Any, depth: int = _DEPTH) -> bool:
    """Return whether a value is a tensor of a trace, or holds one."""
    if isinstance(value, torch.Tensor):
        return bool(is_fake(value) or value.is_meta)
    if isinstance(value, fx.Proxy):
        return True
    if isinstance(value, dict):
        items: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple | set | deque):
        items = value
    elif _is_searched(type(value).__module__):
        items = getattr(value, "__dict__", {}).values()
    else:
        return False
    return depth > 0 and any(_of_trace(item, depth - 1) for item in items)
