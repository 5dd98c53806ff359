"""Finds the convolutions of a model and their problems for one input."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch
from torch import nn

from autotune.cudnn_algorithms import torch_layers
from autotune.ir import dtype_name
from autotune.ir.operators import Conv2d
from autotune_cli.models import load


def layers_of(
    text: str, pattern: str, batch: int, shape: tuple[int, ...] | None, dtype: str
) -> list[tuple[str, Conv2d]]:
    """Return the convolutions whose names match, with their names, in the order in which they first run.

    Args:
        text: The value of --model.
        pattern: A glob pattern of the names.
        batch: Batch size.
        shape: Of one sample; None for the model's usual one.
        dtype: Of the problems.

    Raises:
        AutotuneError: The model cannot be loaded or run.
        UnknownNameError: No convolution matches, or there is no such dtype.
    """
    model, dtype = load(text, shape, None), dtype_name(dtype)
    found = torch_layers.convolutions(model.module, pattern)
    seen: dict[str, Conv2d] = {}

    def keep(name: str, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        assert isinstance(layer, nn.Conv2d)
        problem = torch_layers.problem(layer, inputs[0])
        seen.setdefault(name, dataclasses.replace(problem, n=problem.n * batch, dtype=dtype))

    handles = [layer.register_forward_pre_hook(partial(keep, name)) for name, layer in found.items()]
    try:
        model.call(torch.rand(1, *model.shape))
    finally:
        for handle in handles:
            handle.remove()
    return list(seen.items())
