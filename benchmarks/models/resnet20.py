"""ResNet-20 for images of 32 x 32 pixels (He et al. 2015, section 4.2), with 1x1 projections."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3x3 convolutions and a skip connection."""

    def __init__(self, c: int, k: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, k, 3, stride, 1, bias=False), nn.BatchNorm2d(k)
        self.conv2, self.bn2 = nn.Conv2d(k, k, 3, 1, 1, bias=False), nn.BatchNorm2d(k)
        self.skip = nn.Sequential()
        if stride != 1 or c != k:
            self.skip = nn.Sequential(nn.Conv2d(c, k, 1, stride, bias=False), nn.BatchNorm2d(k))

    def forward(self, x: Tensor) -> Tensor:
        """Compute (n, k, h / stride, w / stride) from (n, c, h, w)."""
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.skip(x))


class ResNet20(nn.Module):
    """Three stages of three blocks, with 16, 32 and 64 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        blocks, c = [], 16
        for k, stride in [(16, 1), (32, 2), (64, 2)]:
            for i in range(3):
                blocks.append(Block(c, k, stride if i == 0 else 1))
                c = k
        self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Compute (n, 10) from (n, 3, 32, 32)."""
        x = self.blocks(torch.relu(self.bn1(self.conv1(x))))
        return self.fc(x.mean((2, 3)))


def resnet20() -> nn.Module:
    """Return the network with random weights."""
    return ResNet20()
