"""Networks that no shipped database knows: detectors of usual shapes, a decoder of latents, and two of timm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _conv(c: int, k: int, r: int = 1, stride: int = 1) -> nn.Sequential:
    """Return a convolution, a batch norm and SiLU."""
    convolution = nn.Conv2d(c, k, r, stride, r // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(k, eps=1e-3), nn.SiLU())


class CspBlock(nn.Module):
    """A cross-stage block: one half of the channels passes n pairs of 3x3 convolutions; all results are joined."""

    def __init__(self, c: int, k: int, n: int, residual: bool) -> None:
        super().__init__()
        half = k // 2
        self.residual = residual
        self.first, self.last = _conv(c, k), _conv((2 + n) * half, k)
        self.pairs = nn.ModuleList(nn.Sequential(_conv(half, half, 3), _conv(half, half, 3)) for _ in range(n))

    def forward(self, x: Tensor) -> Tensor:
        """Compute (n, k, h, w) from (n, c, h, w)."""
        parts = list(self.first(x).chunk(2, 1))
        for pair in self.pairs:
            y = pair(parts[-1])
            parts.append(parts[-1] + y if self.residual else y)
        return self.last(torch.cat(parts, 1))


class PoolPyramid(nn.Module):
    """Three max pools of 5x5 in a row, joined with their input."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.first, self.last = _conv(c, c // 2), _conv(c * 2, c)

    def forward(self, x: Tensor) -> Tensor:
        """Compute (n, c, h, w) from (n, c, h, w)."""
        x = self.first(x)
        once = F.max_pool2d(x, 5, 1, 2)
        twice = F.max_pool2d(once, 5, 1, 2)
        return self.last(torch.cat([x, once, twice, F.max_pool2d(twice, 5, 1, 2)], 1))


class Detector(nn.Module):
    """A one-stage detector: a backbone of CSP blocks, a two-way pyramid, three heads, and decoded boxes."""

    def __init__(self, width: int = 32, classes: int = 80) -> None:
        super().__init__()
        c = [width, 2 * width, 4 * width, 8 * width, 16 * width]
        self.stage1 = nn.Sequential(
            _conv(3, c[0], 3, 2),
            _conv(c[0], c[1], 3, 2),
            CspBlock(c[1], c[1], 1, True),
            _conv(c[1], c[2], 3, 2),
            CspBlock(c[2], c[2], 2, True),
        )
        self.stage2 = nn.Sequential(_conv(c[2], c[3], 3, 2), CspBlock(c[3], c[3], 2, True))
        self.stage3 = nn.Sequential(_conv(c[3], c[4], 3, 2), CspBlock(c[4], c[4], 1, True), PoolPyramid(c[4]))
        self.up1, self.up2 = CspBlock(c[4] + c[3], c[3], 1, False), CspBlock(c[3] + c[2], c[2], 1, False)
        self.down1, self.join1 = _conv(c[2], c[2], 3, 2), CspBlock(c[2] + c[3], c[3], 1, False)
        self.down2, self.join2 = _conv(c[3], c[3], 3, 2), CspBlock(c[3] + c[4], c[4], 1, False)
        self.boxes = nn.ModuleList(self._head(k, 64, 64) for k in c[2:])
        self.classes = nn.ModuleList(self._head(k, c[2], classes) for k in c[2:])

    @staticmethod
    def _head(c: int, width: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(_conv(c, width, 3), _conv(width, width, 3), nn.Conv2d(width, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Compute (n, 4 + classes, boxes) from (n, 3, h, w)."""
        a = self.stage1(x)
        b = self.stage2(a)
        c = self.stage3(b)
        p = self.up1(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1))
        q = self.up2(torch.cat([F.interpolate(p, scale_factor=2.0), a], 1))
        r = self.join1(torch.cat([self.down1(q), p], 1))
        levels = (q, r, self.join2(torch.cat([self.down2(r), c], 1)))
        return torch.cat([self._decoded(*each) for each in zip(levels, self.boxes, self.classes, strict=True)], 2)

    @staticmethod
    def _decoded(x: Tensor, box: nn.Module, classes: nn.Module) -> Tensor:
        """Return the expected distances to the four sides, each of 16 bins, and the scores of the classes."""
        distances = box(x)
        n, _, h, w = distances.shape
        bins = torch.arange(16, device=x.device, dtype=x.dtype).view(1, 1, 16, 1)
        sides = distances.view(n, 4, 16, h * w).softmax(2).mul(bins).sum(2)
        return torch.cat([sides, classes(x).flatten(2).sigmoid()], 1)


class Bottleneck(nn.Module):
    """A residual block of ResNet-50: 1x1, 3x3, 1x1."""

    def __init__(self, c: int, width: int, stride: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b, r, s in ((c, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)):
            layers += [nn.ReLU()] if layers else []
            layers += [nn.Conv2d(a, b, r, s, r // 2, bias=False), nn.BatchNorm2d(b)]
        self.body, self.skip = nn.Sequential(*layers), nn.Sequential()
        if stride != 1 or c != 4 * width:
            self.skip = nn.Sequential(nn.Conv2d(c, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        """Compute (n, 4 * width, h / stride, w / stride) from (n, c, h, w)."""
        return F.relu(self.body(x) + self.skip(x))


class FeaturePyramid(nn.Module):
    """A ResNet-50 with a feature pyramid of five levels and two heads that all levels share."""

    def __init__(self, classes: int = 91, anchors: int = 9, depths: Sequence[int] = (3, 4, 6, 3)) -> None:
        super().__init__()
        stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.stages, c = nn.ModuleList(), 64
        for i, depth in enumerate(depths):
            width, blocks = 64 << i, []
            for j in range(depth):
                blocks.append(Bottleneck(c, width, 2 if i and not j else 1))
                c = 4 * width
            self.stages.append(nn.Sequential(*blocks))
        self.lateral = nn.ModuleList(nn.Conv2d(k, 256, 1) for k in (512, 1024, 2048))
        self.smooth = nn.ModuleList(nn.Conv2d(256, 256, 3, 1, 1) for _ in range(3))
        self.level6, self.level7 = nn.Conv2d(2048, 256, 3, 2, 1), nn.Conv2d(256, 256, 3, 2, 1)
        self.classes, self.boxes = self._head(classes * anchors), self._head(4 * anchors)

    @staticmethod
    def _head(outputs: int) -> nn.Sequential:
        body = [layer for _ in range(4) for layer in (nn.Conv2d(256, 256, 3, 1, 1), nn.ReLU())]
        return nn.Sequential(*body, nn.Conv2d(256, outputs, 3, 1, 1))

    def forward(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Compute scores and boxes of five levels, with strides 8 to 128, from (n, 3, h, w)."""
        x = self.stem(x)
        levels = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        tops = [lateral(level) for lateral, level in zip(self.lateral, levels[1:], strict=True)]
        for i in (1, 0):
            tops[i] = tops[i] + F.interpolate(tops[i + 1], size=tops[i].shape[-2:], mode="nearest")
        pyramid = [smooth(top) for smooth, top in zip(self.smooth, tops, strict=True)]
        pyramid.append(self.level6(levels[3]))
        pyramid.append(self.level7(F.relu(pyramid[3])))
        return [self.classes(level) for level in pyramid], [self.boxes(level) for level in pyramid]


class NormalizedBlock(nn.Module):
    """A residual block with two 3x3 convolutions, each behind a group norm and SiLU."""

    def __init__(self, c: int, k: int) -> None:
        super().__init__()
        steps: list[nn.Module] = []
        for channels in (c, k):
            steps += [nn.GroupNorm(32, channels, eps=1e-6), nn.SiLU(), nn.Conv2d(channels, k, 3, padding=1)]
        self.body, self.skip = nn.Sequential(*steps), nn.Conv2d(c, k, 1) if c != k else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Compute (n, k, h, w) from (n, c, h, w)."""
        skipped: Tensor = self.skip(x)
        return skipped + self.body(x)


class PixelAttention(nn.Module):
    """Attention of one head over all pixels, with the input added."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.norm, self.joined, self.last = nn.GroupNorm(32, c, eps=1e-6), nn.Linear(c, 3 * c), nn.Linear(c, c)

    def forward(self, x: Tensor) -> Tensor:
        """Compute (n, c, h, w) from (n, c, h, w)."""
        pixels = self.norm(x).flatten(2).transpose(1, 2).unsqueeze(1)
        mixed = F.scaled_dot_product_attention(*self.joined(pixels).chunk(3, -1)).squeeze(1)
        return x + self.last(mixed).transpose(1, 2).reshape(x.shape)


class LatentDecoder(nn.Module):
    """The decoder of latent image models: three times twice the size, and group norms throughout."""

    def __init__(self, widths: Sequence[int] = (512, 512, 256, 128)) -> None:
        super().__init__()
        c = widths[0]
        layers: list[nn.Module] = [nn.Conv2d(4, c, 3, padding=1), NormalizedBlock(c, c), PixelAttention(c)]
        layers.append(NormalizedBlock(c, c))
        for level, k in enumerate(widths):
            if level:
                layers += [nn.Upsample(scale_factor=2.0), nn.Conv2d(c, c, 3, padding=1)]
            layers += [NormalizedBlock(c if i == 0 else k, k) for i in range(3)]
            c = k
        layers += [nn.GroupNorm(32, c, eps=1e-6), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Compute images (n, 3, 8 h, 8 w) from latents (n, 4, h, w)."""
        image: Tensor = self.layers(x)
        return image


def detector() -> nn.Module:
    """Return a detector with random weights; its records have inputs of 3x640x640."""
    return Detector().eval()


def fpn() -> nn.Module:
    """Return a feature pyramid with random weights; its records have inputs of 3x800x800."""
    return FeaturePyramid().eval()


def decoder() -> nn.Module:
    """Return a decoder of latents with random weights, for inputs of 4x64x64."""
    return LatentDecoder().eval()


def hrnet_w18_small() -> nn.Module:
    """Return timm's network with random weights."""
    import timm

    return timm.create_model("hrnet_w18_small").eval()


def seresnet50() -> nn.Module:
    """Return timm's network with random weights."""
    import timm

    return timm.create_model("seresnet50").eval()
