"""Draws small random networks out of all operators that capture knows, and of some that are left to torch."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from autotune.ir.epilogue_steps import define_step
from fused_resnet import Activation

BLOCKS = 3
"""Default of the most blocks of a network; the capture of a block takes about 50 ms."""

MAX_PARTS, MAX_DEPTH = 2, 2
"""Most parts of a block, and of branches inside branches."""

_PADDINGS = ("zeros", "zeros", "zeros", "zeros", "reflect", "replicate", "circular")


def draw(seed: int, blocks: int = BLOCKS) -> tuple[nn.Module, torch.Tensor]:
    """Return a random network in eval mode and an input for it, always the same for a seed, in float32 on the CPU.

    Args:
        seed: Decides everything.
        blocks: Most blocks of the network.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        rng = random.Random(seed)
        draft = _Draft(rng)
        parts = draft.perceptron() if rng.random() < 0.08 else draft.network(blocks)
        model = nn.Sequential(*parts).eval()
        for parameter in model.parameters():
            if parameter.dim() <= 1:
                nn.init.normal_(parameter, 0, 0.5)
        return model, torch.randn(draft.input_shape)


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


# -- drawing -----------------------------------------------------------------------------------------------------------

Make = Callable[[], nn.Module]


class _Draft:
    """A network under construction. `value` is an activation behind the parts so far, which tells their shape."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        n, c = rng.randint(1, 4), rng.choice((1, 2, 3, 3, 4, 6, 8))
        h = rng.choice((4, 5, 7, 8, c if c > 3 else 6))
        self.input_shape: tuple[int, ...] = (n, c, h, rng.choice((h, h, 5, c if c > 3 else 9)))
        self.value = torch.zeros(self.input_shape)

    def network(self, blocks: int) -> list[nn.Module]:
        """Return blocks that keep the shape, blocks that change it, and a tail."""
        parts = [self._stem()] if self.rng.random() < 0.25 else []
        for _ in range(self.rng.randint(1, blocks)):
            parts.append(self._block(0))
            if self.rng.random() < 0.6 and (changed := self._first_that_fits(self._changing())):
                parts.append(changed)
        return [*parts, *self._tail()]

    def perceptron(self) -> list[nn.Module]:
        """Return linear layers for inputs of two dimensions."""
        n, c = self.rng.randint(2, 5), self.rng.choice((1, 5, 8))
        self.input_shape = (n, c)
        parts: list[nn.Module] = []
        for _ in range(self.rng.randint(1, 3)):
            k = self.rng.choice((1, 3, 8, 10))
            parts.append(nn.Linear(c, k, bias=self._chance(0.7)))
            parts.append(self.rng.choice((self._norm1d, lambda _: self._plain_function()))(k))
            c = k
        return parts

    def _take(self, part: nn.Module) -> bool:
        """Return whether the part accepts the value, which is then the part's result."""
        try:
            value = part.eval()(self.value)
        except (RuntimeError, ValueError):  # for example a window that is larger than the image
            return False
        if value.numel() == 0:
            return False
        self.value = value
        return True

    def _first_that_fits(self, makes: Sequence[Make]) -> nn.Module | None:
        for make in self.rng.sample(list(makes), len(makes)):
            if self._take(part := make()):
                return part
        return None

    def _chance(self, share: float) -> bool:
        return self.rng.random() < share

    # -- parts that keep the shape --------------------------------------------------------------------------------

    def _block(self, depth: int) -> nn.Sequential:
        return nn.Sequential(*(self._same(depth) for _ in range(self.rng.randint(1, MAX_PARTS))))

    def _same(self, depth: int) -> nn.Module:
        """Return a part that keeps the shape, after branches of their own where there may be more."""
        rng, (n, c, h, w) = self.rng, tuple(self.value.shape)
        makes: dict[Make, float] = {
            lambda: self._conv(c, c): 3,
            lambda: nn.Sequential(self._conv(c, c), self._norm(c), self._function()): 3,
            lambda: nn.Sequential(self._norm(c), self._function(), self._conv(c, c)): 2,  # pre-activation
            lambda: nn.Sequential(self._depthwise(c), self._norm(c), self._conv(c, c, side=1)): 1,
            lambda: self._norm(c): 1,
            self._function: 3,
            lambda: self._squeeze_excite(c): 2,
            lambda: self._constant(n, c, h, w): 1.5,
            lambda: self._custom_step(c): 0.5,
            lambda: self._other(c): 1.5,
        }
        if depth < MAX_DEPTH:
            joins = [name for name in JOINS if "cat" not in name]
            makes |= {
                lambda: Join(self._block(depth + 1), self._skip(depth), rng.choice(joins)): 3,
                lambda: Reused(self._same(depth + 1), self._same(depth + 1), self._same(depth + 1)): 0.7,
                lambda: Shared(self._same(depth + 1)): 0.7,
            }
        while True:
            [make] = rng.choices(list(makes), list(makes.values()))
            before = self.value
            part = make()
            self.value = before
            if self._take(part) and self.value.shape == before.shape:
                return part
            self.value = before

    def _skip(self, depth: int) -> nn.Module:
        return self._block(depth + 1) if self._chance(0.5) else nn.Identity()

    def _conv(self, c: int, k: int, side: int | None = None) -> nn.Module:
        """Return a convolution that keeps height and width."""
        rng = self.rng
        size = side or rng.choice((1, 1, 3, 3, 5))
        dilation = rng.choice((1, 1, 2)) if size > 1 else 1
        pad: Any = "same" if self._chance(0.1) else dilation * (size // 2)
        mode: Any = rng.choice(_PADDINGS) if size > 1 else "zeros"
        return nn.Conv2d(
            c, k, size, 1, pad, dilation, self._groups(c, k), bias=self._chance(0.6), padding_mode=mode
        )  # fmt: skip

    def _depthwise(self, c: int) -> nn.Module:
        return nn.Conv2d(c, c, 3, 1, 1, groups=c, bias=self._chance(0.3))

    def _groups(self, c: int, k: int) -> int:
        fitting = [groups for groups in (2, c) if c % groups == 0 and k % groups == 0]
        return self.rng.choice(fitting) if fitting and self._chance(0.35) else 1

    def _norm(self, c: int) -> nn.Module:
        return self._random_statistics(nn.BatchNorm2d(c, self.rng.choice((1e-5, 1e-3, 0.1)), affine=self._chance(0.8)))

    def _norm1d(self, c: int) -> nn.Module:
        return self._random_statistics(nn.BatchNorm1d(c))

    def _random_statistics(self, norm: nn.BatchNorm1d | nn.BatchNorm2d) -> nn.Module:
        assert norm.running_mean is not None and norm.running_var is not None
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.05, 2)
        return norm.eval()

    def _function(self) -> nn.Module:
        return Function(self.rng.choice(list(FUNCTIONS)))

    def _plain_function(self) -> nn.Module:
        return Function(self.rng.choice(list(FUNCTIONS)[:20]))

    def _squeeze_excite(self, c: int) -> nn.Module:
        hidden, linear, hard = self.rng.choice((1, 2, 4)), self._chance(0.5), self._chance(0.2)
        return SqueezeExcite(c, hidden, linear=linear, hard=hard, gate_first=self._chance(0.3))

    def _constant(self, n: int, c: int, h: int, w: int) -> nn.Module:
        shapes = ((1,), (1, c, 1, 1), (c, 1, 1), (1, 1, 1, 1), (1, c, h, w), (w,), (h, 1), (n, 1, 1, 1), (n, c, 1, 1))
        names = ("a + b", "b + a", "a - b", "a * b", "maximum", "value - x")
        return Constant(self.rng.choice(shapes), self.rng.choice(names))

    def _custom_step(self, c: int) -> nn.Module:
        step = define_step(
            "random_network_step",
            cuda="fmaxf(x, slope * x) + shift",
            torch="torch.maximum(x, slope * x) + shift",
            params={"slope": "scalar", "shift": "channel"},
        )
        return Activation(step, slope=0.3, shift=torch.randn(c))

    def _other(self, c: int) -> nn.Module:
        makes: Sequence[Make] = (
            lambda: nn.MaxPool2d(3, 1, 1),
            lambda: nn.AvgPool2d(3, 1, 1),
            lambda: nn.AvgPool2d(3, 1, 1, count_include_pad=False),
            lambda: nn.PReLU(c),
            lambda: nn.GroupNorm(1, c),
            lambda: nn.GroupNorm(2 if c % 2 == 0 else 1, c),
            lambda: nn.InstanceNorm2d(c, eps=1e-1),
            lambda: LastAxis(c, norm=self._chance(0.7), pixels=self._chance(0.5)),
            lambda: LastAxis(c, norm=self._chance(0.7), pixels=self._chance(0.5)),
            lambda: nn.Dropout(0.3),
            nn.Identity,
        )
        return self.rng.choice(makes)()

    # -- parts that change the shape ------------------------------------------------------------------------------

    def _stem(self) -> nn.Module:
        """Return the first layers of a ResNet: a convolution of the image, its activation, and a max pool."""
        side, k = self.rng.choice((3, 5, 7)), self.rng.choice((4, 8))
        conv = nn.Conv2d(self.value.shape[1], k, side, self.rng.choice((1, 2)), side // 2, bias=self._chance(0.5))
        stem = nn.Sequential(conv, self._norm(k), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        assert self._take(stem)
        return stem

    def _changing(self) -> list[Make]:
        rng, c, k = self.rng, int(self.value.shape[1]), self.rng.choice((1, 2, 4, 6, 8))
        return [
            lambda: nn.Conv2d(c, k, rng.choice((1, 2, 3)), 2, rng.choice((0, 1)), groups=self._groups(c, k)),
            lambda: nn.Conv2d(c, k, (3, 1), (2, 1), (0, 1), bias=self._chance(0.5)),
            lambda: nn.Conv2d(c, k, 1, bias=self._chance(0.5)),
            lambda: nn.Sequential(nn.AvgPool2d(2, 2), nn.Conv2d(c, k, 1, bias=False), self._norm(k)),
            lambda: Join(self._conv(c, 3), self._conv(c, 5), "cat"),
            lambda: Join(nn.Identity(), self._conv(c, 4), "cat"),
            lambda: Join(self._conv(c, 3), self._conv(c, 3), "cat and shuffle"),
            lambda: nn.MaxPool2d(2),
            lambda: nn.MaxPool2d(3, 2, 1),
            lambda: nn.MaxPool2d(3, 2, 0, ceil_mode=True),
            lambda: nn.MaxPool2d(2, 1, dilation=2),
            lambda: nn.AvgPool2d((3, 2), (2, 1), (1, 0)),
            lambda: nn.AvgPool2d(3, 2, 0, ceil_mode=True),
            lambda: nn.AvgPool2d(2, divisor_override=3),
            lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
            lambda: nn.AdaptiveAvgPool2d((2, 2)),
            lambda: nn.AdaptiveAvgPool2d((3, 4)),
            lambda: nn.AdaptiveMaxPool2d((2, 2)),
            lambda: nn.Upsample(scale_factor=2),
            lambda: nn.Upsample(scale_factor=rng.choice((0.7, 1.3, 2)), mode="bilinear"),
            lambda: nn.Upsample(size=(rng.randint(2, 9), rng.randint(2, 9)), mode="bilinear", align_corners=True),
            lambda: nn.Upsample(size=(rng.randint(2, 9), rng.randint(2, 9)), mode="nearest-exact"),
            lambda: nn.PixelShuffle(2),
            lambda: nn.PixelUnshuffle(2),
            lambda: nn.ConvTranspose2d(c, 4, 2, 2),
            lambda: nn.ConvTranspose2d(c, 4, 3, 2, 1, rng.randint(0, 1), bias=self._chance(0.5)),
            lambda: nn.Sequential(nn.ConvTranspose2d(c, 4, (2, 3), (2, 1), bias=False), self._norm(4), nn.ReLU()),
        ]

    def _tail(self) -> list[nn.Module]:
        """Return nothing, linear layers behind a global pool or a flattened image, or a reshape."""
        _, c, h, w = self.value.shape
        classes, bias = self.rng.choice((1, 5, 10)), self._chance(0.7)
        between: nn.Module = self._norm1d(8) if self._chance(0.5) else self._plain_function()
        tails: dict[Callable[[], list[nn.Module]], float] = {
            lambda: []: 3,
            lambda: [nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(c, classes, bias)]: 4,
            lambda: [nn.Flatten(1), nn.Linear(c * h * w, 8, bias), between, nn.Linear(8, 3)]: 2,
            lambda: [nn.Conv2d(c, classes, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(1)]: 1,
            lambda: [self._plain_function(), nn.Flatten(2)]: 0.5,
            lambda: [nn.Flatten(2), nn.Linear(h * w, 4, bias)]: 0.5,
        }
        [make] = self.rng.choices(list(tails), list(tails.values()))
        return make()
