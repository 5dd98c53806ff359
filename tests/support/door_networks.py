"""Tiny networks that are tuned through every door; `--model tests/support/door_networks.py:NAME` names them, too.

The first convolution of most is dilated: one that is not has an alternative of its own, a stem.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class Tailed(nn.Module):
    """Two convolutions, their global average, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 16, 3, padding=2, dilation=2), nn.Conv2d(16, 16, 3, 2, 1)
        self.tail = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return five numbers for each sample."""
        y = functional.relu(self.second(functional.relu(self.first(x))))
        result: Tensor = self.tail(y.mean((2, 3)))
        return result


class Residual(nn.Module):
    """A convolution, and a second one with a sum around it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 16, 3, padding=2, dilation=2), nn.Conv2d(16, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return 16 channels for each pixel."""
        y = functional.relu(self.first(x))
        return functional.relu(y + self.second(y))


class Normed(nn.Module):
    """A convolution with a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 16, 3, padding=2, dilation=2, bias=False), nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        """Return 16 channels for each pixel."""
        return functional.relu(self.norm(self.conv(x)))


class Wrapped(nn.Module):
    """One layer and a ReLU."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's result where it is positive."""
        return functional.relu(self.layer(x))


def tailed() -> nn.Module:
    """Return a Tailed in eval mode."""
    return Tailed().eval()


def residual() -> nn.Module:
    """Return a Residual in eval mode."""
    return Residual().eval()


def normed() -> nn.Module:
    """Return a Normed in eval mode."""
    return Normed().eval()


def image() -> nn.Module:
    """Return a convolution of images with three channels, in a module of its own class."""
    return Wrapped(nn.Conv2d(3, 16, 3, padding=1)).eval()


def sequential() -> nn.Module:
    """Return a network whose class is one of torch's."""
    return nn.Sequential(nn.Conv2d(8, 16, 3, padding=2, dilation=2), nn.ReLU(), nn.Conv2d(16, 8, 1)).eval()
