"""Functions and modules of random networks: those that capture knows, and some that are left to torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import nn

# -- functions ---------------------------------------------------------------------------------------------------------


def _in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y += 1.0
    y *= 0.5
    return y


def _changed_below_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x + 0.0
    first = y[:, :1]
    y.mul_(2.0)
    return y + first


def _shuffled(x: torch.Tensor) -> torch.Tensor:
    n, c, *rest = x.shape
    return x if c % 2 else x.view(n, 2, c // 2, *rest).transpose(1, 2).reshape(x.shape)


FUNCTIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "relu in place": lambda x: F.relu(x * 1.0, inplace=True),
    "relu6": F.relu6,
    "sigmoid": torch.sigmoid,
    "hardsigmoid": F.hardsigmoid,
    "silu": F.silu,
    "x * sigmoid": lambda x: x * torch.sigmoid(x),
    "sigmoid * x": lambda x: torch.sigmoid(x) * x,
    "hardswish": F.hardswish,
    "hardsigmoid * x": lambda x: F.hardsigmoid(x) * x,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "leaky relu": lambda x: F.leaky_relu(x, 0.2),
    "negative slope": lambda x: F.leaky_relu(x, -0.3),
    "clamp": lambda x: x.clamp(-0.5, 0.7),
    "clamp min": lambda x: x.clamp(min=0.1),
    "clamp max": lambda x: torch.clamp_max(x, 0.3),
    "clamp crossed": lambda x: x.clamp(0.5, -0.5),
    "hardtanh": lambda x: F.hardtanh(x, -0.2, 0.9),
    "neg": torch.neg,
    "square": lambda x: x * x,
    "x + x": lambda x: x + x,
    "x - x / 2": lambda x: x - x * 0.5,
    "2 - x": lambda x: 2.0 - x,
    "x / 3": lambda x: x / 3.0,
    "add alpha": lambda x: torch.add(x, x, alpha=0.3),
    "sub alpha": lambda x: torch.sub(x, 1.5, alpha=2),
    "rsub": lambda x: torch.rsub(x, 1.0),
    "rsub alpha": lambda x: torch.rsub(x, 1.0, alpha=2),
    "add a size": lambda x: x + x.shape[0],
    "in place": _in_place,
    "changed below a view": _changed_below_a_view,
    "contiguous": lambda x: x.contiguous(),
    "elu": F.elu,
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.6),
    "softplus": F.softplus,
    "mish": F.mish,
    "abs": torch.abs,
    "exp": lambda x: torch.exp(-x.abs()),
    "swap halves": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "shuffle": _shuffled,
    "split and cat": lambda x: torch.cat(torch.split(x, [1, x.shape[1] - 1], 1)[::-1], 1) if x.shape[1] > 1 else x,
    "first doubled": lambda x: torch.cat([x[:, :1], x], 1)[:, :-1],
    "interleaved halves": lambda x: _shuffled(torch.cat([x, -x], 1))[:, : x.shape[1]],
    # left to torch, in part
    "spatial gate": lambda x: x * torch.sigmoid(x.mean(1, keepdim=True)),
    "1 / x": lambda x: 1.0 / (x.abs() + 1),
    "softmax": lambda x: F.softmax(x, 1),
    "maximum": lambda x: torch.maximum(x, -x),
    "where": lambda x: torch.where(x > 0, x, x * 0.1),
    "glu": lambda x: F.glu(torch.cat([x, x], 1), 1),
    "norm": lambda x: x / (x.norm(dim=1, keepdim=True) + 1e-1),
    "minus mean": lambda x: x - x.mean(0, keepdim=True),
    "flip": lambda x: x.flip(1),
    "transpose": lambda x: x.transpose(2, 3) if x.dim() == 4 and x.shape[2] == x.shape[3] else x,
}
"""Functions that keep the shape (n, c, ...); none has jumps, at which a rounding error would decide the result."""

JOINS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "a + b": lambda a, b: a + b,
    "b + a": lambda a, b: b + a,
    "a - b": lambda a, b: a - b,
    "a * b": lambda a, b: a * b,
    "relu(a + b)": lambda a, b: F.relu(a + b),
    "a + b + a": lambda a, b: a + b + a,
    "a += b": lambda a, b: a.clone().add_(b),
    "add alpha": lambda a, b: torch.add(a, b, alpha=0.5),
    "maximum": torch.maximum,
    "cat": lambda a, b: torch.cat([a, b], 1),
    "cat and shuffle": lambda a, b: _shuffled(torch.cat([a, b], 1)),
}
"""Functions of two branches; all but those with `cat` keep the shape."""


# -- modules -----------------------------------------------------------------------------------------------------------


class Function(nn.Module):
    """One of FUNCTIONS."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it."""
        return FUNCTIONS[self.name](x)

    def extra_repr(self) -> str:
        """Return its name."""
        return self.name


class Join(nn.Module):
    """Two branches that read one value."""

    def __init__(self, a: nn.Module, b: nn.Module, name: str) -> None:
        super().__init__()
        self.a, self.b, self.name = a, b, name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Join the results of both."""
        return JOINS[self.name](self.a(x), self.b(x))

    def extra_repr(self) -> str:
        """Return the function's name."""
        return self.name


class Reused(nn.Module):
    """A value that three readers have."""

    def __init__(self, first: nn.Module, a: nn.Module, b: nn.Module) -> None:
        super().__init__()
        self.first, self.a, self.b = first, a, b

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the readers make of it."""
        y = self.first(x)
        z: torch.Tensor = self.a(y) + self.b(y) + y
        return z


class Shared(nn.Module):
    """A module that is called twice."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call it on its own result."""
        y: torch.Tensor = self.part(self.part(x))
        return y


class Constant(nn.Module):
    """A parameter that is broadcast to the value."""

    def __init__(self, shape: Sequence[int], name: str) -> None:
        super().__init__()
        self.value, self.name = nn.Parameter(torch.randn(*shape)), name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Combine both."""
        value: torch.Tensor = self.value
        return value - x if self.name == "value - x" else JOINS[self.name](x, value)

    def extra_repr(self) -> str:
        """Return the function's name and the parameter's shape."""
        return f"{self.name}, {tuple(self.value.shape)}"


class SqueezeExcite(nn.Module):
    """A gate for each channel, of linear layers or 1x1 convolutions, as libraries of models write it."""

    def __init__(self, c: int, hidden: int, *, linear: bool, hard: bool, gate_first: bool) -> None:
        super().__init__()
        self.linear, self.hard, self.gate_first = linear, hard, gate_first
        self.a: nn.Module = nn.Linear(c, hidden) if linear else nn.Conv2d(c, hidden, 1)
        self.b: nn.Module = nn.Linear(hidden, c) if linear else nn.Conv2d(hidden, c, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale the channels."""
        mean = x.mean((2, 3)) if self.linear else F.adaptive_avg_pool2d(x, 1)
        gate = self.b(F.relu(self.a(mean)))
        gate = F.hardsigmoid(gate) if self.hard else torch.sigmoid(gate)
        gate = gate.view(*x.shape[:2], 1, 1)
        y: torch.Tensor = gate * x if self.gate_first else x * gate
        return y


class LastAxis(nn.Module):
    """Linear layers on the last axis of pixels (n, h, w, c) or of rows (n, h*w, c), added to the input (n, c, h, w)."""

    def __init__(self, c: int, *, norm: bool, pixels: bool) -> None:
        super().__init__()
        self.norm: nn.Module = nn.LayerNorm(c) if norm else nn.Identity()
        self.first, self.second, self.pixels = nn.Linear(c, 2 * c), nn.Linear(2 * c, c), pixels
        self.scale = nn.Parameter(torch.randn(c))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the layers and move the channels back."""
        rows = x.permute(0, 2, 3, 1) if self.pixels else x.flatten(2).transpose(1, 2)
        rows = self.scale * self.second(F.gelu(self.first(self.norm(rows))))
        moved = rows.permute(0, 3, 1, 2) if self.pixels else rows.transpose(1, 2).reshape(x.shape)
        y: torch.Tensor = x + moved
        return y
