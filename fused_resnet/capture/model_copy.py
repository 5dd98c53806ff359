"""Copies of users' modules, after a check that they can be captured."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from autotune.core import CaptureError, in_one_line
from fused_resnet.capture.export import check


def copy_of(model: Any) -> nn.Module:
    """Return a copy of a module that shares nothing with it.

    Args:
        model: What the user gave as a module.

    Raises:
        CaptureError: It is no module, or one that cannot be captured: in training mode, in TorchScript, without values
            of its parameters, or one that Python cannot copy.
    """
    _check_kind(model)
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in tensors:
        if is_lazy(tensor):
            raise CaptureError(f"'{name}' has no shape yet: call the model once, which initializes its lazy modules")
    check(model)
    for name, tensor in tensors:
        if tensor.is_meta:
            raise CaptureError(f"'{name}' is on the meta device and has no values: load the weights first")
    # torch refuses to copy a tensor that was computed from parameters, such as the weight of nn.utils.weight_norm.
    computed = [v for part in model.modules() for v in vars(part).values() if isinstance(v, torch.Tensor)]
    memo: dict[int, Any] = {id(value): value.detach().clone() for value in computed if not value.is_leaf}
    try:
        copied: nn.Module = copy.deepcopy(model, memo)
    except Exception as error:  # a user's class may raise anything
        raise CaptureError(
            f"the model ({type(model).__name__}) cannot be copied: {in_one_line(error)}. copy.deepcopy(model) must work"
        ) from error
    return copied


def _check_kind(model: Any) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        raise CaptureError(
            f"the model is in TorchScript ({model.original_name}), which cannot be captured: "
            "give the module that it was made from"
        )
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise CaptureError(f"the model is the class {model.__name__}: give an instance, such as {model.__name__}()")
    if isinstance(model, str):
        raise CaptureError(f"the model is the text '{model}': give the module itself")
    advice = "wrap it in an nn.Module" if callable(model) else "give one"
    raise CaptureError(f"the model is a {type(model).__name__} and no nn.Module: {advice}")
