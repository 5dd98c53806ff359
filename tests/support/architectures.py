"""Small networks made as torchvision makes its own, from plain torch: what capture has to understand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fused_resnet.networks import se_resnet9_fixup


def conv_norm(
    c: int, k: int, size: int, stride: int = 1, groups: int = 1, act: type[nn.Module] | None = None
) -> nn.Module:
    parts = [nn.Conv2d(c, k, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(k)]
    return nn.Sequential(*parts, *([act(inplace=True)] if act else []))


class BasicBlock(nn.Module):
    def __init__(self, c: int, k: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c, k, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(k)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(k, k, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(k)
        self.downsample = conv_norm(c, k, 1, stride) if stride != 1 or c != k else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    def __init__(self, c: int, k: int, stride: int = 1, groups: int = 1, width: int = 16) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, k, 1, bias=False), nn.BatchNorm2d(k)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = conv_norm(c, k, 1, stride) if stride != 1 or c != k else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        identity = x if self.downsample is None else self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """A stem, three blocks, a head."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        if kind == "basic":
            self.layer1 = nn.Sequential(BasicBlock(16, 16), BasicBlock(16, 32, 2), BasicBlock(32, 32))
        else:
            groups = 4 if kind == "resnext" else 1
            self.layer1 = nn.Sequential(
                Bottleneck(16, 32, groups=groups), Bottleneck(32, 32, groups=groups), Bottleneck(32, 32, 2, groups)
            )
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layer1(x))
        return self.fc(torch.flatten(x, 1))


class Function(nn.Module):
    """A function of a module and its input; parts: the module's attributes, of which plain tensors are buffers."""

    def __init__(self, function: Callable[[Any, torch.Tensor], Any], **parts: object) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


class Of(Function):
    """The same, with a convolution to 8 channels before it."""

    def __init__(self, function: Callable[[Any, torch.Tensor], Any], **parts: object) -> None:
        super().__init__(function, conv=nn.Conv2d(3, 8, 3, padding=1), **parts)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, self.conv(x))


class SqueezeExcitation(nn.Module):
    """As torchvision has it, with 1x1 convolutions."""

    def __init__(self, c: int, hidden: int, act: type[nn.Module], gate: type[nn.Module]) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(c, hidden, 1), nn.Conv2d(hidden, c, 1)
        self.activation, self.scale_activation = act(), gate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.activation(self.fc1(self.avgpool(x)))
        return self.scale_activation(self.fc2(gate)) * x


class SEBlock(nn.Module):
    """A basic block with a gate of linear layers before the sum."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_norm(c, c, 3, act=nn.ReLU), conv_norm(c, c, 3))
        self.fc = nn.Sequential(nn.Linear(c, c // 4), nn.ReLU(), nn.Linear(c // 4, c), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        n, c = y.shape[:2]
        gate = self.fc(y.mean((2, 3))).view(n, c, 1, 1)
        return F.relu(x + y * gate)


class SENet(nn.Module):
    """Both gates that are one problem."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 16, 3, act=nn.ReLU)
        self.block = SEBlock(16)
        self.gate = SqueezeExcitation(16, 8, nn.ReLU, nn.Sigmoid)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gate(self.block(self.stem(x)))


class InvertedResidual(nn.Module):
    def __init__(self, c: int, act: type[nn.Module], squeeze: bool, inner: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        wide = 4 * c
        gate = nn.Hardsigmoid if inner is nn.ReLU else nn.Sigmoid
        self.block = nn.Sequential(
            conv_norm(c, wide, 1, act=act),
            conv_norm(wide, wide, 3, groups=wide, act=act),
            *([SqueezeExcitation(wide, c, inner, gate)] if squeeze else []),
            conv_norm(wide, c, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.block(x)


class MobileNet(nn.Module):
    """version 2, 3, or EfficientNet's part of it."""

    def __init__(self, act: type[nn.Module], squeeze: bool, inner: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_norm(3, 8, 3, 2, act=act),
            InvertedResidual(8, act, squeeze, inner),
            InvertedResidual(8, act, squeeze, inner),
            conv_norm(8, 24, 1, act=act),
        )
        self.classifier = nn.Sequential(nn.Linear(24, 16), act(inplace=True), nn.Dropout(0.2), nn.Linear(16, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(x)
        return self.classifier(F.adaptive_avg_pool2d(x, (1, 1)).flatten(1))


class DenseLayer(nn.Module):
    def __init__(self, c: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.relu1 = nn.BatchNorm2d(c), nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(c, 2 * growth, 1, bias=False)
        self.norm2, self.relu2 = nn.BatchNorm2d(2 * growth), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features: list[torch.Tensor]) -> torch.Tensor:
        x = self.conv1(self.relu1(self.norm1(torch.cat(features, 1))))
        return self.conv2(self.relu2(self.norm2(x)))


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 16, 3, 2, act=nn.ReLU)
        self.layers = nn.ModuleList([DenseLayer(16 + 8 * i, 8) for i in range(3)])
        self.transition = nn.Sequential(
            nn.BatchNorm2d(40), nn.ReLU(inplace=True), nn.Conv2d(40, 20, 1, bias=False), nn.AvgPool2d(2, 2)
        )
        self.norm = nn.BatchNorm2d(20)
        self.classifier = nn.Linear(20, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [self.stem(x)]
        for layer in self.layers:
            features.append(layer(features))
        x = F.relu(self.norm(self.transition(torch.cat(features, 1))), inplace=True)
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1))


class VGG(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2, 2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2, 2),
        )  # fmt: skip
        self.avgpool = nn.AdaptiveAvgPool2d((8, 8))
        self.classifier = nn.Sequential(
            nn.Linear(16 * 8 * 8, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, 32), nn.ReLU(True), nn.Dropout(),
            nn.Linear(32, 10),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


ARCHITECTURES = {
    "basic": lambda: ResNet("basic"),
    "bottleneck": lambda: ResNet("bottleneck"),
    "resnext": lambda: ResNet("resnext"),
    "senet": SENet,
    "vgg": VGG,
    "densenet": DenseNet,
    "mobilenet_v2": lambda: MobileNet(nn.ReLU6, False),
    "mobilenet_v3": lambda: MobileNet(nn.Hardswish, True),
    "efficientnet": lambda: MobileNet(nn.SiLU, True, nn.SiLU),
}


def images(n: int, size: int = 32, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


def random_model(module: nn.Module, seed: int = 0, size: int = 32) -> nn.Module:
    """With random parameters, and normalisations that have seen random images."""
    return se_resnet9_fixup.calibrate(se_resnet9_fixup.randomize(module.eval(), seed), images(8, size, seed + 1))
