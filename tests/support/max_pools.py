"""Max pools in training: problems, their operands, and what autograd makes of them."""

import torch
import torch.nn.functional as F

from autotune.ir import DTYPES

ROUNDING = {"f16": 2**-11, "bf16": 2**-8, "f32": 2**-23}
SUM_ROUNDING = 1e-6  # of at most 9 gradients in float32
# Problems, and filter, stride, vector, columns and threads of the kernel.
CASES = {
    "resnet": ("n=2 h=14 w=12 c=16 r=3 s=3 stride=2 pad=1 dtype=f16", (3, 2, 8, 1, 64)),
    "odd sides": ("n=2 h=13 w=11 c=8 r=3 s=3 stride=2 pad=1 dtype=bf16", (3, 2, 4, 2, 64)),
    "no padding": ("n=1 h=12 w=13 c=6 r=3 s=3 stride=2 dtype=f16", (3, 2, 2, 4, 64)),
    "ceil": ("n=2 h=10 w=12 c=4 r=3 s=3 stride=2 ceil=1 dtype=f32", (3, 2, 4, 2, 64)),
    "ceil and padding": ("n=1 h=8 w=9 c=3 r=3 s=3 stride=2 pad=1 ceil=1 dtype=f16", (3, 2, 1, 2, 64)),
    "overlapping": ("n=2 h=7 w=9 c=8 r=3 s=3 stride=1 pad=1 dtype=f16", (3, 1, 4, 2, 64)),
    "overlapping, in float32": ("n=1 h=7 w=6 c=5 r=3 s=3 stride=1 dtype=f32", (3, 1, 1, 4, 64)),
    "apart": ("n=2 h=9 w=11 c=16 r=2 s=2 stride=2 dtype=f16", (2, 2, 8, 2, 64)),
    "apart, with padding and ceil": ("n=1 h=8 w=7 c=8 r=2 s=2 stride=2 pad=1 ceil=1 dtype=bf16", (2, 2, 2, 1, 64)),
    "pairs": ("n=1 h=6 w=9 c=8 r=2 s=2 stride=1 pad=1,0 dtype=f16", (2, 1, 8, 2, 64)),
    "any window": ("n=1 h=9 w=8 c=8 r=4 s=3 stride=1,2 pad=2,0 dtype=f16", (0, 0, 4, 1, 64)),
    "pixels in no window": ("n=2 h=11 w=10 c=3 r=2 s=1 stride=3,2 pad=1,0 ceil=1 dtype=bf16", (0, 0, 1, 1, 64)),
    "one window": ("n=1 h=5 w=4 c=8 r=5 s=4 stride=5,4 dtype=f32", (0, 0, 2, 1, 64)),
    "one pixel": ("n=1 h=1 w=1 c=8 r=3 s=3 stride=2 pad=1 dtype=f16", (3, 2, 8, 2, 64)),
}
WINDOW = "this kernel is compiled for a 3x3 window with stride 2"
REFUSALS = {
    "c=16 r=3 s=3 stride=2": None,
    "c=12 r=3 s=3 stride=2": "c must be a multiple of the vector of 8 elements",
    "c=16 r=3 s=2 stride=2": WINDOW,
    "c=16 r=3 s=3 stride=1": WINDOW,
}
"""Sizes of a problem -> why a kernel for 3x3 windows with stride 2 and vectors of eight channels refuses it."""
KINDS = ("ties", "spread", "infinite", "nan")


def operands(problem, kind):
    """Return dy and x. Of x, `ties` has three values, and `infinite` and `nan` also have windows of them alone."""
    generator = torch.Generator().manual_seed(7)
    dtype = DTYPES[problem.dtype]
    n, c = problem.n, problem.c
    shapes = {"x": (n, problem.h, problem.w, c), "dy": (n, problem.p, problem.q, c)}
    x = torch.randint(-1, 2, shapes["x"], generator=generator).to(dtype)
    if kind == "spread":
        x = torch.randn(shapes["x"], generator=generator).to(dtype)
    if kind in ("infinite", "nan"):
        chosen = torch.rand(shapes["x"], generator=generator)
        x[chosen < 0.6] = float("-inf")
        x[0, : problem.h // 2 + 1, : problem.w // 2 + 1] = float("-inf")
        x[chosen > 0.95] = float("inf")
    if kind == "nan":
        x[torch.rand(shapes["x"], generator=generator) < 0.25] = float("nan")
    if kind == "ties":
        x[torch.rand(shapes["x"], generator=generator) < 0.2] = -0.0
        dy = torch.randint(-8, 9, shapes["dy"], generator=generator).to(dtype)
    else:
        dy = torch.randn(shapes["dy"], generator=generator).to(dtype)
    return {"dy": dy, "x": x}


def gradient(problem, tensors):
    """Return dx by torch's autograd in float64."""
    x = tensors["x"].double().movedim(-1, 1).contiguous().requires_grad_()
    y = F.max_pool2d(x, (problem.r, problem.s), problem.stride, problem.pad, ceil_mode=bool(problem.ceil))
    y.backward(tensors["dy"].double().movedim(-1, 1))
    return x.grad.movedim(1, -1)


def assert_is_gradient(found, problem, tensors, kind, said):
    wanted = gradient(problem, tensors)
    assert wanted.any()
    exact = kind == "ties"  # sums of small integers
    limits = {"rtol": 0 if exact else ROUNDING[problem.dtype], "atol": 0 if exact else SUM_ROUNDING}
    torch.testing.assert_close(found.double(), wanted, **limits, msg=lambda message: f"{said}: {message}")
