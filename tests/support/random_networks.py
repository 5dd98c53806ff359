"""Draws small random networks out of all operators that capture knows, and of some that are left to torch."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from random_modules import FUNCTIONS, JOINS, Constant, Function, Join, LastAxis, Reused, Shared, SqueezeExcite
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
