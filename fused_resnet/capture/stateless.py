"""The check that a module's forward changes no state: a captured network changes none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import nn

from autotune.core import CaptureError
from fused_resnet.guards import ABSENT, Read, guards

T = TypeVar("T")


def stateless(model: nn.Module, trace: Callable[[], T], call: Callable[[], object]) -> T:
    """Trace a module, after which its attributes are what they were, and check that its forward changes no state.

    Args:
        model: The module.
        trace: Traces it, which calls its forward once.
        call: Calls it with random inputs, others at each call.

    Returns:
        The result of `trace`.

    Raises:
        CaptureError: Forward changes a value that it reads, or `trace` fails.
    """
    result, changed = _traced(model, trace)
    if changed and all(_is_removable(model, read) for read in changed):
        # An attribute that forward sets before it reads it, to keep a feature for example, is no state.
        removed = changed
        for read in removed:
            del read.owner[read.key]
        try:
            result, changed = _traced(model, trace)
        except CaptureError:
            pass  # it is read before it is set
        finally:
            for read in removed:
                read.owner[read.key] = read.value
    elif changed and all(map(_is_added, changed)):
        _remove(changed)  # what tracing made
        if _are_memos(model, changed, call):
            return result
    if changed:
        raise CaptureError(
            f"forward changes {changed[0].name}, and a captured network changes no state: "
            "keep such state outside forward"
        )
    return result


def _is_removable(model: nn.Module, read: Read) -> bool:
    """Return whether a value is an attribute of a module alone: without it, the module has no attribute of the name."""
    kinds = [type(module) for module in model.modules() if vars(module) is read.owner]
    return read.value is not ABSENT and bool(kinds) and not any(hasattr(kind, read.key) for kind in kinds)


def _is_added(read: Read) -> bool:
    """Return whether a value is a new item of a dictionary that holds no module's attributes."""
    return read.value is ABSENT and isinstance(read.owner, dict) and not read.of_module


def _remove(added: Sequence[Read]) -> None:
    for read in added:
        read.owner.pop(read.key, None)


def _are_memos(model: nn.Module, added: Sequence[Read], call: Callable[[], object]) -> bool:
    """Return whether new items of dictionaries hold what forward would compute again, whatever its inputs.

    Such items are set by the first call, left alone by the next one, and have the same values where they are removed
    before a call. The items do not exist before nor afterwards.
    """

    def values() -> list[Any]:
        return [read.owner.get(read.key, ABSENT) for read in added]

    def versions() -> list[int]:
        return [value._version for value in values() if isinstance(value, torch.Tensor)]

    try:
        call()
        before, version, found = values(), versions(), guards(model)
        call()
        if found.changed_data() or versions() != version:
            return False
        _remove(added)
        call()
        return all(map(_are_equal, before, values()))
    except Exception:  # forward may raise anything without the inputs that it expects
        return False
    finally:
        _remove(added)


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def _traced(model: nn.Module, trace: Callable[[], T]) -> tuple[T, list[Read]]:
    """Return trace() and the values that forward changed; restores the attributes of all modules.

    torch.export restores attributes itself, some of them as copies, so changes are looked for at the end of forward.
    """
    found, called, forward = guards(model), False, model.forward
    before = [(vars(module), dict(vars(module))) for module in model.modules()]
    changed: list[Read] = []

    @wraps(forward)
    def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal called
        called, result = True, forward(*args, **kwargs)
        changed.extend(read for read in found.changed_data() if read.key != "forward")
        return result

    vars(model)["forward"] = watched
    try:
        result = trace()
        return result, changed if called else found.changed_data()  # fx calls the forward of the class
    finally:
        for now, own in before:
            if now.keys() != own.keys() or any(now[name] is not own[name] for name in own):
                now.clear()
                now.update(own)
