"""The tensors of a call's results: their memory, and their memory format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autotune.runtime import ACCESS, has_two_orders
from fused_resnet.call.call_cache import is_contiguous
from fused_resnet.torch_op import InputError


def empty_result(x: torch.Tensor, shape: Sequence[Any], dtype: torch.dtype, in_torch_order: bool) -> torch.Tensor:
    """Return an empty result on the device of x, channels last if it has four dimensions, or in torch's order."""
    if in_torch_order or len(shape) != 4:
        return x.new_empty(shape, dtype=dtype)
    _, k, p, q = shape
    return x.new_empty_strided(shape, (p * q * k, 1, q * k, k), dtype=dtype)


def fits(out: torch.Tensor, template: torch.Tensor) -> bool:
    """Return whether the result can be written to `out` directly; otherwise it is copied there.

    Raises:
        InputError: `out` differs from the result in shape, dtype or device.
    """
    if (out.shape, out.dtype, out.device) != (template.shape, template.dtype, template.device):
        raise InputError(
            f"out is {tuple(out.shape)}, {out.dtype}, on {out.device}; "
            f"the result is {tuple(template.shape)}, {template.dtype}, on {template.device}: give a tensor like that"
        )
    is_last = out.dim() == 4 and not template.is_contiguous()
    order = torch.channels_last if is_last else torch.contiguous_format
    return out.is_contiguous(memory_format=order) and out.data_ptr() % ACCESS == 0


def mark_written(out: torch.Tensor) -> None:
    """Tell autograd that a tensor was written, as torch's operators do."""
    if not out.is_inference():  # these have no version
        torch.autograd.graph.increment_version(out)


def converted(
    results: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    channels_last: Sequence[bool],
    memory_format: torch.memory_format,
) -> list[torch.Tensor]:
    """Return the results, those with four dimensions in a memory format.

    Args:
        results: The tensors that the layers computed.
        inputs: The inputs of the call.
        channels_last: For each result, whether the plain network's is channels last for contiguous inputs.
        memory_format: The memory format; torch.preserve_format for that of the plain network's results.
    """
    return [
        y.contiguous(memory_format=_format(inputs, last, memory_format)) if y.dim() == 4 else y
        for y, last in zip(results, channels_last, strict=True)
    ]


def in_torch_order(
    inputs: Sequence[torch.Tensor],
    shapes: Sequence[Sequence[int]],
    channels_last: Sequence[bool],
    memory_format: torch.memory_format,
) -> list[int]:
    """Return the positions of the results that `converted` returns in torch's order of axes, by their shapes."""
    formats = [_format(inputs, last, memory_format) for last in channels_last]
    return [
        i
        for i, (shape, wanted) in enumerate(zip(shapes, formats, strict=True))
        if wanted is torch.contiguous_format and has_two_orders(shape)
    ]


def _format(
    inputs: Sequence[torch.Tensor], channels_last: bool, memory_format: torch.memory_format
) -> torch.memory_format:
    """Return the memory format of a result; `channels_last` says whether it has that one for contiguous inputs."""
    if memory_format is not torch.preserve_format:
        return memory_format
    is_last = channels_last or any(is_contiguous(x) is False for x in inputs)
    return torch.channels_last if is_last else torch.contiguous_format
