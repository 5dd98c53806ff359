"""torch's own operators as candidates: what a layer costs without any kernel of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from autotune.epilogue import Epilogue
from autotune.problem import Conv2d, Problem, Tensors
from autotune.reference import compute

FAMILY = "aten"
"""The family's name in the database."""


def configs(problem: Problem) -> list[dict[str, str]]:
    """The ways torch can solve `problem`: a convolution in either memory format, everything else in one way."""
    formats = ["channels_last", "contiguous"] if isinstance(problem, Conv2d) else ["channels_last"]
    return [{"memory_format": name} for name in formats]


_IN_PLACE: dict[str, Callable[..., Any]] = {
    "bias": lambda v, b: v.add_(b.to(v.dtype)),
    "scale": lambda v, s: v.mul_(s.to(v.dtype)),
    "add": lambda v, t: v.add_(t),
    "add_scalar": lambda v, s: v.add_(s),
    "mul_scalar": lambda v, s: v.mul_(s),
    "relu": lambda v: v.relu_(),
    "sigmoid": lambda v: v.sigmoid_(),
    "silu": lambda v: F.silu(v, inplace=True),
}


def _finish(epilogue: Epilogue, value: torch.Tensor, tensors: Tensors, scalars: tuple[float, ...]) -> None:
    """Apply the chain to a fresh tensor in place and leave the result in `y`."""
    for step in epilogue.steps:
        if step.operand is None:
            _IN_PLACE[step.name](value)
        elif step.operand == "output":
            _leave(value, tensors[step.operand_name])
        else:
            operand = scalars[step.index] if step.operand == "scalar" else tensors[step.operand_name]
            _IN_PLACE[step.name](value, operand)
    _leave(value, tensors["y"])


def _leave(value: torch.Tensor, output: torch.Tensor) -> None:
    """Store in the output's dtype; whole numbers are rounded and saturated."""
    output.copy_(value.round().clamp_(-128, 127) if output.dtype == torch.int8 else value)


def bind(
    problem: Problem, config: dict[str, str], tensors: Tensors, scalars: tuple[float, ...]
) -> Callable[[Tensors], None]:
    """Returns run(late): solves `problem` on `tensors`, with those in `late` taken instead, and fills the outputs."""
    if not isinstance(problem, Conv2d):

        def run(late: Tensors) -> None:
            operands = {**tensors, **late}
            for name, value in compute(problem, operands, scalars).items():
                operands[name].copy_(value)

        return run

    memory_format = torch.channels_last if config["memory_format"] == "channels_last" else torch.contiguous_format
    # torch has no convolution of bytes; in float32 their sums are exact up to 2^24, and nearly so beyond.
    factors = torch.float32 if problem.dtype == "s8" else tensors["weight"].dtype
    weight = tensors["weight"].to(factors).contiguous(memory_format=memory_format)
    cudnn = torch.backends.cudnn

    def run_conv(late: Tensors) -> None:
        operands = {**tensors, **late}
        x = operands["x"].permute(0, 3, 1, 2).to(factors).contiguous(memory_format=memory_format)
        with cudnn.flags(enabled=True, benchmark=cudnn.benchmark, allow_tf32=problem.dtype != "f32"):
            y = F.conv2d(x, weight, None, problem.stride, problem.pad, problem.dilation, problem.groups)
        _finish(problem.epilogue, y.permute(0, 2, 3, 1), operands, scalars)

    return run_conv
