"""An independent reference for all operators, in float64.

It shares no code with the reference in autotune.ir.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import torch
import torch.nn.functional as F
from reference_steps import convolved, gated, gates, run_chain

from autotune.ir import BYTE_FORMATS, Problem
from autotune.ir import operators as op


def solve(  # noqa: PLR0911, PLR0912, PLR0915 -- a table
    problem: Problem, tensors: Mapping[str, torch.Tensor], scalars: Sequence[float]
) -> dict[str, torch.Tensor]:
    """Return every output of a problem by name, in float64 on the CPU."""
    given = {name: tensor.cpu().double() for name, tensor in tensors.items()}
    match problem:
        case op.Conv2d() | op.Conv2dBroadcast() | op.Conv2dSe() | op.FoldedSe():
            window = (problem.stride, problem.pad, problem.dilation, problem.groups)
            x = given["x"].movedim(-1, 1)
            value = F.conv2d(x, given["weight"], None, *window).movedim(1, -1)
            if isinstance(problem, op.FoldedSe):
                if isinstance(problem, op.Conv2dSeSkip):
                    parts = given["skip"].unflatten(-1, (problem.skip_groups, -1))
                    rows = given["projection"].flatten(1).unflatten(0, (problem.skip_groups, -1))
                    given["projected"] = torch.einsum("nhwgc,gkc->nhwgk", parts, rows).flatten(3)
                given["squeezed"] = F.conv2d(x, given["w1"], None, *window).sum((2, 3)) / (problem.p * problem.q)
        case op.Conv2dStatistics():
            y = solve(problem.convolution, tensors, ())["y"]
            norm = {"x": y, "weight": given["norm_weight"], "bias": given["norm_bias"]}
            return {"y": y, "statistics": _statistics(norm, scalars[0])}
        case op.Conv2dGradientSums():
            dy = solve(problem.convolution, tensors, ())["y"]
            found = _gradient_sums(problem.norm, {**given, "dy": dy, "x": given["norm_x"]})
            return {"y": found["dz"], "sums": found["y"]}
        case op.Conv2dSkip():
            window = (problem.stride, problem.pad, problem.dilation)
            value = F.conv2d(given["x"].movedim(-1, 1), given["weight"], None, *window).movedim(1, -1)
            down, right = problem.skip_stride
            projected = given["skip"][:, ::down, ::right] @ given["projection"].flatten(1).T
            if problem.dtype in BYTE_FORMATS:
                value, projected = value * given["scale"], projected * given["skip_scale"]
            value = value + projected
        case op.PatchConv2d() | op.StemBlock():
            n, p, q, k = problem.output_shape
            patches = F.unfold(given["x"], problem.block, stride=problem.block)
            value = torch.einsum("nci,kc->nik", patches, given["weight"].flatten(1)).reshape(n, p, q, k)
        case op.Conv2dDgrad():
            x = torch.zeros(problem.n, problem.c, problem.h, problem.w, dtype=torch.float64, requires_grad=True)
            value = _gradient(problem, x, given["weight"], given["dy"], x)
        case op.Conv2dWgrad():
            shape = (problem.k, problem.c // problem.groups, problem.r, problem.s)
            weight = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
            value = _gradient(problem, given["x"].movedim(-1, 1), weight, given["dy"], weight)
        case op.MaxPool2dPlaces():
            return _pool_with_places(problem, given["x"])
        case op.MaxPool2dPlacesGradient():
            value = _places_gradient(problem, given["places"], given["dy"])
        case op.Gemm():
            value = torch.einsum("mk,nk->mn", given["x"], given["weight"])
        case op.Stem() | op.StemCast():
            value = F.conv2d(given["x"], given["weight"], None, problem.stride, problem.pad).movedim(1, -1)
            pool, stride, pad = ((size, size) for size in (problem.pool, problem.pool_stride, problem.pool_pad))
            value = _largest(value, pool, stride, pad, problem.output_shape)
        case op.ExpandDepthwise():
            value = torch.einsum("nhwc,kc->nhwk", given["x"], given["weight1"].flatten(1))
            return run_chain(
                problem.epilogue.names, value, given, scalars, lambda v: _depthwise(v, given["weight2"], problem)
            )
        case op.InvertedResidual():
            value = torch.einsum("nhwc,kc->nhwk", given["x"], given["weight1"].flatten(1))
            last = given["weight3"].flatten(1)
            remaining = [lambda v: v @ last.transpose(0, 1), lambda v: _depthwise(v, given["weight2"], problem)]

            def convolved_next(v: torch.Tensor) -> torch.Tensor:
                return remaining.pop()(v)

            return run_chain(problem.epilogue.names, value, given, scalars, convolved_next)
        case op.Conv2dPair():
            value = _dense(given["x"], given["weight1"], problem.first_stride, problem.first_pad)
            return run_chain(
                problem.epilogue.names,
                value,
                given,
                scalars,
                lambda v: _dense(v, given["weight2"], problem.stride, problem.pad),
            )
        case op.PointwisePair():
            value = torch.einsum("nhwc,kc->nhwk", given["x"], given["weight1"].flatten(1))
            second = given["weight2"].flatten(1)

            def multiplied(hidden: torch.Tensor) -> torch.Tensor:
                rounded = hidden.round().clamp(-128, 127) if problem.dtype == "s8" else hidden
                return torch.einsum("nhwc,kc->nhwk", rounded, second)

            return run_chain(problem.epilogue.names, value, given, scalars, multiplied)
        case op.SeTail():
            value = gated(given["x"], given)
        case op.SeGates():
            value = gates(given["x"], given, problem.act, problem.gate)
        case op.SqueezeExcite():
            value = gated(given["x"], given, problem.act, problem.gate)
        case op.SeBlock():
            value = convolved(given["x"], given["weight1"])
        case op.SeDownBlock():
            value = convolved(given["x"], given["weight1"], 2)
        case op.LayerNorm() | op.GroupNorm():
            value = _normalized(problem, given["x"], scalars[0])
        case op.GroupStatistics():
            value = _group_statistics(problem, given["x"], scalars[0])
        case op.Normalize():
            mean, factor = given["statistics"].unsqueeze(2).unsqueeze(2).unbind(1)
            value = (given["x"] - mean) * factor
        case op.BatchNormStatistics():
            value = _statistics(given, scalars[0])
        case op.BatchNormGradientSums():
            found = _gradient_sums(problem, given)
            return found if problem.relu == 2 or problem.gradients == 2 else {"y": found["y"]}
        case op.BatchNormGradient():
            *_, scale, _ = given["statistics"]
            *_, slope, offset = given["sums"]
            value = scale * _active(problem, given, given["dz"]) + slope * given["x"] + offset
        case op.ReluGradientSums():
            return _relu_gradient_sums(problem, given)
        case op.Concat():
            value = _concatenated(given, problem.pieces, problem.interleave)
        case op.ConcatConv2d():
            value = _concatenated(given, problem.pieces)
            return run_chain(
                problem.epilogue.names, value, given, scalars, lambda v: v @ given["weight"].flatten(1).transpose(0, 1)
            )
        case _:
            value = _without_weights(problem, given["x"])
    outputs = run_chain(problem.epilogue.names, value, given, scalars[problem.scalars :])
    if isinstance(problem, op.StemSeBlockPool):
        outputs["pooled"] = _without_weights(problem.pool, outputs["y"])
    return outputs


def _without_weights(problem: Problem, x: torch.Tensor) -> torch.Tensor:
    """Return the result of a pool, or of an operator that only moves data."""
    match problem:
        case op.AvgPool2d():
            padded = F.pad(x, (0, 0, problem.pad[1], problem.pad[1], problem.pad[0], problem.pad[0]))
            windows = padded.unfold(1, problem.r, problem.stride[0]).unfold(2, problem.s, problem.stride[1])
            value = windows.mean((-1, -2))
        case op.ClippedAvgPool2d():
            rows = _clipped(problem.h, problem.r, problem.stride[0], problem.pad[0], problem.p)
            value = _averages(x, rows, _clipped(problem.w, problem.s, problem.stride[1], problem.pad[1], problem.q))
        case op.AdaptiveAvgPool2d():
            value = _averages(x, _parts(problem.h, problem.p), _parts(problem.w, problem.q))
        case op.MaxPool2d():
            value = _largest(x, (problem.r, problem.s), problem.stride, problem.pad, problem.output_shape)
        case op.GlobalAvgPool2d():
            value = x.sum((1, 2), keepdim=True) / (problem.h * problem.w)
        case op.Elementwise() | op.Cast():
            value = x
        case op.ToChannelsLast():
            value = torch.zeros(problem.output_shape, dtype=torch.float64)
            value[..., : problem.c] = x.movedim(1, -1)
        case op.SpaceToDepth():
            value = F.pixel_unshuffle(x, problem.block)  # channels come (c, dy, dx)
            n, _, p, q = value.shape
            value = value.reshape(n, problem.c, -1, p, q).permute(0, 3, 4, 2, 1).reshape(n, p, q, -1)
        case op.DepthToSpace():
            value = torch.empty(problem.output_shape, dtype=torch.float64)
            tall, wide = problem.block
            for place in range(tall * wide):
                part = x[..., place :: tall * wide] if problem.inner else x.split(problem.c, -1)[place]
                value[:, place // wide :: tall, place % wide :: wide] = part
        case op.Softmax():
            value = (x - x.logsumexp(-1, keepdim=True)).exp()
        case op.Upsample():
            rows = _sampling(problem.mode, problem.h, problem.p, problem.rows)
            columns = _sampling(problem.mode, problem.w, problem.q, problem.columns)
            value = torch.einsum("ih,jw,nhwc->nijc", rows, columns, x)
    return value


def _clipped(size: int, window: int, stride: int, pad: int, count: int) -> list[slice]:
    """Return the positions of a window, clipped to the image."""
    starts = [i * stride - pad for i in range(count)]
    return [slice(max(0, start), min(size, start + window)) for start in starts]


def _parts(size: int, count: int) -> list[slice]:
    """Return the windows of an adaptive pool."""
    return [slice(math.floor(i * size / count), math.ceil((i + 1) * size / count)) for i in range(count)]


def _averages(x: torch.Tensor, rows: Sequence[slice], columns: Sequence[slice]) -> torch.Tensor:
    return torch.stack([torch.stack([x[:, r, c].mean((1, 2)) for c in columns], 1) for r in rows], 1)


def _concatenated(given: Mapping[str, torch.Tensor], pieces: Sequence[op.Piece], interleave: int = 1) -> torch.Tensor:
    """Return the channels of the pieces, one after the other, or of each group in turn."""
    channels = []
    for i, piece in enumerate(pieces):
        channels += [given[f"x{i}"][..., channel] for channel in range(piece.first, piece.end)]
    size = len(channels) // interleave
    order = [group * size + channel for channel in range(size) for group in range(interleave)]
    return torch.stack([channels[i] for i in order], -1)


def _normalized(problem: op.LayerNorm | op.GroupNorm, x: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x (n, h, w, c) with mean 0 and variance 1 in each pixel, or in each group of channels of an image."""
    by_group = isinstance(problem, op.GroupNorm)
    parts = x.unflatten(-1, (problem.groups if by_group else 1, -1))  # n, h, w, group, channel
    axes = (1, 2, 4) if by_group else (4,)
    centred = parts - parts.mean(axes, keepdim=True)
    return (centred / (centred.square().mean(axes, keepdim=True) + eps).sqrt()).flatten(3)


def _group_statistics(problem: op.GroupStatistics, x: torch.Tensor, eps: float) -> torch.Tensor:
    """Return mean and factor (n, 2, c) of each group of channels of x (n, h, w, c)."""
    groups = x.unflatten(-1, (problem.groups, -1))
    mean = groups.mean((1, 2, 4), keepdim=True)
    factor = 1 / ((groups - mean).square().mean((1, 2, 4), keepdim=True) + eps).sqrt()
    of_channels = groups.new_ones(groups.shape[0], 1, 1, *groups.shape[3:])
    return torch.cat([(mean * of_channels).flatten(3), (factor * of_channels).flatten(3)], 1).flatten(1, 2)


def _statistics(given: Mapping[str, torch.Tensor], eps: float) -> torch.Tensor:
    """Return mean, variance, factor, scale and shift (5, c) of x (n, h, w, c)."""
    pixels = given["x"].flatten(0, 2)
    mean = pixels.sum(0) / len(pixels)
    squares = (pixels - mean).square().sum(0)
    variance = squares / max(len(pixels) - 1, 1)
    factor = 1 / (squares / len(pixels) + eps).sqrt()
    scale = given["weight"] * factor
    return torch.stack([mean, variance, factor, scale, given["bias"] - mean * scale])


def _active(
    problem: op.BatchNormGradientSums | op.BatchNormGradient, given: Mapping[str, torch.Tensor], gradient: torch.Tensor
) -> torch.Tensor:
    """Return a gradient where the ReLU behind the normalization is active, and 0 elsewhere."""
    if problem.relu == 0:
        return gradient
    *_, scale, shift = given["statistics"].float()
    after = given["z"] if problem.relu == 2 else scale * given["x"].float() + shift
    return torch.where(after > 0, gradient, 0.0)


def _gradient_sums(problem: op.BatchNormGradientSums, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the sums `y` (4, c) of a batch normalization's gradient, and `dz` (n, h, w, c) where it is stored."""
    mean, _, factor, scale, _ = given["statistics"]
    gradient = given["dy"] + given["dy2"] if problem.gradients == 2 else given["dy"]
    dz = _active(problem, given, gradient)
    by_bias = dz.sum((0, 1, 2))
    by_weight = torch.einsum("nhwc,nhwc->c", dz, given["x"] - mean) * factor
    pixels = problem.n * problem.h * problem.w
    slope = -scale * factor * by_weight / pixels
    y = torch.stack([by_bias, by_weight, slope, -scale * by_bias / pixels - slope * mean])
    return {"y": y, "dz": dz}


def _relu_gradient_sums(problem: op.ReluGradientSums, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the gradient `y` (n, h, w, c) of a ReLU's input, and the `sums` (n, rows, c) over each image."""
    gradient = given["dy"].clone()
    if problem.pool:
        rows = _clipped(problem.h, problem.pool, problem.stride, problem.pad, problem.p)
        columns = _clipped(problem.w, problem.pool, problem.stride, problem.pad, problem.q)
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                gradient[:, row, column] += given["pooled"][:, i, j, None, None] / problem.pool**2
    y = gradient.masked_fill(given["inactive"].long() & 1 == 1, 0)
    summed = [gradient, y]
    if problem.product:
        summed += [y * given["factor"], given["factor"]]
    return {"y": y, "sums": torch.stack([value.flatten(1, 2).sum(1) for value in summed], 1)}


def _sampling(mode: str, size: int, made: int, ratio: tuple[int, int]) -> torch.Tensor:
    """Return the matrix (made, size) that resizes one axis; exact positions, one output pixel at a time."""
    matrix = torch.zeros(made, size, dtype=torch.float64)
    for i in range(made):
        half = Fraction(1, 2) if mode in ("nearest_exact", "bilinear") else Fraction(0)
        position = max(Fraction(0), (i + half) * Fraction(*ratio) - (half if mode == "bilinear" else 0))
        low = min(size - 1, math.floor(position))
        share = float(position - low) if mode.startswith("bilinear") else 0.0
        matrix[i, low] += 1 - share
        matrix[i, min(size - 1, low + 1)] += share
    return matrix


def _depthwise(
    x: torch.Tensor, weight: torch.Tensor, problem: op.ExpandDepthwise | op.InvertedResidual
) -> torch.Tensor:
    """Return a convolution with one filter for each channel, computed from its windows."""
    (down, right), (top, left) = problem.stride, problem.pad
    windows = F.pad(x, (0, 0, left, left, top, top)).unfold(1, problem.r, down).unfold(2, problem.s, right)
    return torch.einsum("npqkrs,krs->npqk", windows, weight.squeeze(1))


def _dense(x: torch.Tensor, weight: torch.Tensor, stride: tuple[int, int], pad: tuple[int, int]) -> torch.Tensor:
    """Return a convolution of x (n, h, w, c) without groups, computed from its windows."""
    _, _, r, s = weight.shape
    padded = F.pad(x, (0, 0, pad[1], pad[1], pad[0], pad[0]))
    windows = padded.unfold(1, r, stride[0]).unfold(2, s, stride[1])
    return torch.einsum("npqcrs,kcrs->npqk", windows, weight)


def _largest(
    x: torch.Tensor, window: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int], shape: tuple[int, ...]
) -> torch.Tensor:
    """Return the max pool of x (n, h, w, c). Each window is clipped to the image."""
    _, h, w, _ = x.shape
    y = torch.empty(shape, dtype=x.dtype)
    for i in range(shape[1]):
        for j in range(shape[2]):
            top, left = i * stride[0] - pad[0], j * stride[1] - pad[1]
            rows, columns = slice(max(0, top), min(h, top + window[0])), slice(max(0, left), min(w, left + window[1]))
            y[:, i, j] = x[:, rows, columns].amax((1, 2))
    return y


def _pool_with_places(problem: op.MaxPool2dPlaces, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the largest values of windows of x (n, h, w, c) without NaN, and the numbers of the first of them."""
    side = (problem.r, problem.s)
    behind = [
        max(0, (count - 1) * step + size - pad - extent)
        for count, step, size, pad, extent in zip(
            (problem.p, problem.q), problem.stride, side, problem.pad, (problem.h, problem.w), strict=True
        )
    ]
    padded = F.pad(x, (0, 0, problem.pad[1], behind[1], problem.pad[0], behind[0]), value=-math.inf)
    windows = padded.unfold(1, side[0], problem.stride[0]).unfold(2, side[1], problem.stride[1])
    windows = windows[:, : problem.p, : problem.q].flatten(-2)
    y = windows.amax(-1)
    return {"y": y, "places": (windows == y[..., None]).double().argmax(-1).double()}


def _places_gradient(problem: op.MaxPool2dPlacesGradient, places: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """Return dx (n, h, w, c): dy (n, p, q, c) at the pixels of its places, as far as these are in the image."""
    value = torch.zeros(problem.output_shape, dtype=dy.dtype)
    for i, j, r, s in itertools.product(*map(range, (problem.p, problem.q, problem.r, problem.s))):
        h, w = i * problem.stride[0] - problem.pad[0] + r, j * problem.stride[1] - problem.pad[1] + s
        if 0 <= h < problem.h and 0 <= w < problem.w:
            value[:, h, w] += dy[:, i, j] * (places[:, i, j] == r * problem.s + s)
    return value


def _gradient(
    problem: op.Conv2dDgrad | op.Conv2dWgrad, x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, of: torch.Tensor
) -> torch.Tensor:
    """Return the gradient of sum(dy * conv(x, weight)) with respect to `of`, channels last, by autograd."""
    y = F.conv2d(x, weight, None, problem.stride, problem.pad, problem.dilation, problem.groups)
    (gradient,) = torch.autograd.grad((y * dy.movedim(-1, 1)).sum(), of)
    return gradient.movedim(1, -1)
