"""The reference of a problem, computed slice by slice over the batch, so that a large batch needs little memory.

In float64 the result of a layer in bytes takes eight times its memory, and so does what each step of the epilogue
returns. The result of ResNet-50's first block at batch 2048 takes 1.6 GB in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from autotune.core import ProblemError, ceil_div
from autotune.ir import Problem, compute, is_built_in, with_batch
from autotune.ir.operators import TorchCall

MOST_BYTES = 2**30
"""Most bytes of the results of a slice, in the dtype in which they are computed."""


def sliced_reference(
    problem: Problem,
    tensors: Mapping[str, torch.Tensor],
    scalars: tuple[float, ...],
    dtype: torch.dtype,
    most_bytes: int = MOST_BYTES,
) -> dict[str, torch.Tensor]:
    """Solve a problem in a dtype as `ir.compute` does, in slices of the batch if the results take more than some bytes.

    Args:
        problem: The problem.
        tensors: All operands but the outputs, by name, in any dtype.
        scalars: The operator's own scalars, then those of the epilogue.
        dtype: Dtype in which it is computed.
        most_bytes: Most bytes of the results of a slice.

    Returns:
        Every output by its operand name, in `dtype`, or in float32 if there are several slices.
    """
    numbers = sum(math.prod(operand.shape) for operand in problem.operands() if operand.role == "output")
    slices = ceil_div(numbers * dtype.itemsize, most_bytes)
    rows = rows_of_image(problem) if slices > 1 else None
    if rows is None:
        return compute(problem, {name: in_dtype(tensor, dtype) for name, tensor in tensors.items()}, scalars)
    shared = {name: in_dtype(tensor, dtype) for name, tensor in tensors.items() if name not in rows}
    images, whole = max(1, problem.batch // slices), dict[str, torch.Tensor]()
    for first in range(0, problem.batch, images):
        last = min(first + images, problem.batch)
        parts = {
            name: in_dtype(tensor[first * rows[name] : last * rows[name]], dtype)
            for name, tensor in tensors.items()
            if name in rows
        }
        for name, part in compute(with_batch(problem, last - first), {**shared, **parts}, scalars).items():
            if name not in whole:
                size = (problem.batch * rows[name], *part.shape[1:])
                whole[name] = torch.empty(size, dtype=torch.float32, device=part.device)
            whole[name][first * rows[name] : last * rows[name]] = part
    return whole


def in_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of numbers in a dtype; other integers than bytes, which are indices, stay as they are."""
    return tensor.to(dtype) if tensor.is_floating_point() or tensor.dtype == torch.int8 else tensor


def rows_of_image(problem: Problem) -> dict[str, int] | None:
    """Return the rows that one image has in each operand that has a part for each image, by the operand's name.

    None if the results of one image may depend on others: an output has no part for each image, as a weight gradient,
    or the operator is not known.
    """
    if not is_built_in(type(problem)) or isinstance(problem, TorchCall) or problem.batch < 2:
        return None
    try:
        one_image = with_batch(problem, 1)
    except ProblemError:  # such as the statistics of one number
        return None
    rows: dict[str, int] = {}
    for operand, of_one in zip(problem.operands(), one_image.operands(), strict=True):
        if operand.shape == (of_one.shape[0] * problem.batch, *of_one.shape[1:]):
            rows[operand.name] = of_one.shape[0]
        elif operand.role == "output" or operand.shape != of_one.shape:
            return None
    return rows
