"""A generated image classification task, and a ResNet-18 for it: what `autotune accuracy` trains.

An image shows one striped object. Its class is the object's shape (4) times the direction of its stripes (4). Place,
size, phase and colors are random, the background is striped too, and noise is added. So color, place and mean hold no
information on the class, and neither the outline nor the texture alone is sufficient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

SHAPES, DIRECTIONS = 4, 4
CLASSES = SHAPES * DIRECTIONS


def images(count: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return images (count, 3, size, size), of mean about 0 and variance about 1, and their classes (count,)."""
    device = generator.device

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *(shape or (1, 1)), generator=generator, device=device)

    axis = torch.linspace(-1, 1, size, device=device)
    y, x = axis[None, :, None], axis[None, None, :]
    classes = torch.randint(CLASSES, (count,), generator=generator, device=device)
    shape, direction = (classes // DIRECTIONS)[:, None, None], (classes % DIRECTIONS)[:, None, None]
    radius = uniform(0.3, 0.6)
    u, v = (x - uniform(-0.4, 0.4)) / radius, (y - uniform(-0.4, 0.4)) / radius
    inside = torch.where(shape < 2, torch.where(shape == 0, _disc(u, v), _square(u, v)),
                         torch.where(shape == 2, _triangle(u, v), _ring(u, v))).unsqueeze(1)  # fmt: skip

    def stripes(angle: Tensor) -> Tensor:
        along = x * torch.cos(angle) + y * torch.sin(angle)
        return torch.sin(uniform(12, 20) * along + uniform(0, 2 * math.pi)).unsqueeze(1)

    turn = math.pi / DIRECTIONS
    striped = stripes(turn * (direction + uniform(-0.25, 0.25)))
    background_stripes = stripes(uniform(0, math.pi))
    front, back, tint, shade = (uniform(-1, 1, 3, 1, 1) for _ in range(4))
    object_ = front + 0.9 * striped * (0.5 + tint.abs())
    behind = back + 0.6 * background_stripes * (0.5 + shade.abs())
    noise = torch.randn(count, 3, size, size, generator=generator, device=device)
    return torch.where(inside, object_, behind) + 0.4 * noise, classes


def _disc(u: Tensor, v: Tensor) -> Tensor:
    return u.square() + v.square() < 1


def _square(u: Tensor, v: Tensor) -> Tensor:
    return torch.maximum(u.abs(), v.abs()) < 0.88


def _triangle(u: Tensor, v: Tensor) -> Tensor:
    return (v.abs() < 0.9) & (u.abs() < 0.6 * (v + 1))


def _ring(u: Tensor, v: Tensor) -> Tensor:
    distance = (u.square() + v.square()).sqrt()
    return (distance > 0.55) & (distance < 1.1)


class Block(nn.Module):
    """Two 3x3 convolutions, added to the input or to its projection."""

    def __init__(self, c: int, k: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, k, 3, stride, 1, bias=False), nn.BatchNorm2d(k)
        self.conv2, self.bn2 = nn.Conv2d(k, k, 3, 1, 1, bias=False), nn.BatchNorm2d(k)
        self.relu = nn.ReLU(inplace=True)
        project = nn.Sequential(nn.Conv2d(c, k, 1, stride, bias=False), nn.BatchNorm2d(k))
        self.downsample = project if stride != 1 or c != k else None

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, K, P, Q)."""
        identity = x if self.downsample is None else self.downsample(x)
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        result: Tensor = self.relu(y + identity)
        return result


class ResNet18(nn.Module):
    """torchvision's ResNet-18 for CLASSES classes; width: channels of the first stage."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        planes = [width, width, 2 * width, 4 * width, 8 * width]
        stages = [nn.Sequential(Block(c, k, 1 if c == k else 2), Block(k, k, 1)) for c, k in pairwise(planes)]
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(8 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, classes)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        result: Tensor = self.fc(self.avgpool(x).flatten(1))
        return result


def resnet18() -> nn.Module:
    """Return the untrained network, for `--model scripts/autotune_cli/synthetic_dataset.py:resnet18`."""
    return ResNet18()


def train(
    model: nn.Module,
    steps: int,
    batch: int,
    size: int,
    generator: torch.Generator,
    *,
    call: Callable[[Tensor], Tensor] | None = None,
    amp: torch.dtype | None = None,
) -> Tensor:
    """Train on new images in each step, leave the model in eval mode, and return the loss of each step (steps,).

    Args:
        model: The network.
        steps: Number of steps.
        batch: Images of a step.
        size: Height and width of an image.
        generator: Draws the images.
        call: Runs the model; by default the model itself.
        amp: The dtype of torch.autocast; None without.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.2)
    scaler = torch.amp.GradScaler(generator.device.type, enabled=amp == torch.float16)
    losses = []
    model.train()
    for _ in range(steps):
        x, classes = images(batch, size, generator)
        with torch.autocast(generator.device.type, amp, enabled=amp is not None):
            y = (model if call is None else call)(x.contiguous(memory_format=torch.channels_last))
            loss = nn.functional.cross_entropy(y, classes, label_smoothing=0.05)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        losses.append(loss.detach().float())
    model.eval()
    return torch.stack(losses).cpu()
