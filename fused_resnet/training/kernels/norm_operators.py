"""Operators of torch, with gradients, that run batch norms in training and max pools on tuned kernels.

Graphs contain them in place of torch's functions, with the ReLU and the addition behind a batch norm. Their arguments
are tensors, numbers and texts, as those of operator.py. Images have torch's order of axes and are channels last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from autotune.ir.operators import JOINED_RELU, NO_RELU
from fused_resnet.training.convolution_passes.norms import TrainedNorm
from fused_resnet.training.kernels.bound_problem import parsed, run
from fused_resnet.training.kernels.operator import LIBRARY, SOLVE, TAGS

for _schema in (
    "batch_norm(Tensor x, Tensor? joined, Tensor weight, Tensor bias, float eps, int relu, str database)"
    " -> (Tensor, Tensor)",
    "batch_norm_backward(Tensor dy, Tensor? dy2, Tensor x, Tensor? z, Tensor statistics, int relu, str database)"
    " -> Tensor[]",
    "max_pool2d(Tensor x, str pool, str gradient, str database) -> (Tensor, Tensor)",
):
    LIBRARY.define(_schema, tags=TAGS)

BATCH_NORM: Callable[..., Any] = torch.ops.fused_resnet.batch_norm.default
"""(x, tensor that is added or None, weight, bias, eps, relu of TrainedNorm, database) -> (y, statistics).

Weight and bias are in float32, and so are the statistics: the y of BatchNormStatistics."""
BATCH_NORM_BACKWARD: Callable[..., Any] = torch.ops.fused_resnet.batch_norm_backward.default
"""(gradient, second gradient or None, x, y if a tensor was added, statistics, relu, database) -> gradients.

These are the gradient with respect to x, the y of BatchNormGradientSums, and, if a tensor was added, the gradient with
respect to that."""
MAX_POOL: Callable[..., Any] = torch.ops.fused_resnet.max_pool2d.default
"""(x, text of the pool, text of its gradient, database) -> (y, places). SOLVE computes the gradient from the places."""
IMAGE_OPERATORS = (BATCH_NORM, BATCH_NORM_BACKWARD, MAX_POOL)
"""All of them: what they read and compute is channels last if it has four dimensions."""


def _norm(x: torch.Tensor, relu: int = NO_RELU) -> TrainedNorm:
    norm = TrainedNorm.of(x, relu)
    assert norm
    return norm


@cache
def _texts(norm: TrainedNorm) -> dict[str, str]:
    return {what: str(problem) for what, problem in norm.problems.items()}


def _batch_norm(
    x: torch.Tensor,
    joined: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    relu: int,
    database: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    texts = _texts(_norm(x, relu))
    (statistics,) = run(texts["statistics"], [x, weight, bias], database, scalars=(eps,))
    *_, scale, shift = statistics
    added = [] if joined is None else [joined]
    (y,) = run(texts["normalization"], [x, scale, shift, *added], database)
    return y, statistics


def _batch_norm_backward(
    dy: torch.Tensor,
    dy2: torch.Tensor | None,
    x: torch.Tensor,
    z: torch.Tensor | None,
    statistics: torch.Tensor,
    relu: int,
    database: str,
) -> list[torch.Tensor]:
    texts = _texts(_norm(x, relu))
    pass_ = "gradient sums" if dy2 is None else "gradient sums of two"
    operands = [one for one in (dy, dy2, x, statistics, z) if one is not None]
    sums, *stored = run(texts[pass_], operands, database)
    (dx,) = run(texts["gradient"], [*(stored or [dy]), x, statistics, sums], database)
    return [dx, sums, *stored]


def _max_pool(x: torch.Tensor, pool: str, gradient: str, database: str) -> tuple[torch.Tensor, torch.Tensor]:
    y, places = run(pool, [x], database)
    return y, places


# -- without values ----------------------------------------------------------------------------------------------------


def _image(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return a tensor without values like x, channels last."""
    n, c, h, w = shape
    return x.new_empty((n, h, w, c)).permute(0, 3, 1, 2)


def _columns(x: torch.Tensor, rows: int) -> torch.Tensor:
    return x.new_empty((rows, x.shape[1]), dtype=torch.float32)


def _fake_batch_norm(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    norm = _norm(x)
    return _image(x, x.shape), _columns(x, norm.statistics.output_shape[0])


def _fake_batch_norm_backward(
    dy: torch.Tensor, dy2: Any, x: torch.Tensor, z: Any, statistics: Any, relu: int, database: str
) -> list[torch.Tensor]:
    norm = _norm(x)
    stored = [_image(x, x.shape)] if relu == JOINED_RELU else []
    return [_image(x, x.shape), _columns(x, norm.gradient_sums().output_shape[0]), *stored]


def _fake_max_pool(x: torch.Tensor, pool: str, *_: str) -> tuple[torch.Tensor, torch.Tensor]:
    n, p, q, c = parsed(pool).output_shape
    y = _image(x, (n, c, p, q))
    return y, torch.empty_like(y, dtype=torch.int8)


# -- gradients ---------------------------------------------------------------------------------------------------------


def _save_batch_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, _, _, _, _, ctx.relu, ctx.database = inputs
    y, statistics = output
    ctx.mark_non_differentiable(statistics)
    ctx.save_for_backward(x, y if ctx.relu == JOINED_RELU else None, statistics)


def _differentiate_batch_norm(ctx: Any, dy: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
    x, z, statistics = ctx.saved_tensors
    dx, sums, *dz = BATCH_NORM_BACKWARD(dy, None, x, z, statistics, ctx.relu, ctx.database)
    return dx, dz[0] if dz else None, sums[1], sums[0], None, None, None


def _save_max_pool(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    _, _, ctx.gradient, ctx.database = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])


def _differentiate_max_pool(ctx: Any, dy: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
    (places,) = ctx.saved_tensors
    return SOLVE([dy, places], ctx.gradient, ctx.database, ""), None, None, None


for _name, _function, _fake in (
    ("batch_norm", _batch_norm, _fake_batch_norm),
    ("batch_norm_backward", _batch_norm_backward, _fake_batch_norm_backward),
    ("max_pool2d", _max_pool, _fake_max_pool),
):
    LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fused_resnet::{_name}", _fake, lib=LIBRARY)
torch.library.register_autograd(
    "fused_resnet::batch_norm", _differentiate_batch_norm, setup_context=_save_batch_norm, lib=LIBRARY
)
torch.library.register_autograd(
    "fused_resnet::max_pool2d", _differentiate_max_pool, setup_context=_save_max_pool, lib=LIBRARY
)
