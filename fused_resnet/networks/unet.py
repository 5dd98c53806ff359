"""U-Net (Ronneberger et al., arXiv 1505.04597) in plain torch, with batch norms and padded convolutions."""

from __future__ import annotations

import torch
from torch import nn


def _twice(c: int, k: int) -> nn.Sequential:
    """Return two 3x3 convolutions, each with batch norm and relu."""
    layers: list[nn.Module] = []
    for inputs in (c, k):
        layers += [nn.Conv2d(inputs, k, 3, padding=1, bias=False), nn.BatchNorm2d(k), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """A segmentation network: (N, in_channels, H, W) -> (N, classes, H, W); 2^levels must divide H and W.

    Args:
        in_channels: Channels of the image.
        classes: Channels of the result.
        width: Channels of the first level; each further level has twice as many.
        levels: Number of times that the image is halved.

    Attributes:
        in_channels: Channels of the image.
        input_size: Height and width of the image that scripts use.
    """

    input_size = 256

    def __init__(self, in_channels: int = 3, classes: int = 2, width: int = 64, levels: int = 4) -> None:
        super().__init__()
        self.in_channels = in_channels
        widths = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(map(_twice, [in_channels, *widths[:-2]], widths[:-1]))
        self.pool = nn.MaxPool2d(2)
        self.bottom = _twice(widths[-2], widths[-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * k, k, 2, 2) for k in widths[-2::-1])
        self.merge = nn.ModuleList(_twice(2 * k, k) for k in widths[-2::-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of each pixel."""
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = self.pool(x)
        x = self.bottom(x)
        for up, merge, skip in zip(self.up, self.merge, reversed(skips), strict=True):
            x = merge(torch.cat([skip, up(x)], 1))
        y: torch.Tensor = self.head(x)
        return y
