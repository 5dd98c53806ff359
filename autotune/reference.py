"""What each problem means, in plain torch: the reference for verification, and the torch candidates' arithmetic.

All functions take and return channels-last activations as problem.py describes them and compute in the
dtype of the tensors that they are given, so the caller chooses the precision by upcasting first.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from autotune.problem import AvgPool2d, Conv2d, Problem, SeTail, SpaceToDepth, Tensors


def _nchw(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 3, 1, 2)


def _nhwc(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 2, 3, 1)


def _conv2d(problem: Conv2d, t: Tensors) -> torch.Tensor:
    x = _nchw(t["x"])
    return _nhwc(F.conv2d(x, t["weight"], None, problem.stride, problem.pad, problem.dilation, problem.groups))


def _avg_pool2d(problem: AvgPool2d, t: Tensors) -> torch.Tensor:
    return _nhwc(F.avg_pool2d(_nchw(t["x"]), (problem.r, problem.s), problem.stride, problem.pad))


def _space_to_depth(problem: SpaceToDepth, t: Tensors) -> torch.Tensor:
    n, p, q, channels = problem.output_shape
    patches = t["x"].reshape(n, problem.c, p, problem.block, q, problem.block)
    return patches.permute(0, 2, 4, 3, 5, 1).reshape(n, p, q, channels)


def _se_tail(problem: SeTail, t: Tensors) -> torch.Tensor:
    x = t["x"]
    squeezed = x.mean((1, 2))
    hidden = torch.relu(F.linear(squeezed, t["w1"], t["b1"].to(x.dtype)))
    gate = torch.sigmoid(F.linear(hidden, t["w2"], t["b2"].to(x.dtype)))
    return x * gate[:, None, None, :]


_MEANING: dict[type[Problem], Callable[..., torch.Tensor]] = {
    Conv2d: _conv2d,
    AvgPool2d: _avg_pool2d,
    SpaceToDepth: _space_to_depth,
    SeTail: _se_tail,
}


def compute(problem: Problem, tensors: Tensors, scalars: tuple[float, ...] = ()) -> dict[str, torch.Tensor]:
    """Solve `problem` for the given operands: returns every output by its operand name, `y` among them."""
    own, rest = scalars[: problem.scalars], scalars[problem.scalars :]
    meaning = _MEANING.get(type(problem))
    value = meaning(problem, tensors) if meaning else problem.reference(tensors, own)
    value, stored = problem.epilogue.apply(value, dict(tensors), rest)
    return {"y": value, **stored}
