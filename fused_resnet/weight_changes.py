"""Changes of weights that a tensor's version does not count.

Torch counts the in-place changes of a tensor, and the engine compares the counts, the addresses, and samples of the
values (autotune/runtime/engine/state_watch.h). Fused optimizers change parameters without counting it.
"""

from __future__ import annotations

import logging
import warnings
from functools import cache
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

UNSEEN = (
    "a write to a weight that torch does not count (through .data, NumPy, a kernel of another library, or another "
    "process) is seen at the next call, on a GPU up to a millisecond later, if it changes the values that are sampled: "
    "all of networks up to 32 KiB, and some of each tensor of larger ones; after other such writes call "
    "torch.autograd.graph.increment_version(tensors)"
)
"""The changes of weights that a module does not see at once, in one sentence."""

_LOG = logging.getLogger("fused_resnet")


def watch_optimizers() -> None:
    """Let each optimizer's step count as a change of its parameters, and log UNSEEN; called when a module is made."""
    _register()
    _LOG.info(UNSEEN)


@cache
def _register() -> None:
    register_optimizer_step_post_hook(_count_step)


def _count_step(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    """Count a step of an optimizer that does not do it itself: a fused one, or one of another library."""
    counts = type(optimizer).__module__.startswith("torch.optim")
    for group in optimizer.param_groups:
        if not counts or group.get("fused"):
            changed = [one for one in group["params"] if one.grad is not None and not one.is_inference()]
            torch.autograd.graph.increment_version(changed)


def warn_of_late_change() -> None:
    """Warn that calls may have used old weights."""
    warnings.warn(
        "a weight was changed by a write that torch does not count, and calls on this GPU in the millisecond after it "
        "may have used the old weights: call torch.autograd.graph.increment_version(tensors) after such writes",
        stacklevel=3,
    )
