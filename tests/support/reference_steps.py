"""An independent reference for all epilogue steps, in float64, and two steps of the tests' own.

It shares no code with the reference in autotune.ir.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F

from autotune.ir.epilogue_steps import define_step

SCALAR = "a scalar"


def sigmoid(v: torch.Tensor) -> torch.Tensor:
    return 1 / (1 + torch.exp(-v))


def normal_cdf(v: torch.Tensor) -> torch.Tensor:
    return 0.5 * torch.erfc(-v / math.sqrt(2))


def cubic(v: torch.Tensor) -> torch.Tensor:
    return math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)


# Step -> names of its operands without their number, and its formula.
MEANINGS: dict[str, tuple[tuple[str, ...], Callable[..., torch.Tensor]]] = {
    "bias": (("bias",), lambda v, b: v + b),
    "scale": (("scale",), lambda v, s: v * s),
    "add": (("add",), lambda v, t: v + t),
    "add_scalar": ((SCALAR,), lambda v, s: v + s),
    "mul_scalar": ((SCALAR,), lambda v, s: v * s),
    "clamp": ((SCALAR, SCALAR), lambda v, low, high: v.clamp_min(low).clamp_max(high)),
    "relu": ((), lambda v: v.clamp_min(0)),
    "relu6": ((), lambda v: v.clamp_min(0).clamp_max(6)),
    "leaky_relu": ((SCALAR,), lambda v, slope: torch.where(v > 0, v, slope * v)),
    "sigmoid": ((), sigmoid),
    "hardsigmoid": ((), lambda v: (v / 6 + 0.5).clamp(0, 1)),
    "silu": ((), lambda v: v * sigmoid(v)),
    "hardswish": ((), lambda v: v * (v / 6 + 0.5).clamp(0, 1)),
    "tanh": ((), lambda v: 2 * sigmoid(2 * v) - 1),
    "gelu": ((), lambda v: v * normal_cdf(v)),
    "gelu_tanh": ((), lambda v: v * sigmoid(2 * cubic(v))),
    "sub": (("sub",), lambda v, t: v - t),
    "mul": (("mul",), lambda v, t: v * t),
    "relu_mask": (("relu_mask",), lambda v, t: torch.where(t <= 0, 0, v)),
    "prelu": (("prelu",), lambda v, slope: torch.where(v > 0, v, slope * v)),
    "elu": ((SCALAR, SCALAR), lambda v, alpha, rate: torch.where(v > 0, v, alpha * (torch.exp(rate * v) - 1))),
    "softplus": (
        (SCALAR, SCALAR),
        lambda v, beta, threshold: torch.where(v * beta > threshold, v, torch.log1p(torch.exp(v * beta)) / beta),
    ),
    "mish": ((), lambda v: v * torch.tanh(torch.log1p(torch.exp(v)))),
    "abs": ((), lambda v: v.clamp_min(0) - v.clamp_max(0)),
    # custom steps, defined below
    "swish_b": ((SCALAR,), lambda v, beta: v * sigmoid(beta * v)),
    "bent": (
        (SCALAR, "slope.", "shift.", SCALAR),
        lambda v, up, m, b, c: torch.where(v > b, v - b, 0) * up + (v - b).clamp_max(0) * m + c,
    ),
}

# Steps that only some operators take, one with two operands, and one that makes chains overflow.
OTHERS: dict[str, tuple[tuple[str, ...], Callable[..., torch.Tensor]]] = {
    "add_image": (("add_image",), lambda v, t: torch.stack([v[i] + t[i].flatten() for i in range(len(v))])),
    "mul_image": (("mul_image",), lambda v, t: torch.stack([v[i] * t[i].flatten() for i in range(len(v))])),
    "add_pixel": (("add_pixel",), lambda v, t: torch.stack([part + t[..., 0] for part in v.unbind(-1)], -1)),
    "mul_pixel": (("mul_pixel",), lambda v, t: torch.stack([part * t[..., 0] for part in v.unbind(-1)], -1)),
    "add_scaled": (("add_scaled", "add_scaled"), lambda v, t, scale: v + scale * t),
    "exp": ((), lambda v: torch.special.exp2(v * math.log2(math.e))),
}
BROADCAST = tuple(name for name in OTHERS if name.endswith(("_image", "_pixel")))

STEPS = (*MEANINGS, "store")

define_step(
    "swish_b",
    cuda="x / (1.f + expf(-beta * x))",
    torch="x * torch.sigmoid(beta * x)",
    params={"beta": "scalar"},
)

define_step(
    "bent",
    cuda="fmaf(x > shift ? up : slope, x - shift, jump)",
    torch="torch.where(x > shift, up, slope) * (x - shift) + jump",
    params={"up": "scalar", "slope": "channel", "shift": "channel", "jump": "scalar"},
)


def run_chain(
    names: Sequence[str],
    value: torch.Tensor,
    given: Mapping[str, torch.Tensor],
    scalars: Sequence[float],
    conv: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """Apply the named epilogue steps to a value; return the result `y` and the tensor of each `store` step.

    conv: what the step `conv` computes; None for the 3x3 convolutions of a residual block.
    """
    stored, kept = {}, None
    pointer = scalar = 0
    filters = iter(("weight1", "weight2") if names.count("conv") == 2 else ("weight2",))
    for name in names:
        if name == "store":
            stored[f"store{pointer}"] = value
            pointer += 1
            continue
        if name == "gate":
            value = gated(value, given)
            continue
        if name == "conv":
            value = conv(value) if conv else convolved(value, given[next(filters)])
            continue
        if name == "keep":
            kept = value
            continue
        if name == "add_kept":
            value = value + kept
            continue
        if name == "project":
            value = value + (given["projected"] if "projected" in given else _projected_pool(given))
            continue
        wanted, function = (MEANINGS | OTHERS)[name.partition("@")[0]]
        arguments = []
        for operand in wanted:
            arguments.append(scalars[scalar] if operand == SCALAR else given[f"{operand}{pointer}"])
            scalar += operand == SCALAR
            pointer += operand != SCALAR
        value = function(value, *arguments)
    return {"y": value, **stored}


def gated(x: torch.Tensor, given: Mapping[str, torch.Tensor], act: str = "relu", gate: str = "sigmoid") -> torch.Tensor:
    """Return x multiplied by its squeeze-and-excitation gate; act, gate: names of steps."""
    return x * gates(x, given, act, gate)


def gates(x: torch.Tensor, given: Mapping[str, torch.Tensor], act: str, gate: str) -> torch.Tensor:
    """Return the gates (n, 1, 1, c) of x."""
    folded = "squeezed" in given
    squeezed = given["squeezed"] if folded else x.sum((1, 2)) / (x.shape[1] * x.shape[2]) @ given["w1"].T
    hidden = MEANINGS[act][1](squeezed + given["b1"])
    return MEANINGS[gate][1](hidden @ given["w2"].T + given["b2"])[:, None, None, :]


def _projected_pool(given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the shortcut of a block that halves its image: 2x2 average pool, then 1x1 convolution."""
    return _windows(given["x"], 2).mean((-1, -2)) @ given["projection"].flatten(1).T


def _windows(x: torch.Tensor, stride: int) -> torch.Tensor:
    """Return the 3x3 windows of x (n, h, w, c) with padding 1, as (n, p, q, c, 3, 3)."""
    return F.pad(x, (0, 0, 1, 1, 1, 1)).unfold(1, 3, stride).unfold(2, 3, stride)


def convolved(x: torch.Tensor, weight: torch.Tensor, stride: int = 1) -> torch.Tensor:
    """Return a 3x3 convolution with padding 1, computed as a matrix product of its windows."""
    return _windows(x, stride).flatten(3) @ weight.flatten(1).T
