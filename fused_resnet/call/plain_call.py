"""Calls of a module that are its `forward` and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

_GLOBAL_HOOKS: list[Mapping[int, object]] = [
    getattr(nn.modules.module, f"_global_{name}_hooks")
    for name in ("forward", "forward_pre", "backward", "backward_pre")
]


def is_plain(module: nn.Module) -> bool:
    """Return whether a call is `forward` in eval mode and nothing else: no hooks, no `forward` of the object."""
    own = module.__dict__  # attributes of nn.Module would each cost a call of __getattr__
    if own["training"] or "forward" in own or any(_GLOBAL_HOOKS):
        return False
    before = own["_forward_pre_hooks"] or own["_backward_pre_hooks"]
    return not (before or own["_forward_hooks"] or own["_backward_hooks"])
