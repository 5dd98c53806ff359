"""The convolutions of a model with the sizes that they have for one input."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch
from _models import input_size, load_model
from torch import nn

from autotune import cudnn
from autotune.errors import AutotuneError
from autotune.problem import Conv2d, dtype_name


def layers_of(text: str, pattern: str, batch: int, shape: str | None, dtype: str) -> list[tuple[str, Conv2d]]:
    """The convolutions whose names match, with their names, in the order in which they first run.

    text, shape: as --model and --input give them. Raises AutotuneError and UnknownNameError.
    """
    model, dtype = load_model(text), dtype_name(dtype)
    found = cudnn.convolutions(model, pattern)
    sample = _shape(shape) if shape else input_size(text, model)
    seen: dict[str, Conv2d] = {}

    def keep(name: str, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        assert isinstance(layer, nn.Conv2d)
        problem = cudnn.problem(layer, inputs[0])
        seen.setdefault(name, dataclasses.replace(problem, n=problem.n * batch, dtype=dtype))

    handles = [layer.register_forward_pre_hook(partial(keep, name)) for name, layer in found.items()]
    try:
        with torch.no_grad():
            model(torch.rand(1, *sample))
    except RuntimeError as error:
        raise AutotuneError(f"{text} does not take a sample of {sample}: {str(error).splitlines()[0]}") from error
    finally:
        for handle in handles:
            handle.remove()
    return list(seen.items())


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise AutotuneError(f"--input {text} is not a shape: write C,H,W, such as 3,224,224") from None
