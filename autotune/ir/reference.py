"""What each problem means, in plain torch: the reference for verification, and the torch candidates' arithmetic.

All functions take and return channels-last activations as autotune/problem describes them and compute in
the dtype of the tensors that they are given, so the caller chooses the precision by upcasting first.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

from autotune.ir.problem import (
    AvgPool2d,
    Cast,
    Conv2d,
    Conv2dDgrad,
    Conv2dFoldedSe,
    Conv2dSe,
    Conv2dSeSkip,
    Conv2dWgrad,
    Convolution,
    Elementwise,
    FoldedSe,
    Gemm,
    GlobalAvgPool2d,
    MaxPool2d,
    PatchConv2d,
    Problem,
    SeBlock,
    SeDownBlock,
    SeTail,
    SpaceToDepth,
    Stem,
    StemBlock,
    StemSeBlock,
    StemSeBlockPool,
    Tensors,
    ToChannelsLast,
)


def _nchw(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 3, 1, 2)


def _nhwc(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 2, 3, 1)


def _window(problem: Convolution) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]:
    return problem.stride, problem.pad, problem.dilation, problem.groups


def _conv2d(problem: Conv2d | Conv2dSe | FoldedSe, t: Tensors) -> torch.Tensor:
    return _nhwc(F.conv2d(_nchw(t["x"]), t["weight"], None, *_window(problem)))


def _conv2d_dgrad(problem: Conv2dDgrad, t: Tensors) -> torch.Tensor:
    size = (problem.n, problem.c, problem.h, problem.w)
    return _nhwc(conv2d_input(size, t["weight"], _nchw(t["dy"]), *_window(problem)))


def _conv2d_wgrad(problem: Conv2dWgrad, t: Tensors) -> torch.Tensor:
    size = (problem.k, problem.c // problem.groups, problem.r, problem.s)
    return _nhwc(conv2d_weight(_nchw(t["x"]), size, _nchw(t["dy"]), *_window(problem)))


def _gemm(problem: Gemm, t: Tensors) -> torch.Tensor:
    return F.linear(t["x"], t["weight"])


def _avg_pool2d(problem: AvgPool2d, t: Tensors) -> torch.Tensor:
    return _nhwc(F.avg_pool2d(_nchw(t["x"]), (problem.r, problem.s), problem.stride, problem.pad))


def _max_pool2d(problem: MaxPool2d, t: Tensors) -> torch.Tensor:
    window = (problem.r, problem.s)
    return _nhwc(F.max_pool2d(_nchw(t["x"]), window, problem.stride, problem.pad, ceil_mode=bool(problem.ceil)))


def _global_avg_pool2d(problem: GlobalAvgPool2d, t: Tensors) -> torch.Tensor:
    return t["x"].mean((1, 2), keepdim=True)


def _elementwise(problem: Elementwise | Cast, t: Tensors) -> torch.Tensor:
    return t["x"]


def _to_channels_last(problem: ToChannelsLast, t: Tensors) -> torch.Tensor:
    return F.pad(_nhwc(t["x"]), (0, problem.to - problem.c))


def _stem(problem: Stem, t: Tensors) -> torch.Tensor:
    value = F.conv2d(t["x"], t["weight"], None, problem.stride, problem.pad)
    return _nhwc(pooled(problem, value))


def pooled(problem: Stem, value: torch.Tensor) -> torch.Tensor:
    """The second half of a stem: its pool, if it has one, of the convolution's result (n, k, conv_p, conv_q)."""
    if problem.pool == problem.pool_stride == 1:
        return value
    return F.max_pool2d(value, problem.pool, problem.pool_stride, problem.pool_pad)


def _space_to_depth(problem: SpaceToDepth, t: Tensors) -> torch.Tensor:
    n, p, q, channels = problem.output_shape
    patches = t["x"].reshape(n, problem.c, p, problem.block, q, problem.block)
    return patches.permute(0, 2, 4, 3, 5, 1).reshape(n, p, q, channels)


def _se_tail(problem: SeTail, t: Tensors) -> torch.Tensor:
    return _excite(t["x"], t)


def _excite(x: torch.Tensor, t: Tensors) -> torch.Tensor:
    """x scaled channel by channel, as its mean over the pixels says."""
    return _scaled(x, F.linear(x.mean((1, 2)), t["w1"]), t)


def _excite_folded(problem: FoldedSe, x: torch.Tensor, t: Tensors) -> torch.Tensor:
    """The same where w1 is a filter of the convolution's input."""
    return _scaled(x, _conv2d(problem, {"x": t["x"], "weight": t["w1"]}).mean((1, 2)), t)


def _scaled(x: torch.Tensor, squeezed: torch.Tensor, t: Tensors) -> torch.Tensor:
    """squeezed: (n, hidden), before the bias."""
    hidden = torch.relu(squeezed + t["b1"].to(x.dtype))
    gate = torch.sigmoid(F.linear(hidden, t["w2"], t["b2"].to(x.dtype)))
    return x * gate[:, None, None, :]


def _conv3x3(x: torch.Tensor, weight: torch.Tensor, stride: int = 1) -> torch.Tensor:
    return _nhwc(F.conv2d(_nchw(x), weight, stride=stride, padding=1))


def _se_block(problem: SeBlock, t: Tensors) -> torch.Tensor:
    return _conv3x3(t["x"], t["weight1"])


def _se_down_block(problem: SeDownBlock, t: Tensors) -> torch.Tensor:
    return _conv3x3(t["x"], t["weight1"], stride=2)


def _projected(t: Tensors) -> torch.Tensor:
    """What a block that halves its image adds as its identity."""
    return _nhwc(F.conv2d(F.avg_pool2d(_nchw(t["x"]), 3, 2, 1), t["projection"]))


def _projected_skip(problem: Conv2dSeSkip, t: Tensors) -> torch.Tensor:
    return _nhwc(F.conv2d(_nchw(t["skip"]), t["projection"], groups=problem.skip_groups))


def _patch_conv2d(problem: PatchConv2d | StemBlock, t: Tensors) -> torch.Tensor:
    return _nhwc(F.conv2d(t["x"], t["weight"], stride=problem.block))


_MEANING: dict[type[Problem], Callable[..., torch.Tensor]] = {
    **dict.fromkeys((Conv2d, Conv2dSe, Conv2dFoldedSe, Conv2dSeSkip), _conv2d),
    **dict.fromkeys((PatchConv2d, StemSeBlock, StemSeBlockPool), _patch_conv2d),
    Conv2dDgrad: _conv2d_dgrad,
    Conv2dWgrad: _conv2d_wgrad,
    Gemm: _gemm,
    AvgPool2d: _avg_pool2d,
    MaxPool2d: _max_pool2d,
    GlobalAvgPool2d: _global_avg_pool2d,
    **dict.fromkeys((Elementwise, Cast), _elementwise),
    ToChannelsLast: _to_channels_last,
    Stem: _stem,
    SpaceToDepth: _space_to_depth,
    SeTail: _se_tail,
    SeBlock: _se_block,
    SeDownBlock: _se_down_block,
}


def _places(problem: Problem, t: Tensors) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """What happens at the steps that only mark a place."""
    filters = iter(("weight1", "weight2") if isinstance(problem, StemBlock) else ("weight2",))
    kept: list[torch.Tensor] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x

    return {
        "conv": lambda x: _conv3x3(x, t[next(filters)]),
        "gate": lambda x: _excite_folded(problem, x, t) if isinstance(problem, FoldedSe) else _excite(x, t),
        "project": lambda x: x + (_projected_skip(problem, t) if isinstance(problem, Conv2dSeSkip) else _projected(t)),
        "keep": keep,
        "add_kept": lambda x: x + kept.pop(),
    }


def compute(problem: Problem, tensors: Tensors, scalars: tuple[float, ...] = ()) -> dict[str, torch.Tensor]:
    """Solve `problem` for the given operands: returns every output by its operand name, `y` among them."""
    own, rest = scalars[: problem.scalars], scalars[problem.scalars :]
    meaning = _MEANING.get(type(problem))
    value = meaning(problem, tensors) if meaning else problem.reference(tensors, own)
    value, stored = problem.epilogue.apply(value, dict(tensors), rest, _places(problem, tensors))
    second = {"pooled": _avg_pool2d(problem.pool, {"x": value})} if isinstance(problem, StemSeBlockPool) else {}
    return {"y": value, **stored, **second}
