"""What several test files use: an independent reference, candidates of built kernels, and scripts as processes."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from autotune import build, emit
from autotune.epilogue import Epilogue
from autotune.families import family
from autotune.families.base import Config, Kernel
from autotune.problem import AvgPool2d, Conv2d, Conv2dDgrad, Conv2dWgrad, Gemm, Problem, SeTail, SpaceToDepth
from fused_resnet.binding import Candidate

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "scripts"


# -- the meaning of a problem, written a second time -------------------------------------------------------------------


def solve(problem: Problem, tensors: Mapping[str, torch.Tensor], scalars: Sequence[float]) -> dict[str, torch.Tensor]:
    """Every output of a problem, in float64 on the CPU; shares no code with autotune.reference."""
    given = {name: tensor.cpu().double() for name, tensor in tensors.items()}
    match problem:
        case Conv2d():
            x = given["x"].movedim(-1, 1)
            value = F.conv2d(
                x, given["weight"], None, problem.stride, problem.pad, problem.dilation, problem.groups
            ).movedim(1, -1)
        case Conv2dDgrad():
            x = torch.zeros(problem.n, problem.c, problem.h, problem.w, dtype=torch.float64, requires_grad=True)
            value = _gradient(problem, x, given["weight"], given["dy"], x)
        case Conv2dWgrad():
            shape = (problem.k, problem.c // problem.groups, problem.r, problem.s)
            weight = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
            value = _gradient(problem, given["x"].movedim(-1, 1), weight, given["dy"], weight)
        case Gemm():
            value = torch.einsum("mk,nk->mn", given["x"], given["weight"])
        case AvgPool2d():
            padded = F.pad(given["x"], (0, 0, problem.pad[1], problem.pad[1], problem.pad[0], problem.pad[0]))
            windows = padded.unfold(1, problem.r, problem.stride[0]).unfold(2, problem.s, problem.stride[1])
            value = windows.mean((-1, -2))
        case SpaceToDepth():
            value = F.pixel_unshuffle(given["x"], problem.block)  # channels come (c, dy, dx)
            n, _, p, q = value.shape
            value = value.reshape(n, problem.c, -1, p, q).permute(0, 3, 4, 2, 1).reshape(n, p, q, -1)
        case SeTail():
            mean = given["x"].sum((1, 2)) / (problem.h * problem.w)
            hidden = (mean @ given["w1"].T + given["b1"]).clamp_min(0)
            gate = 1 / (1 + torch.exp(-(hidden @ given["w2"].T + given["b2"])))
            value = given["x"] * gate[:, None, None, :]
    return _finish(problem.epilogue.names, value, given, scalars)


def _finish(
    names: Sequence[str], value: torch.Tensor, given: Mapping[str, torch.Tensor], scalars: Sequence[float]
) -> dict[str, torch.Tensor]:
    """Apply an epilogue's steps one after the other."""
    stored = {}
    pointer = scalar = 0
    for name in names:
        if name in ("bias", "scale", "add"):
            operand = given[f"{name}{pointer}"]
            value = value * operand if name == "scale" else value + operand
        elif name == "store":
            stored[f"store{pointer}"] = value
        elif name == "add_scalar":
            value = value + scalars[scalar]
        elif name == "mul_scalar":
            value = value * scalars[scalar]
        elif name == "relu":
            value = value.clamp_min(0)
        else:
            gate = 1 / (1 + torch.exp(-value))
            value = gate if name == "sigmoid" else value * gate
        pointer += name in ("bias", "scale", "add", "store")
        scalar += name in ("add_scalar", "mul_scalar")
    return {"y": value, **stored}


def _gradient(
    problem: Conv2dDgrad | Conv2dWgrad, x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, of: torch.Tensor
) -> torch.Tensor:
    """The gradient of sum(dy * conv(x, weight)) by `of`, channels last, from autograd on the forward pass."""
    y = F.conv2d(x, weight, None, problem.stride, problem.pad, problem.dilation, problem.groups)
    (gradient,) = torch.autograd.grad((y * dy.movedim(-1, 1)).sum(), of)
    return gradient.movedim(1, -1)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is expected, in float64; infinite where a value is missing."""
    actual, expected = actual.detach().cpu().double(), expected.detach().cpu().double()
    assert actual.shape == expected.shape
    error = float((actual - expected).norm() / expected.norm())
    return error if math.isfinite(error) else math.inf


STEPS = ("bias", "scale", "add", "store", "add_scalar", "mul_scalar", "relu", "sigmoid", "silu")


def random_epilogue(rng: random.Random) -> Epilogue:
    return Epilogue(tuple(rng.choices(STEPS, k=rng.randint(0, 5))))


# -- kernels -------------------------------------------------------------------


def built_paths(kernels: Iterable[Kernel], jobs: int = 2) -> dict[Kernel, Path]:
    """Build kernels, all of which must compile."""
    paths: dict[Kernel, Path] = {}
    for built in build.build(list(dict.fromkeys(kernels)), jobs):
        assert built.path, built.error
        paths |= dict.fromkeys(built.unit.kernels, built.path)
    return paths


def candidate_of(kernel: Kernel, path: Path, launch: Config) -> Candidate:
    """A built kernel's candidate for one set of launch values."""
    chosen = family(kernel.family)
    values = {parameter.name: int(launch[parameter.name]) for parameter in chosen.launch_parameters}
    layouts = chosen.weight_layouts(kernel.values)
    return Candidate(kernel.family, kernel.config, emit.symbol(kernel), chosen.kind, path, layouts, values)


# -- processes -------------------------------------------------------------------


def script(name: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run one of scripts/ to its end."""
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), *map(str, arguments)]
    return _run(command, **options)


def python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own to its end."""
    return _run([sys.executable, "-c", code], **options)


def _run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    settings = {"capture_output": True, "text": True, "timeout": 240, "cwd": ROOT, **options}
    return subprocess.run(command, check=False, **settings)
